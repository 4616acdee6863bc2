package bmdb

import (
	"context"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// trust is the window in which a holder may believe in its session (rule 5):
//
//	start of the last successful extension + interval − margin
//
// by a clock that also counts while the machine is suspended. When it ends it ends for good, and
// everything under guard is cancelled.
type trust struct {
	clock *Clock
	// slice is the longest that the timer sleeps: timers do not run while a machine is suspended.
	slice time.Duration
	lost  context.Context //nolint:containedctx // done when the window has ended
	end   context.CancelCauseFunc

	mu    sync.Mutex
	until time.Duration // reading of the clock
	timer *time.Timer
}

func newTrust(ctx context.Context, clock *Clock, slice time.Duration) *trust {
	t := &trust{clock: clock, slice: slice}
	t.lost, t.end = context.WithCancelCause(context.WithoutCancel(ctx))
	return t
}

// extend moves the end of the window; never back.
func (t *trust) extend(until time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = max(t.until, until)
	if t.timer == nil {
		t.timer = time.AfterFunc(t.sleep(), t.look)
	}
}

// sleep returns how long until the next look. t.mu is held.
func (t *trust) sleep() time.Duration {
	left := t.until - t.clock.Elapsed()
	if !t.clock.fake {
		left = min(left, t.slice)
	}
	return left
}

func (t *trust) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost.Err() != nil {
		return
	}
	if t.clock.Elapsed() >= t.until {
		t.end(fleet.ErrLeaseLost)
		return
	}
	t.timer.Reset(t.sleep())
}

// open says whether the window is open, by the clock: also when the timer has not run yet.
func (t *trust) open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost.Err() == nil && t.clock.Elapsed() >= t.until {
		t.end(fleet.ErrLeaseLost)
	}
	return t.lost.Err() == nil
}

// lose ends the window.
func (t *trust) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(fleet.ErrLeaseLost)
	if t.timer != nil {
		t.timer.Stop()
	}
}

// guard returns ctx, cancelled with cause ErrLeaseLost when the window ends.
func (t *trust) guard(ctx context.Context) (context.Context, context.CancelFunc) {
	guarded, cancel := context.WithCancelCause(ctx)
	if !t.open() {
		cancel(fleet.ErrLeaseLost)
	}
	stop := context.AfterFunc(t.lost, func() { cancel(fleet.ErrLeaseLost) })
	return guarded, func() {
		stop()
		cancel(context.Canceled)
	}
}
