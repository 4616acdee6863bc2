package reconciler

import (
	"sync"
	"time"

	"github.com/ironherd/ironherd/reconciler/etcd"
)

// words knows since when a person's words, which hold for a while, are in etcd: overrides and the
// approval. Each hangs on a lease of etcd, but whenever etcd's own leader changes, all its leases
// begin anew. So who acts on a word takes it for over, too, when he has seen it for as long as it
// was to hold. Where its end is long past by his wall clock, some minutes do: the clock of a host
// that has just started may be hours ahead. Safe for concurrent use.
//
// Who only shows what others act on has seen nothing before, and goes by his wall clock alone: nil.
type words struct {
	mu    sync.Mutex
	since map[string]sighting // by key
}

// sighting is when a version of a key was seen first.
type sighting struct {
	revision int64
	at       time.Time
}

// wordSlack is how far wall clocks may differ, and how long it may take until one is set.
const wordSlack = 5 * time.Minute

// longOver reports whether a word's end has passed whatever clock it is by. The zero time is no
// end.
func longOver(until time.Time) bool {
	return !until.IsZero() && time.Since(until) > wordSlack
}

// see takes note of what is in etcd.
func (w *words) see(s etcd.Snapshot) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since == nil {
		w.since = map[string]sighting{}
	}
	for key, entry := range s.Entries {
		if seen := w.since[key]; entry.Revision > seen.revision {
			w.since[key] = sighting{entry.Revision, time.Now()}
		}
	}
}

// over reports whether the word of a key is over that was to hold from one time to another. The key
// has been seen.
func (w *words) over(key string, at, until time.Time) bool {
	if w == nil {
		return longOver(until)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	length, seen := until.Sub(at), time.Since(w.since[key].at)
	return length > 0 && seen >= length || longOver(until) && seen >= wordSlack
}
