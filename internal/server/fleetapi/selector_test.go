package fleetapi_test

import (
	"slices"
	"testing"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// TestPartOfWhatASelectorFits: a location, and the first of many.
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
