package bmdb

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// fullScanEvery is how often a claim looks below its floor (rule 2).
	fullScanEvery = time.Minute
	// floorSlack is how far a floor stays behind the present, and behind what was left because others
	// have it, for transactions of theirs that have not been committed yet.
	floorSlack = 10 * time.Second
)

// due remembers, per process and set of providers, below which due_at there is nothing left to
// claim, and what claimers were last told to wait for. It is only about speed: a floor is lowered
// by every commit of this process and by what others tell, and ignored once a minute.
type due struct {
	mu    sync.Mutex
	heads map[scope]*head
	wakes map[fleet.Process]chan struct{}
}

// headKey is where a row of the agenda belongs; the provider may be anyProvider.
type headKey struct {
	process  fleet.Process
	provider fleet.ProviderName
}

// scope is what a claim asks for: a process at some providers, or at all ("").
type scope struct {
	process   fleet.Process
	providers string
}

func scopeOf(process fleet.Process, providers []fleet.ProviderName) scope {
	names := make([]string, len(providers))
	for i, p := range providers {
		names[i] = string(p)
	}
	slices.Sort(names)
	return scope{process, strings.Join(names, "\n")}
}

// covers says whether a row of that provider is in the scope.
func (s scope) covers(provider fleet.ProviderName) bool {
	if s.providers == "" {
		return true
	}
	for name := range strings.SplitSeq(s.providers, "\n") {
		if name == string(provider) {
			return true
		}
	}
	return false
}

type head struct {
	floor time.Time
	// scanned is the clock's reading at the last full scan.
	scanned time.Duration
	// next is what the last claim was told, while that is known; zero: nothing is due ever.
	next  time.Time
	known bool
	// changes counts what was committed or heard, and latest are the instants of the last of it: what
	// was read before does not say anything about what changed after.
	changes int
	latest  []time.Time
	// empty counts the claims in a row that found nothing.
	empty int
	// others is how many more runs of rows than its own a claim looks at, because other control planes
	// are after the same.
	others int
	// turn is had by who claims: two of one process that are after the same rows need not meet at the
	// database.
	turn chan struct{}
}

// maxCrowd bounds how much farther a claim looks because of others.
const maxCrowd = 31

// crowd is how many more runs of rows than its own a claim looks at.
func (d *due) crowd(k scope) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.head(k, 0).others
}

// met takes in that so many of the candidates were somebody else's by the time that a claim came to
// them.
func (d *due) met(k scope, missed, candidates int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch h := d.head(k, 0); {
	case 2*missed > candidates:
		h.others = min(2*h.others+1, maxCrowd)
	case 8*missed < candidates:
		h.others /= 2
	}
}

// turn waits until nobody else of this process claims the same, and returns what ends the turn.
func (d *due) turn(ctx context.Context, k scope, elapsed time.Duration) (done func(), err error) {
	d.mu.Lock()
	turn := d.head(k, elapsed).turn
	d.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another claim: %w", context.Cause(ctx))
	}
}

// head returns what is known of a scope. One that is new has never been scanned. d.mu is held.
func (d *due) head(k scope, elapsed time.Duration) *head {
	h, ok := d.heads[k]
	if !ok {
		h = &head{scanned: elapsed - fullScanEvery, turn: make(chan struct{}, 1)}
		d.heads[k] = h
	}
	return h
}

// impatient is how soon a claimer whom nobody tells anything looks again after it found something;
// each look in vain doubles it, up to patient.
const (
	impatient = 100 * time.Millisecond
	patient   = 10 * time.Second
)

// patience returns how long to wait before the next look, and remembers how this one went.
func (d *due) patience(k scope, found bool) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, ok := d.heads[k]
	if !ok || found {
		if ok {
			h.empty = 0
		}
		return impatient
	}
	h.empty++
	return min(impatient<<min(h.empty, 10), patient)
}

// maxLatest bounds how many changes a head remembers.
const maxLatest = 256

func (h *head) change(at time.Time) {
	h.changes++
	if h.latest = append(h.latest, at); len(h.latest) > maxLatest {
		h.latest = slices.Delete(h.latest, 0, len(h.latest)-maxLatest/2)
	}
}

