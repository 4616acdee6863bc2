package static

import (
	"bytes"
	"reflect"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// list is what one reading of a list says. It never changes.
type list struct {
	data []byte
	// entries in the order of Provider.List.
	entries []provider.Entry
	byID    map[fleet.ProviderID]int
	// newer is what was fetched since and does not count yet; nil: nothing was.
	newer *list
	// asOf is when it was fetched where a newer one might have been by now; else zero.
	asOf time.Time
}

// newList reads a list; name is how errors name it. One of the known lists is returned where that
// was read from this very data. An error is one of the whole list, of kind Invalid.
func newList(name string, data []byte, known ...*list) (*list, error) {
	for _, l := range known {
		if l != nil && bytes.Equal(l.data, data) {
			return l, nil
		}
	}
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

// saysNew reports whether what was fetched since says something else of a host.
func (l *list) saysNew(id fleet.ProviderID) bool {
	if l.newer == nil {
		return false
	}
	was, there := l.get(id)
	is, stays := l.newer.get(id)
	return there != stays || !sameEntry(was, is)
}

// same reports whether both lists say the same, in whatever order; nil says nothing. Of a host that
// cannot be used a list says that it is there, and no more: the reason names lines, and the rest is
// that of the first one where a host is listed twice.
func (l *list) same(other *list) bool {
	if l == nil || other == nil {
		return false
	}
	return l == other || slices.EqualFunc(l.entries, other.entries, sameEntry)
}

func sameEntry(a, b provider.Entry) bool {
	if a.Invalid != "" && b.Invalid != "" {
		return a.ID == b.ID
	}
	return reflect.DeepEqual(a, b)
}
