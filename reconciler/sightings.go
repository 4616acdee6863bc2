package reconciler

import (
	"sync"
	"time"

	"github.com/ironherd/ironherd/reconciler/etcd"
)

// sightings has since when overrides and the approval, each of which holds for a while, are in
// etcd. Each hangs on a lease of etcd, but whenever etcd's own leader changes, all its leases begin
// anew. So who acts on one takes it for over, too, when he has seen it for as long as it was to
// hold. Where its end is long past by his wall clock, some minutes do: the clock of a host that has
// just started may be hours ahead. Safe for concurrent use.
//
// Who only shows what others act on has seen nothing before, and goes by his wall clock alone: nil.
type sightings struct {
	mu    sync.Mutex
	since map[string]sighting // by key
}

// sighting is when a key was seen first with the text that it has. The text tells one word from the
// next; revisions do not, because those of an etcd that was restored begin again below.
type sighting struct {
	text string
	at   time.Time
}

// clockSlack is how far wall clocks may differ, and how long it may take until one is set.
const clockSlack = 5 * time.Minute

// longOver reports whether an end has passed whatever clock it is by. The zero time is no end.
func longOver(until time.Time) bool {
	return !until.IsZero() && time.Since(until) > clockSlack
}

// see takes note of what is in etcd.
func (s *sightings) see(snapshot etcd.Snapshot) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since == nil {
		s.since = map[string]sighting{}
	}
	for key, entry := range snapshot.Entries {
		if seen, known := s.since[key]; !known || seen.text != string(entry.Value) {
			s.since[key] = sighting{string(entry.Value), time.Now()}
		}
	}
}

// over reports whether what a key holds, and was to hold from one time to another, is over. The key
// has been seen.
func (s *sightings) over(key string, at, until time.Time) bool {
	if s == nil {
		return longOver(until)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	length, seen := until.Sub(at), time.Since(s.since[key].at)
	return length > 0 && seen >= length || longOver(until) && seen >= clockSlack
}