// lowestSince returns the earliest of the changes since there were so many; known is false when
// that is too long ago.
func (h *head) lowestSince(changes int, floor time.Time) (lowest time.Time, known bool) {
	since := h.changes - changes
	if since > len(h.latest) {
		return time.Time{}, false
	}
	lowest = floor
	for _, at := range h.latest[len(h.latest)-since:] {
		if at.Before(lowest) {
			lowest = at
		}
	}
	return lowest, true
}

func newDue() *due {
	return &due{heads: make(map[scope]*head), wakes: make(map[fleet.Process]chan struct{})}
}

func (d *due) wake(process fleet.Process) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.channel(process)
}

func (d *due) channel(process fleet.Process) chan struct{} {
	c, ok := d.wakes[process]
	if !ok {
		c = make(chan struct{}, 1)
		d.wakes[process] = c
	}
	return c
}

// floor returns where a scan starts, which once a minute is the bottom, and the count of changes so
// far.
func (d *due) floor(k scope, elapsed time.Duration) (floor time.Time, changes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.head(k, elapsed)
	if elapsed-h.scanned >= fullScanEvery {
		h.scanned = elapsed
		h.floor, h.known = time.Time{}, false
	}
	return h.floor, h.changes
}

// raise says that nothing claimable was left below the new floor when there had been so many
// changes. What changed since then stays above it.
func (d *due) raise(k scope, floor time.Time, changes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, ok := d.heads[k]
	if !ok {
		return
	}
	floor, ok = h.lowestSince(changes, floor)
	if ok && floor.After(h.floor) {
		h.floor = floor
	}
}

// next returns what the last claimer was told to wait for, if that still holds.
func (d *due) next(k scope, now time.Time) (next time.Time, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, ok := d.heads[k]
	if !ok || !h.known || !h.next.IsZero() && !h.next.After(now) {
		return time.Time{}, false
	}
	return h.next, true
}

// told remembers what a claimer is about to be told to wait for, unless something changed since it
// was read, and returns what it is to be told: nobody was woken for a change that came while it
// claimed if it was believed to wait for something earlier still.
func (d *due) told(k scope, next time.Time, changes int, now time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, ok := d.heads[k]
	if !ok {
		return next
	}
	if h.next, h.known = next, h.changes == changes; h.known {
		return next
	}
	if next.IsZero() {
		next = h.latest[len(h.latest)-1]
	}
	if next, ok = h.lowestSince(changes, next); !ok || next.IsZero() {
		return now
	}
	return next
}

// forgetNext makes the next claim ask anew what to wait for.
func (d *due) forgetNext(k scope) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h, ok := d.heads[k]; ok {
		h.known = false
	}
}

// committed is called after a commit, here or elsewhere, with the rows that it made due earlier
// than they were.
func (d *due) committed(rows map[headKey]time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for row, at := range rows {
		waits, seen := false, false
		for k, h := range d.heads {
			if k.process != row.process || row.provider != anyProvider && !k.covers(row.provider) {
				continue
			}
			seen = true
			h.change(at)
			if at.Before(h.floor) {
				h.floor = at
			}
			// else whoever waits, waits for something earlier
			if !h.known || h.next.IsZero() || at.Before(h.next) {
				waits = true
				h.next = at
			}
		}
		if waits || !seen {
			d.signal(row.process)
		}
	}
}

// signal wakes who waits for the process. d.mu is held.
func (d *due) signal(process fleet.Process) {
	select {
	case d.channel(process) <- struct{}{}:
	default:
	}
}

// heard is called with what other processes tell; nil means that anything may have become due.
func (d *due) heard(hints []Hint) {
	if hints != nil {
		rows := make(map[headKey]time.Time, len(hints))
		for _, h := range hints {
			rows[headKey{h.Process, h.Provider}] = h.DueAt
		}
		d.committed(rows)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.heads {
		h.floor, h.known = time.Time{}, false
		h.change(time.Time{})
	}
	for process := range d.wakes {
		d.signal(process)
	}
}
