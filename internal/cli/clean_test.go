package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"

	"connectrpc.com/connect"
	"go.yaml.in/yaml/v3"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
)

// hostile sets a terminal's title, clears its screen by a control character of one rune, and turns
// the direction of the text.
const hostile = "herd\x1b]0;owned\x07\u009b2J\u202e"

// hostileFleet gives names and errors that could control a terminal.
type hostileFleet struct {
	fleetv1connect.UnimplementedFleetServiceHandler
}

func hostileMachine() *fleetv1.Machine {
	return &fleetv1.Machine{Id: firstID, Provider: "metal", Hostname: hostile, Location: "da" + hostile, State: "installed", Reason: hostile}
}

func (hostileFleet) ListMachines(context.Context, *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	named := machine()
	named.Hostname, named.Location = "herd-0007", "da12"
	return &fleetv1.ListMachinesResponse{Machines: []*fleetv1.Machine{hostileMachine(), named}}, nil
}

func (hostileFleet) ListProviders(context.Context, *fleetv1.ListProvidersRequest) (*fleetv1.ListProvidersResponse, error) {
	return &fleetv1.ListProvidersResponse{Providers: []*fleetv1.Provider{
		{Name: hostile, Kind: "static"},
		{Name: "rack\n-4", Kind: "static"},
		{Name: "rack\t-4", Kind: "static"},
		{Name: "rack", Kind: hostile, KeptOut: []*fleetv1.Penalty{
			{Capacity: hostile, Cause: hostile}, {Capacity: "node4", Cause: hostile}, {Capacity: "node\n-4", Cause: hostile},
		}},
	}}, nil
}

func (hostileFleet) GetMachine(_ context.Context, r *fleetv1.GetMachineRequest) (*fleetv1.GetMachineResponse, error) {
	if r.GetMachine() == "bad" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("first "+hostile+"\nsecond"))
	}
	return &fleetv1.GetMachineResponse{Machine: hostileMachine(), Facts: []*fleetv1.Fact{{Name: hostile, Detail: hostile}}}, nil
}

func (hostileFleet) AdoptMachine(context.Context, *fleetv1.AdoptMachineRequest) (*fleetv1.AdoptMachineResponse, error) {
	return &fleetv1.AdoptMachineResponse{Paused: &fleetv1.ProviderPause{Provider: hostile, At: at(10, 0), Actor: hostile, Reason: hostile}}, nil
}

// TestForeignTextCannotControlTheTerminal: neither in tables, nor in what is said beside them, nor
// in failures, nor in what is offered to the shell.
func TestForeignTextCannotControlTheTerminal(t *testing.T) {
	t.Parallel()
	_, handler := fleetv1connect.NewFleetServiceHandler(hostileFleet{})
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	asked := func(args string) result {
		fields := strings.Fields(args)
		if at := len(fields) - 1; fields[at] == "''" {
			fields[at] = ""
		}
		if fields[0] == "__complete" {
			return run(t, nil, append([]string{"__complete", "--server", server.URL}, fields[1:]...)...)
		}
		return run(t, nil, append(fields, "--server", server.URL)...)
	}
	for args, want := range map[string]string{
		"machine list":                                 "herd]0;owned2J",
		"machine show x":                               "herd]0;owned2J",
		"machine show bad":                             "ironherd: first herd]0;owned2J\nironherd: second\n",
		"provider list":                                "herd]0;owned2J",
		"discrepancy adopt metal dev --reason r":       "herd]0;owned2J is paused by herd]0;owned2J",
		"machine list -o json":                         `"hostname": "herd\u001b]0;owned\u0007\u009b2J`,
		"machine list -o yaml":                         `hostname: "herd\e]0;owned\a`,
		"provider show rack":                           "herd]0;owned2J",
		"__complete provider retry rack --capacity ''": "node4\therd]0;owned2J\n",
		"__complete machine show ''":                   "herd-0007\tinstalled\n",
		"__complete machine list --location ''":        "da12\n",
		"__complete provider show ''":                  "rack\therd]0;owned2J\n",
		"machine list --colour" + "\u009b2J\u202e":     "unknown flag: --colour2J (see",
	} {
		r := asked(args)
		all := r.stdout + r.stderr
		if !strings.Contains(all, want) {
			t.Errorf("%s: %q, want %q", args, all, want)
		}
		controls := func(c rune) bool { return c != '\n' && c != '\t' && !unicode.IsPrint(c) }
		if strings.Contains(args, " -o ") { // whoever reads these gets the text as it is, in escapes
			controls = func(c rune) bool { return c != '\n' && unicode.IsControl(c) }
		}
		if strings.ContainsFunc(all, controls) {
			t.Errorf("%s: controls the terminal: %q", args, all)
		}
		if offered := strings.Contains(r.stdout, "-4") || strings.Contains(r.stdout, "da]"); strings.HasPrefix(args, "__complete") && (offered || strings.Contains(r.stdout, "\nherd]")) {
			t.Errorf("%s: offers what is no name: %q", args, r.stdout)
		}
	}
	// What programs read is as it is.
	var list struct {
		Machines []struct{ Hostname, Location string } `yaml:"machines"`
	}
	for _, read := range []struct {
		format string
		parse  func([]byte, any) error
	}{{"json", json.Unmarshal}, {"yaml", yaml.Unmarshal}} {
		list.Machines = nil
		r := asked("machine list -o " + read.format)
		if err := read.parse([]byte(r.stdout), &list); err != nil || len(list.Machines) != 2 || list.Machines[0].Hostname != hostile {
			t.Errorf("as %s: %v, %+q", read.format, err, list)
		}
	}
}
