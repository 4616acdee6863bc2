package providertest

import (
	"slices"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

func list(t *testing.T, h Harness) []provider.Entry {
	t.Helper()
	entries, err := h.Provider.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return entries
}

// checkList checks that a list is in order and has nothing twice.
func checkList(t *testing.T, entries []provider.Entry) {
	t.Helper()
	if !slices.IsSortedFunc(entries, provider.CompareEntries) {
		t.Error("the list is not in the order of the IDs")
	}
	ids, capacities := map[fleet.ProviderID]bool{}, map[fleet.CapacityID]bool{}
	for _, entry := range entries {
		if entry.ID != "" && ids[entry.ID] || entry.Capacity != "" && capacities[entry.Capacity] {
			t.Errorf("the list has %s (on %s) twice", entry.ID, entry.Capacity)
		}
		ids[entry.ID], capacities[entry.Capacity] = true, true
		if entry.Availability == fleet.AvailabilityKnownUnused && entry.ID != "" {
			t.Errorf("%s is listed as unused", entry.ID)
		}
	}
}

func testList(t *testing.T, h Harness) {
	t.Helper()
	made := request(h.Free[1])
	machine := create(t, h, made)
	entries := list(t, h)
	checkList(t, entries)
	for _, capacity := range h.Free {
		at := slices.IndexFunc(entries, func(e provider.Entry) bool { return e.Capacity == capacity })
		if at < 0 {
			t.Fatalf("capacity %s is not listed", capacity)
		}
		entry := entries[at]
		switch {
		case capacity == made.Capacity && entry.ID != machine.ID:
			t.Errorf("the machine %s on %s is listed as %+v", machine.ID, capacity, entry)
		case capacity != made.Capacity && entry.Availability == fleet.AvailabilityKnownUsed:
			t.Errorf("free capacity %s is listed as used", capacity)
		case entry.Invalid != "":
			t.Errorf("capacity %s is listed as invalid: %s", capacity, entry.Invalid)
		}
	}
}

func testListMachines(t *testing.T, h Harness) {
	t.Helper()
	machine := create(t, h, request(h.Free[1]))
	machines, err := h.Provider.ListMachines(t.Context())
	if err != nil {
		t.Fatalf("list the machines: %v", err)
	}
	checkList(t, machines)
	ids := func(entries []provider.Entry) (ids []fleet.ProviderID) {
		for _, e := range entries {
			ids = append(ids, e.ID)
		}
		return ids
	}
	if got, want := ids(machines), ids(provider.Machines(list(t, h))); !slices.Equal(got, want) || !slices.Contains(got, machine.ID) || slices.Contains(got, "") {
		t.Errorf("the machines are %q, those of the whole list %q, and %q was created", got, want, machine.ID)
	}
}

func testListOrder(t *testing.T, h Harness) {
	t.Helper()
	for _, capacity := range h.Free[:3] {
		create(t, h, request(capacity))
	}
	first := list(t, h)
	if h.Shuffle != nil {
		h.Shuffle()
	}
	for range 5 {
		again := list(t, h)
		checkList(t, again)
		if !slices.EqualFunc(first, again, func(a, b provider.Entry) bool { return a.ID == b.ID && a.Capacity == b.Capacity }) {
			t.Fatalf("two lists of the same backend differ: %d and %d entries", len(first), len(again))
		}
	}
}
