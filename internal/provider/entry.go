package provider

import (
	"cmp"
	"slices"
)

// CompareEntries orders entries by ID, and free capacity by the ID of the capacity; it is the order
// of List.
func CompareEntries(a, b Entry) int {
	return cmp.Or(cmp.Compare(orderID(a), orderID(b)), cmp.Compare(a.Capacity, b.Capacity))
}

// Machines removes the entries without an ID. It changes entries.
func Machines(entries []Entry) []Entry {
	return slices.DeleteFunc(entries, func(e Entry) bool { return e.ID == "" })
}

func orderID(entry Entry) string {
	if entry.ID != "" {
		return string(entry.ID)
	}
	return string(entry.Capacity)
}
