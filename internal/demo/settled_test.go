package demo_test

import (
	"context"
	"slices"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestSettled: the wait for a demo that is to be looked at ends with a machine that waits for a
// person, and that will not be installed.
func TestSettled(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Machines = 2
	run(t, o, func(ctx context.Context, d *demo.Demo, client fleetv1connect.FleetServiceClient) error {
		summary, err := d.WaitSettled(ctx, client, func(v demo.View) {
			quarantined := func(m *fleetv1.Machine) bool { return m.GetState() == string(fleet.StateQuarantined) }
			if len(v.Rows) == 0 || slices.ContainsFunc(v.Rows, quarantined) {
				return
			}
			// A machine whose state changes meanwhile is skipped.
			_, err := client.CreatePlan(ctx, &fleetv1.CreatePlanRequest{
				Verb: string(fleet.VerbQuarantine), Machines: []string{v.Rows[0].GetId()}, Reason: "to be looked at", Confirm: true,
			})
			if err != nil {
				t.Error(err)
			}
		})
		if err == nil && (summary.Installed != 1 || summary.Machines != 2) {
			t.Errorf("%d of %d are installed", summary.Installed, summary.Machines)
		}
		return err
	})
}

func TestSettledStates(t *testing.T) {
	t.Parallel()
	for state, settled := range map[fleet.State]bool{
		fleet.StateInstalled: true, fleet.StateQuarantined: true, fleet.StateFailed: true, fleet.StateRefused: true, fleet.StateMaintenance: true,
		fleet.StateSilent: false, fleet.StateBooting: false, fleet.StateCreating: false,
	} {
		v := demo.View{Machines: 3, States: []demo.StateCount{{State: fleet.StateInstalled, Machines: 2}, {State: state, Machines: 1}}}
		if v.Settled() != settled {
			t.Errorf("with one that is %s: %t", state, v.Settled())
		}
	}
	if (demo.View{Machines: 3, States: []demo.StateCount{{State: fleet.StateInstalled, Machines: 2}}}).Settled() {
		t.Error("with one that is not begun it is settled")
	}
}
