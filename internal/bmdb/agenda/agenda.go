// Package agenda remembers, for those who claim, below which instant nothing is left to claim, and
// wakes them when something becomes due. It only saves time: what it forgets is found by the full
// scan of the agenda once in ScanEvery.
//
// A Head is what is known of one process at some providers. Its floor is where the next look at the
// agenda begins. A commit that makes something due lowers the floors above it at once. A floor
// rises after a look, and only if nothing below the new one was made due since that look began:
// whoever looks says how many changes there had been, and Raise does nothing when there are more by
// now.
package agenda

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// ScanEvery is how often a look begins at the bottom of the agenda instead of at the floor.
	ScanEvery = time.Minute
	// Slack is how far a floor stays behind the present: a transaction that began before a look may
	// commit, after it, what is due since then.
	Slack = 10 * time.Second
	// FirstPause is how soon a claimer whom nobody tells anything looks again after it found
	// something. Each look in vain doubles the pause, up to LongestPause.
	FirstPause = 100 * time.Millisecond
	// LongestPause is the longest time between two looks of such a claimer.
	LongestPause = 10 * time.Second
)

// Entry says where in the agenda something became due. Without a provider it is at any of them.
type Entry struct {
	Process  fleet.Process
	Provider fleet.ProviderName
}

// Heads are the heads of all scopes. Safe for concurrent use.
type Heads struct {
	mu    sync.Mutex
	heads map[string]*Head
	wakes map[fleet.Process]chan struct{}
}

// New returns heads of which nothing is known.
func New() *Heads {
	return &Heads{heads: make(map[string]*Head), wakes: make(map[fleet.Process]chan struct{})}
}

// Head is what is known of one scope: a process at some providers, or at all.
type Head struct {
	all       *Heads
	process   fleet.Process
	providers []fleet.ProviderName // sorted; none: all
	claiming  chan struct{}        // has an element while somebody claims

	// The rest is guarded by the mutex of all.
	floor   time.Time
	scanned time.Duration // reading of the clock at the last full scan
	changes int
	empty   int // looks in a row that found nothing
}

// Head returns the head of a process at these providers; none: at all. elapsed is the reading of
// the clock now: a scope that is new begins with a full scan.
func (h *Heads) Head(process fleet.Process, providers []fleet.ProviderName, elapsed time.Duration) *Head {
	providers = slices.Sorted(slices.Values(providers))
	key := fmt.Sprint(process, providers)
	h.mu.Lock()
	defer h.mu.Unlock()
	head, ok := h.heads[key]
	if !ok {
		head = &Head{
			all: h, process: process, providers: providers, claiming: make(chan struct{}, 1), scanned: elapsed - ScanEvery,
		}
		h.heads[key] = head
	}
	return head
}

// Covers says whether an entry of that provider is in the scope.
func (d *Head) Covers(provider fleet.ProviderName) bool {
	if len(d.providers) == 0 {
		return true
	}
	_, found := slices.BinarySearch(d.providers, provider)
	return found
}

// Lock waits until nobody else in this process claims in the scope: they are after the same
// entries. It returns what ends that.
func (d *Head) Lock(ctx context.Context) (unlock func(), err error) {
	select {
	case d.claiming <- struct{}{}:
		return func() { <-d.claiming }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another claim: %w", context.Cause(ctx))
	}
}

// Floor returns where a look begins (the zero time: at the bottom), and how many changes there have
// been, for Raise.
func (d *Head) Floor(elapsed time.Duration) (floor time.Time, changes int) {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	if elapsed-d.scanned >= ScanEvery {
		d.scanned, d.floor = elapsed, time.Time{}
	}
	return d.floor, d.changes
}

// Idle says whether the last look found nothing.
func (d *Head) Idle() bool {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	return d.empty > 0
}

// Found takes in whether a look found something.
func (d *Head) Found(found bool) {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	if d.empty++; found {
		d.empty = 0
	}
}

// Raise moves the floor to the instant before which a look left nothing. It does nothing if anybody
// made something due below since there were so many changes.
func (d *Head) Raise(floor time.Time, changes int) {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	if d.changes == changes && floor.After(d.floor) {
		d.floor = floor
	}
}

// Pause returns how long a claimer whom nobody tells anything waits before its next look.
func (d *Head) Pause() time.Duration {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	return min(FirstPause<<min(d.empty, 10), LongestPause)
}

// Wake returns the channel of a process, which gets a hint when something becomes due sooner. Hints
// are coalesced in it.
func (h *Heads) Wake(process fleet.Process) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.channel(process)
}

func (h *Heads) channel(process fleet.Process) chan struct{} {
	c, ok := h.wakes[process]
	if !ok {
		c = make(chan struct{}, 1)
		h.wakes[process] = c
	}
	return c
}

// Due takes in the entries that a commit, here or elsewhere, made due earlier than they were. It
// lowers the floors that are above them, and wakes who waits and has asked for such. now is the
// commit's database time; zero: not known. An entry that is due by then also counts as a change,
// which keeps a look that is under way from raising the floor past it. One that is due later does
// not count, because no look at about that time raises a floor so far.
func (h *Heads) Due(entries map[Entry]time.Time, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for entry, at := range entries {
		claimed, covered := false, false
		for _, d := range h.heads {
			if d.process != entry.Process {
				continue
			}
			claimed = true
			if entry.Provider != "" && !d.Covers(entry.Provider) {
				continue
			}
			covered = true
			if now.IsZero() || !at.After(now) {
				d.changes++
			}
			if at.Before(d.floor) {
				d.floor = at
			}
		}
		if covered || !claimed { // who claims nothing of the process waits for all of it
			h.signal(entry.Process)
		}
	}
}

// Forget takes in that anything may have become due.
func (h *Heads) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.heads {
		d.floor = time.Time{}
		d.changes++
	}
	for process := range h.wakes {
		h.signal(process)
	}
}

// signal wakes who waits for the process. h.mu is held.
func (h *Heads) signal(process fleet.Process) {
	select {
	case h.channel(process) <- struct{}{}:
	default:
	}
}
