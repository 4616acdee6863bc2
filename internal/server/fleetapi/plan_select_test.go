package fleetapi_test

import (
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// TestNothingCanBeDone: whoever asks for it learns why each machine of a selection refuses, and
// which was the last one, and can go on behind it.
func TestNothingCanBeDone(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	ids := o.machines(3)
	slices.Sort(ids)
	client := o.client(token.Operator)
	request := &fleetv1.CreatePlanRequest{Verb: "unquarantine", Provider: "lab", Limit: 2, Reason: "because", Confirm: true, AllowRefused: true}
	for _, want := range [][]fleet.MachineID{ids[:2], ids[2:], nil} {
		a, err := client.CreatePlan(t.Context(), request)
		o.must(err)
		p := a.GetPlan()
		if p.GetId() != "" || p.GetConfirmedAt() != nil || p.GetVerb() != "unquarantine" || len(p.GetMachines()) != len(want) {
			t.Fatalf("plan %v, want %d machines", p, len(want))
		}
		for i, m := range p.GetMachines() {
			if request.After = m.GetMachineId(); request.GetAfter() != string(want[i]) || !strings.Contains(m.GetRefused(), "is not in quarantine") {
				t.Errorf("machine %d: %v", i, m)
			}
		}
	}
	request.After, request.States = "", []string{"silent"}
	if _, err := client.CreatePlan(t.Context(), request); code(err) != connect.CodeNotFound {
		t.Errorf("nothing is selected: %v", err)
	}
}

// TestSelectorAndSeveral: several machines are never touched without a word, unless it was given
// with the request.
func TestSelectorAndSeveral(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	ids := o.machines(3)
	client := o.client(token.Operator)
	request := &fleetv1.CreatePlanRequest{Verb: "quarantine", Provider: "lab", States: []string{"provided"}, Reason: "because", ConfirmHarmless: true}
	a, err := client.CreatePlan(t.Context(), request)
	o.must(err)
	if p := a.GetPlan(); !p.GetNeedsConfirmation() || p.GetConfirmedAt() != nil || len(p.GetMachines()) != 3 || o.record(ids[0]).Quarantine != nil {
		t.Fatalf("plan %v", p)
	}
	twice := &fleetv1.CreatePlanRequest{Verb: "quarantine", Machines: []string{"host-1", "host-2", "host-1"}, Reason: "because", Confirm: true}
	b, err := client.CreatePlan(t.Context(), twice)
	o.must(err)
	if p := b.GetPlan(); len(p.GetMachines()) != 2 || p.GetConfirmedAt() == nil || o.record(ids[2]).Quarantine == nil || o.record(ids[0]).Quarantine != nil {
		t.Fatalf("plan %v", p)
	}
	c, err := client.ConfirmPlan(t.Context(), &fleetv1.ConfirmPlanRequest{Id: a.GetPlan().GetId()})
	o.must(err)
	for i, want := range []string{"done", "skipped", "skipped"} {
		if m := c.GetPlan().GetMachines()[i]; m.GetOutcome() != want || m.GetDetail() == "" {
			t.Errorf("machine %d: %v", i, m)
		}
	}
}
