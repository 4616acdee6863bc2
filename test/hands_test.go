package test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/test/process"
)

// startGated starts a world and a control plane, with a gate between them. No machine is to be
// installed unless somebody asks for it.
func startGated(ctx context.Context, t *testing.T, herd *process.Herd) *process.Gate {
	t.Helper()
	if err := herd.StartWorld(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(t, herd); err != nil {
			t.Error(err)
		}
	})
	gate, err := process.NewGate(ctx, herd.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.Close)
	text, err := os.ReadFile(herd.Config())
	if err == nil {
		text = regexp.MustCompile(`(?m)^    install:\n(      .*\n)+`).ReplaceAll(text, nil)
		text = []byte(strings.Replace(string(text), herd.URL(), gate.URL(), 1))
		err = os.WriteFile(herd.Config(), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	startPlane(ctx, t, herd)
	return gate
}

// killPoint is where the control plane is killed in an operation.
type killPoint string

const (
	// killRequested: the request is durable, and nothing was begun.
	killRequested killPoint = "requested"
	// killBegun: the attempt is durable, and the provider was not called.
	killBegun killPoint = "begun"
	// killUnheard: the provider has done it, and its reply is lost.
	killUnheard killPoint = "unheard"
	// killHalf: of a power cycle, the machine is off.
	killHalf killPoint = "half"
	// killAccepted: the provider has accepted it, and is asked what has become of it.
	killAccepted killPoint = "accepted"
	// killEnded: the end is durable, and nothing that follows from it was begun. Of a replace, that is
	// the machine that takes its place.
	killEnded killPoint = "ended"
)

// killed is one operation during which the control plane is killed.
type killed struct {
	verb   []string
	point  killPoint
	name   string
	id     string
	device string
	// ended reports whether the end of the operation is durable.
	ended func() bool
}

func (k killed) String() string {
	return strings.Join(k.verb, " ") + ", killed when " + string(k.point)
}

// first and last are the calls by which the provider does it.
func (k killed) first() string {
	return map[string]string{"reboot": "reboot ", "power": "power_off ", "release": "DELETE ", "replace": "DELETE "}[k.verb[0]] + k.device
}

func (k killed) last() string { return strings.Replace(k.first(), "power_off", "power_on", 1) }

// hook returns what the gate calls. It calls kill once, at the point.
func (k killed) hook(asked <-chan struct{}, kill func()) func(*http.Request, string, process.Moment) bool {
	var mu sync.Mutex
	accepted, dead := false, false
	return func(_ *http.Request, action string, at process.Moment) bool {
		mu.Lock()
		defer mu.Unlock()
		look, before := action == "GET "+k.device, at == process.Before
		here := map[killPoint]bool{
			killRequested: look && before,
			killBegun:     action == k.first() && before,
			killUnheard:   action == k.first() && !before,
			killHalf:      action == k.last() && before,
			killAccepted:  accepted && look && before,
			killEnded:     k.point == killEnded && accepted && before && !dead && k.ended(),
		}[k.point]
		accepted = accepted || action == k.last() && !before
		if here && !dead {
			<-asked
			kill()
			dead = true
		}
		return dead
	}
}

// TestKilledDuringOperations kills the control plane at each step of each operation. The next one
// goes on: what was asked for is done at the provider once, and nothing is forgotten. Only a reboot
// whose reply is lost with the process may be asked for once more (docs/invariants.md, rule 7).
func TestKilledDuringOperations(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 8*time.Minute)
	var all []*killed
	for _, verb := range []string{"release", "replace", "power cycle", "reboot"} {
		points := []killPoint{killRequested, killBegun, killUnheard, killAccepted}
		if verb == "power cycle" {
			points = append(points, killHalf)
		}
		if verb == "replace" {
			points = append(points, killEnded)
		}
		for _, point := range points {
			all = append(all, &killed{verb: strings.Fields(verb), point: point})
		}
	}
	herd := &process.Herd{
		Ironherd: ironherd, Dir: shortDir(t), Machines: len(all), WorldArgs: []string{"--real-agents", "2"},
		// A restart that may have been heard is not asked for again before its time is over.
		PlaneArgs: []string{
			"--set", "policy.operation_timeout=1m", "--set", "policy.recovery_step_timeout=1m",
			"--set", "policy.heartbeat_interval=1s", "--set", "policy.silent_after=10s",
		},
	}
	gate := startGated(ctx, t, herd)
	if err := herd.AwaitState(ctx, "available", len(all), func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	list, err := herd.Client().ListMachines(ctx, &fleetv1.ListMachinesRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range all {
		m := list.GetMachines()[i]
		k.name, k.id, k.device = m.GetHostname(), m.GetId(), m.GetProviderId()
		k.ended = func() bool { return endedOnce(ctx, herd, k) == nil }
		killDuring(ctx, t, herd, gate, k)
		if k.verb[0] == "power" || k.verb[0] == "reboot" {
			// The next kill must not lose a reply to this one as well, which would be made up for by
			// another restart.
			eventually(t, func() error { return accepted(ctx, herd, k) })
		}
	}
	for _, k := range all {
		eventually(t, func() error { return endedOnce(ctx, herd, k) })
	}
	released, replaced := 0, 0
	restarts := 0
	for _, k := range all {
		want, most := 1, 1
		if k.verb[0] == "reboot" && k.point == killUnheard {
			most = 2
		}
		for _, call := range []string{k.first(), k.last()} {
			if n := gate.Passed(call); n < want || n > most {
				t.Errorf("%s: %q was done %d times", k, call, n)
			}
		}
		switch k.verb[0] {
		case "release":
			released++
		case "replace":
			replaced++
		default:
			restarts += gate.Passed(k.last())
		}
	}
	if err := herd.AwaitState(ctx, "available", len(all)-released, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	status, err := herd.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for what, n := range map[string][2]int{
		"devices":                           {status.Devices, len(all) - released},
		"devices that were ever made":       {status.DevicesMade, len(all) + replaced},
		"devices of one token":              {status.DuplicateDevices, 0},
		"boots":                             {status.Boots, len(all) + replaced + restarts},
		"installs":                          {status.InstallsVerified + status.InstallsRejected, 0},
		"devices whose provisioning failed": {status.DevicesFailed, 0},
	} {
		if n[0] != n[1] {
			t.Errorf("%s: %d, want %d", what, n[0], n[1])
		}
	}
}

// killDuring asks for an operation, has the control plane killed at its point, and starts the next
// one.
func killDuring(ctx context.Context, t *testing.T, herd *process.Herd, gate *process.Gate, k *killed) {
	t.Helper()
	asked, dead := make(chan struct{}), make(chan struct{})
	gate.Stop(k.hook(asked, func() {
		herd.KillPlane()
		close(dead)
	}))
	args := append(append([]string{"machine"}, k.verb...), k.name, "--reason", "a test", "--yes")
	if code, stdout, stderr := herd.CLI(ctx, args...); code != 0 {
		t.Fatalf("%s: exit code %d: %s%s", k, code, stdout, stderr)
	}
	close(asked)
	select {
	case <-dead:
	case <-ctx.Done():
		t.Fatalf("%s: the point never came", k)
	}
	gate.Stop(nil)
	startPlane(ctx, t, herd)
}

// accepted looks whether the history says that the provider has accepted an operation.
func accepted(ctx context.Context, herd *process.Herd, k *killed) error {
	history, err := herd.Client().ListHistory(ctx, &fleetv1.ListHistoryRequest{Machine: k.id, Limit: 1000})
	if err != nil {
		return fmt.Errorf("%s: %w", k, err)
	}
	for _, e := range history.GetEntries() {
		if e.GetEvent() == "operation accepted" || e.GetEvent() == "operation done" {
			return nil
		}
	}
	return fmt.Errorf("%s: it is not accepted", k)
}

// endedOnce looks whether the history says that an operation was asked for once, and was done once.
func endedOnce(ctx context.Context, herd *process.Herd, k *killed) error {
	history, err := herd.Client().ListHistory(ctx, &fleetv1.ListHistoryRequest{Machine: k.id, Limit: 1000})
	if err != nil {
		return fmt.Errorf("%s: %w", k, err)
	}
	counts := map[string]int{}
	var told strings.Builder
	for _, e := range history.GetEntries() {
		counts[e.GetEvent()]++
		fmt.Fprintf(&told, "%s %s: %s\n", e.GetAt().AsTime().Format(time.TimeOnly), e.GetEvent(), e.GetDetail())
	}
	if counts["operation requested"] != 1 || counts["operation done"] != 1 || counts["operation failed"] != 0 || counts["operation begun"] == 0 {
		return fmt.Errorf("%s: its history is\n%s", k, told.String())
	}
	return nil
}
