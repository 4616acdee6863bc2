package provider

import (
	"cmp"
)

// CompareEntries orders entries by ID, and free capacity by the ID of the capacity; it is the order
// of List.
func CompareEntries(a, b Entry) int {
	return cmp.Or(cmp.Compare(orderID(a), orderID(b)), cmp.Compare(a.Capacity, b.Capacity))
}

func orderID(entry Entry) string {
	if entry.ID != "" {
		return string(entry.ID)
	}
	return string(entry.Capacity)
}
