package resources

import (
	"math/rand/v2"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// The pause before an object is tried again grows from the first to the second.
const (
	minPause = 100 * time.Millisecond
	maxPause = 30 * time.Second
)

// maxAbortedPause is the longest pause after a pass that could not go on.
const maxAbortedPause = 5 * time.Second

// try is what is known of an object that failed.
type try struct {
	attempts int
	until    time.Time
	reason   string
	// hash of what was wanted, and version of what was there: if either is another now, it is tried at
	// once.
	hash, version string
}

// tries are the objects that failed when they were tried last.
type tries map[object.Key]try

// due reports whether an object may be tried now.
func (t tries) due(key object.Key, hash, version string) bool {
	last, failed := t[key]
	return !failed || last.hash != hash || last.version != version || !time.Now().Before(last.until)
}

// failed takes a failure, and reports whether its reason is news.
func (t tries) failed(key object.Key, hash, version, reason string) bool {
	last := t[key]
	next := try{attempts: last.attempts + 1, reason: reason, hash: hash, version: version}
	if last.hash != hash {
		next.attempts = 1
	}
	pause := min(minPause<<min(next.attempts-1, 20), maxPause)
	next.until = time.Now().Add(pause - rand.N(pause/4))
	t[key] = next
	return last.reason != reason
}

// next is how long it takes until one of them is due; false: there is none.
func (t tries) next() (time.Duration, bool) {
	var first time.Time
	for _, each := range t {
		if first.IsZero() || each.until.Before(first) {
			first = each.until
		}
	}
	return max(time.Until(first), minPause), !first.IsZero()
}

// keepOnly forgets objects that are none of these.
func (t tries) keepOnly(keys func(object.Key) bool) {
	for key := range t {
		if !keys(key) {
			delete(t, key)
		}
	}
}

// repairs are the objects in which drift has been repaired. Whoever fights with us over an object
// is answered at once a few times, and then ever less often.
type repairs map[object.Key]repair

type repair struct {
	n    int
	last time.Time
}

const (
	freeRepairs  = 5
	repairsReset = time.Minute
)

// until is when the next repair may be.
func (r repair) until() time.Time {
	if r.n < freeRepairs {
		return r.last
	}
	return r.last.Add(min(minPause<<min(r.n-freeRepairs, 20), maxPause))
}

// add takes a repair.
func (r repairs) add(key object.Key) {
	now := time.Now()
	for other, each := range r {
		if now.Sub(each.last) > repairsReset {
			delete(r, other)
		}
	}
	r[key] = repair{n: r[key].n + 1, last: now}
}

// tooOften reports whether an object has been repaired so often of late that the next time must
// wait.
func (r repairs) tooOften(key object.Key) bool { return time.Now().Before(r[key].until()) }

// next is how long it takes until a repair that must wait may be done; false: none must.
func (r repairs) next() (time.Duration, bool) {
	first, any := time.Duration(0), false
	for _, each := range r {
		if d := time.Until(each.until()); d > 0 && (!any || d < first) {
			first, any = d, true
		}
	}
	return first, any
}
