package static

import (
	"bytes"
	"reflect"
	"slices"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// list is what one reading of a list says. It never changes.
type list struct {
	data []byte
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
	l := &list{data: data, entries: entries, byID: make(map[fleet.ProviderID]int, len(entries))}
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

// holds reports whether the list was read from this very data; nil was not.
func (l *list) holds(data []byte) bool { return l != nil && bytes.Equal(l.data, data) }

// same reports whether both lists say the same; nil says nothing.
func (l *list) same(other *list) bool {
	return l != nil && other != nil && (l == other || reflect.DeepEqual(l.entries, other.entries))
}
