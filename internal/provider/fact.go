package provider

import (
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Provided returns what the entry says as a fact, seen at now. previous is the fact that it
// replaces; nil: there is none.
func (e Entry) Provided(previous *fleet.Provided, now time.Time) fleet.Provided {
	fact := fleet.Provided{
		At: now, CreatedAt: now, Status: e.Status, Detail: e.Detail, Hostname: e.Hostname, Address: e.Address,
		Location: e.Location, Labels: e.Labels, Capacity: e.Capacity, HostKeys: e.HostKeys,
	}
	if previous != nil {
		fact.CreatedAt, fact.ActiveAt = previous.CreatedAt, previous.ActiveAt
		if len(fact.HostKeys) == 0 { // a list may say less than a direct question does
			fact.HostKeys = previous.HostKeys
		}
	}
	if fact.ActiveAt == nil && e.Status == fleet.ProviderStatusActive {
		fact.ActiveAt = &now
	}
	return fact
}

// SameFact reports whether two facts say the same, whenever they were seen.
func SameFact(a, b fleet.Provided) bool {
	return a.Status == b.Status && a.Detail == b.Detail && a.Hostname == b.Hostname && a.Address == b.Address &&
		a.Location == b.Location && slices.Equal(a.Labels, b.Labels) && a.Capacity == b.Capacity && slices.Equal(a.HostKeys, b.HostKeys) &&
		(a.ActiveAt == nil) == (b.ActiveAt == nil)
}

// Gone is the fact of a machine that its provider does not have any more. previous is nil where the
// provider has never said anything of it.
func Gone(previous *fleet.Provided) fleet.Provided {
	var fact fleet.Provided
	if previous != nil {
		fact = *previous
	}
	fact.Status, fact.Detail = fleet.ProviderStatusGone, ""
	return fact
}
