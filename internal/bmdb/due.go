package bmdb

import (
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// fullScanEvery is how often a claim looks below its floor (rule 2).
	fullScanEvery = time.Minute
	// floorSlack is how far a floor stays behind, for transactions of others that have not been committed yet.
	floorSlack = 10 * time.Second
)

// due remembers, per process and provider, below which due_at there is nothing left to claim, and what claimers were last told to
// wait for. It is only about speed: a floor is lowered by every commit of this process and ignored once a minute.
type due struct {
	mu    sync.Mutex
	heads map[headKey]*head
	wakes map[fleet.Process]chan struct{}
}

type headKey struct {
	process  fleet.Process
	provider fleet.ProviderName
}

type head struct {
	floor time.Time
	// scanned is the clock's reading at the last full scan.
	scanned time.Duration
	// next is what the last claim was told; zero: nothing is due ever.
	next time.Time
}

func newDue() *due {
	return &due{heads: make(map[headKey]*head), wakes: make(map[fleet.Process]chan struct{})}
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

// floor returns where a scan starts; once a minute that is the bottom.
func (d *due) floor(k headKey, elapsed time.Duration) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, ok := d.heads[k]
	if !ok {
		h = &head{scanned: elapsed - fullScanEvery}
		d.heads[k] = h
	}
	if elapsed-h.scanned >= fullScanEvery {
		h.scanned = elapsed
		h.floor = time.Time{}
	}
	return h.floor
}

// raise says that at the instant of the scan nothing claimable was left below the new floor.
func (d *due) raise(k headKey, floor time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h, ok := d.heads[k]; ok && floor.Add(-floorSlack).After(h.floor) {
		h.floor = floor.Add(-floorSlack)
	}
}

// told remembers what a claimer was told to wait for.
func (d *due) told(k headKey, next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h, ok := d.heads[k]; ok {
		h.next = next
	}
}

// committed is called after a commit with the rows that it made due earlier than they were.
func (d *due) committed(rows map[headKey]time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, at := range rows {
		h, ok := d.heads[k]
		if ok && at.Before(h.floor) {
			h.floor = at
		}
		if ok && !h.next.IsZero() && !at.Before(h.next) {
			continue // whoever waits, waits for something earlier
		}
		select {
		case d.channel(k.process) <- struct{}{}:
		default:
		}
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
		h.floor, h.next = time.Time{}, time.Time{}
	}
	for _, c := range d.wakes {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
