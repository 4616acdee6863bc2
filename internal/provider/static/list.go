package static

import (
	"slices"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// list is what one reading of a list says. It never changes.
type list struct {
	// entries in the order of Provider.List.
	entries []provider.Entry
	byID    map[fleet.ProviderID]int
}

// newList reads a list; name is how errors name it. An error is one of the whole list, of kind
// Invalid.
func newList(name string, data []byte) (*list, error) {
	entries, _, err := parse(data)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "host list %s: %w", name, err)
	}
	slices.SortStableFunc(entries, provider.CompareEntries)
	l := &list{entries: entries, byID: make(map[fleet.ProviderID]int, len(entries))}
	for i, entry := range entries {
		l.byID[entry.ID] = i
	}
	return l, nil
}

// get returns the host of an ID that is not empty.
func (l *list) get(id fleet.ProviderID) (provider.Entry, bool) {
	i, there := l.byID[id]
	if !there {
		return provider.Entry{}, false
	}
	return l.entries[i], true
}

// hasAll reports whether every host of the other list is on this one.
func (l *list) hasAll(other *list) bool {
	for id := range other.byID {
		if _, there := l.byID[id]; !there {
			return false
		}
	}
	return true
}
