package demo_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"connectrpc.com/connect"

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
			notYet := connect.CodeOf(err) == connect.CodeFailedPrecondition // it is not created
			if err != nil && !notYet && !busy(err) {
				t.Error(err)
			}
		})
		if err == nil && (summary.Installed != 1 || summary.Machines != 2) {
			t.Errorf("%d of %d are installed", summary.Installed, summary.Machines)
		}
		return err
	})
}

// TestSettledWithFewerMachines: the wait ends where a machine was given back, whose capacity is not
// used again.
func TestSettledWithFewerMachines(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Machines = 2
	run(t, o, func(ctx context.Context, d *demo.Demo, client fleetv1connect.FleetServiceClient) error {
		asked := false
		summary, err := d.WaitSettled(ctx, client, func(v demo.View) {
			i := slices.IndexFunc(v.Rows, func(m *fleetv1.Machine) bool { return m.GetState() == string(fleet.StateInstalled) })
			if asked || i < 0 {
				return
			}
			plan, err := client.CreatePlan(ctx, &fleetv1.CreatePlanRequest{
				Verb: string(fleet.VerbRelease), Machines: []string{v.Rows[i].GetId()}, Reason: "not needed",
			})
			if err == nil {
				_, err = client.ConfirmPlan(ctx, &fleetv1.ConfirmPlanRequest{Id: plan.GetPlan().GetId()})
			}
			asked = err == nil
		})
		if err == nil && (!asked || summary.Installed != 1) {
			t.Errorf("%d are installed, %t", summary.Installed, asked)
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
	v := demo.View{Machines: 3, States: []demo.StateCount{{State: fleet.StateInstalled, Machines: 2}}, KeptOut: 1}
	if !v.Settled() {
		t.Error("with capacity that is kept out it is not settled")
	}
	v.States = append(v.States, demo.StateCount{State: fleet.StateReleasing, Machines: 1})
	if v.Settled() {
		t.Error("with one that is released it is settled")
	}
}

// failing answers a question at first as the command line's client tells that no answer came.
type failing struct {
	fleetv1connect.FleetServiceClient
	failures []error
}

func (f *failing) GetSummary(ctx context.Context, r *fleetv1.GetSummaryRequest) (*fleetv1.GetSummaryResponse, error) {
	if len(f.failures) > 0 {
		err := f.failures[0]
		f.failures = f.failures[1:]
		return nil, err
	}
	return f.FleetServiceClient.GetSummary(ctx, r)
}

// TestSlowAnswers: a demo goes on while its control plane is slow, or starts a part again. It ends
// with what no patience helps against.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	slow := []error{
		fleet.Errorf(fleet.KindTimeout, "the control plane did not answer in time"), fleet.Errorf(fleet.KindTemporary, "no control plane answers"),
		connect.NewError(connect.CodeUnavailable, errors.New("the database does not answer")),
		connect.NewError(connect.CodeDeadlineExceeded, errors.New("the database does not answer in time")),
	}
	o := options(t)
	o.Machines = 1
	run(t, o, func(ctx context.Context, d *demo.Demo, client fleetv1connect.FleetServiceClient) error {
		_, err := d.WaitInstalled(ctx, &failing{client, []error{fleet.Errorf(fleet.KindForbidden, "no")}}, func(demo.View) {})
		if fleet.KindOf(err) != fleet.KindForbidden {
			t.Errorf("refused: %v", err)
		}
		summary, err := d.WaitInstalled(ctx, &failing{client, slow}, func(demo.View) {})
		if err == nil && summary.Installed != 1 {
			t.Errorf("%d are installed", summary.Installed)
		}
		return err
	})
}
