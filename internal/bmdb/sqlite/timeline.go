package sqlite

import (
	"sync"
	"time"
)

// timeline is database time: the time of day when the engine was opened, advanced by a clock that
// nobody can set, and never behind an instant that the database has already seen.
type timeline struct {
	mu   sync.Mutex
	base time.Time
	last time.Time
}

// notBefore moves the timeline forward, if need be, so that it continues at an instant that was
// stored.
func (t *timeline) notBefore(stored time.Time, elapsed time.Duration) (moved time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	moved = stored.Sub(t.base.Add(elapsed))
	if moved <= 0 {
		return 0
	}
	t.base = t.base.Add(moved)
	return moved
}

// set makes the timeline go on from an instant, wherever it was.
func (t *timeline) set(to time.Time, elapsed time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base, t.last = to.Add(-elapsed), time.Time{}
}

func (t *timeline) at(elapsed time.Duration) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.base.Add(elapsed).Truncate(time.Microsecond).Round(0)
	if now.Before(t.last) {
		now = t.last
	}
	t.last = now
	return now
}

// now is database time.
func (e *Engine) now() time.Time { return e.time.at(e.clock.Elapsed()) }
