package fleetapi_test

import (
	"slices"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// lastOfAll is behind the IDs of all machines.
const lastOfAll = "ffffffff-ffff-ffff-ffff-ffffffffffff"

// TestPartOfWhatASelectorFits: a location, and the first of many, and those behind them.
func TestPartOfWhatASelectorFits(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	ids := o.machines(3)
	slices.Sort(ids)
	client := o.client(token.Operator)
	for _, c := range []struct {
		request *fleetv1.CreatePlanRequest
		want    []fleet.MachineID
	}{
		{&fleetv1.CreatePlanRequest{Locations: []string{"here", "there"}}, ids},
		{&fleetv1.CreatePlanRequest{Provider: "lab", Locations: []string{"here"}, Limit: 2}, ids[:2]},
		{&fleetv1.CreatePlanRequest{States: []string{"provided"}, Limit: 1000}, ids},
		{&fleetv1.CreatePlanRequest{Provider: "lab", After: string(ids[0]), Limit: 1}, ids[1:2]},
		{&fleetv1.CreatePlanRequest{Locations: []string{"here"}, After: string(ids[1])}, ids[2:]},
	} {
		c.request.Verb, c.request.Reason = "quarantine", "the rack moves"
		a, err := client.CreatePlan(t.Context(), c.request)
		o.must(err)
		var got []fleet.MachineID
		for _, m := range a.GetPlan().GetMachines() {
			got = append(got, fleet.MachineID(m.GetMachineId()))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.request, got, c.want)
		}
	}
	for location, want := range map[string]int{"here": 3, "there": 0} {
		list, err := client.ListMachines(t.Context(), &fleetv1.ListMachinesRequest{Locations: []string{location}})
		if err != nil || len(list.GetMachines()) != want {
			t.Errorf("%s: %v, %v", location, list, err)
		}
	}
}

// between is a bmdb.Observer that does something once, after the next transaction of a kind.
type between struct {
	kind string
	do   func()
}

func (b *between) Transaction(kind string, _ time.Duration, _ int, _ error) {
	if do := b.do; do != nil && kind == b.kind {
		b.do = nil
		do()
	}
}

func (*between) Outcome(fleet.Process, string, time.Duration) {}

func (*between) Happened(bmdb.Happening, string) {}

// TestWhatChangesAfterItWasSelectedIsLeftAlone: machines are found in one transaction, and judged
// in another.
func TestWhatChangesAfterItWasSelectedIsLeftAlone(t *testing.T) {
	t.Parallel()
	meanwhile := &between{kind: "list machines"}
	o := newFixtureWith(t, nil, meanwhile)
	ids := o.machines(2)
	slices.Sort(ids)
	name := o.record(ids[0]).Name()
	meanwhile.do = func() { o.must(bmdbtest.BeginMaintenance(t.Context(), o.db, "ada", ids[0], nil, "a disk is swapped")) }
	a, err := o.client(token.Operator).CreatePlan(t.Context(), &fleetv1.CreatePlanRequest{
		Verb: "quarantine", States: []string{"provided"}, Limit: 1000, Reason: "the rack moves", Confirm: true,
	})
	o.must(err)
	got := a.GetPlan().GetMachines()
	if want := "machine " + name + " is maintenance now, not provided"; len(got) != 2 || got[0].GetRefused() != want || got[0].GetOutcome() != "refused" ||
		got[1].GetOutcome() != "done" {
		t.Errorf("%v, want the first refused: %s", got, want)
	}
	if o.record(ids[0]).Quarantine != nil || o.record(ids[1]).Quarantine == nil {
		t.Error("what was selected is not what was quarantined")
	}
}

// TestALabelThatIsTakenAwayAfterItWasSelectedBy: so is a machine that had a label.
func TestALabelThatIsTakenAwayAfterItWasSelectedBy(t *testing.T) {
	t.Parallel()
	meanwhile := &between{kind: "list machines"}
	o := newFixtureWith(t, nil, meanwhile)
	ids := o.machines(2)
	slices.Sort(ids)
	w := o.claim(fleet.ProcessUpdate)[0]
	label := func(labels ...string) {
		for _, id := range ids {
			r := o.record(id)
			fact := *r.Provided
			fact.Labels = labels
			o.must(w.Note(t.Context(), bmdb.SetProvided(id, r.ProviderID, fact)))
		}
	}
	label("role=web", "zone=a")
	request := &fleetv1.CreatePlanRequest{Verb: "quarantine", Labels: []string{"zone", "role=web"}, AllowRefused: true, Reason: "the zone moves", Confirm: true}
	meanwhile.do = func() { label("role=web") }
	a, err := o.client(token.Operator).CreatePlan(t.Context(), request)
	o.must(err)
	got := a.GetPlan().GetMachines()
	if want := "machine " + o.record(ids[0]).Name() + " does not have the label zone now"; len(got) != 2 || got[0].GetRefused() != want ||
		!slices.Equal(a.GetLabels(), request.GetLabels()) || o.record(ids[0]).Quarantine != nil {
		t.Errorf("%v, want the first refused: %s", a, want)
	}
	label("role=web", "zone=b")
	if a, err := o.client(token.Operator).CreatePlan(t.Context(), request); err != nil || len(a.GetPlan().GetMachines()) != 2 || o.record(ids[1]).Quarantine == nil {
		t.Errorf("%v, %v", a, err)
	}
}
