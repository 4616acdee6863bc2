package demo_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestSeenUpAndWatched: machines are installed when they answer SSH with the host key that their
// install brought, or when their unit has called. One that dies later is shown, and left alone.
func TestSeenUpAndWatched(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]fleet.SeenBy{"SSH": fleet.SeenBySSH, "unit": fleet.SeenByUnit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seenUpAndWatched(t, by)
		})
	}
}

func seenUpAndWatched(t *testing.T, by fleet.SeenBy) {
	t.Helper()
	o := options(t)
	o.Machines, o.SeenUp = 2, fleet.SeenUp{By: by, Watch: true}
	run(t, o, func(ctx context.Context, d *demo.Demo, client fleetv1connect.FleetServiceClient) error {
		if _, err := d.WaitInstalled(ctx, client, func(demo.View) {}); err != nil {
			return err
		}
		list, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{})
		if err != nil {
			return err
		}
		m := list.GetMachines()[0]
		keys, err := client.GetHostKeys(ctx, &fleetv1.GetHostKeysRequest{Machine: m.GetId()})
		if err != nil || keys.GetSource() != string(fleet.HostKeyInstalled) || len(keys.GetKnown()) != 1 {
			t.Errorf("known by %v, %v", keys, err)
		}
		if err := powerOff(ctx, d, m.GetProviderId()); err != nil {
			return err
		}
		var got *fleetv1.GetMachineResponse
		err = until(ctx, func() (bool, error) {
			got, err = client.GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: m.GetId()})
			found := slices.ContainsFunc(got.GetFacts(), func(f *fleetv1.Fact) bool {
				return f.GetName() == "probe" && strings.Contains(f.GetDetail(), "not answered since")
			})
			return found && got.GetMachine().GetState() == string(fleet.StateUnreachable), err
		})
		if err != nil {
			return err
		}
		explained, err := client.ExplainMachine(ctx, &fleetv1.ExplainMachineRequest{Machine: m.GetId()})
		text, alone, command := explained.String(), "left alone", "`ironherd machine reboot "+m.GetId()+" --reason WHY`"
		if strings.Contains(text, "says that it is off") { // the provider was asked since
			alone, command = "leaves alone", "`ironherd machine power on "+m.GetId()+" --reason WHY`"
		}
		if err != nil || !strings.Contains(text, command) || !strings.Contains(text, alone) {
			t.Errorf("it is explained as %s, %v", text, err)
		}
		history, err := client.ListHistory(ctx, &fleetv1.ListHistoryRequest{Machine: m.GetId()})
		for _, h := range history.GetEntries() {
			if h.GetProcess() == string(fleet.ProcessRecovery) || h.GetProcess() == string(fleet.ProcessOperation) {
				t.Errorf("it was not left alone: %v", h)
			}
		}
		return err
	})
}

// powerOff switches a device off behind the control plane's back, as somebody at the provider does.
func powerOff(ctx context.Context, d *demo.Demo, device string) error {
	p := d.Config().Providers[0].Equinix
	token, err := os.ReadFile(p.TokenFile)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(p.APIURL, "/")+"/devices/"+device+"/actions",
		strings.NewReader(`{"type": "power_off"}`))
	if err != nil {
		return err
	}
	request.Header.Set("X-Auth-Token", strings.TrimSpace(string(token)))
	request.Header.Set("Content-Type", "application/json")
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		return fmt.Errorf("switch off: %s", response.Status)
	}
	return nil
}
