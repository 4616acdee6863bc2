package trust

import (
	"context"
	"sync"
	"time"
)

// Options say how long an extension is trusted.
type Options struct {
	// Interval is how long the lease lasts from each extension, as the grantor counts it.
	Interval time.Duration
	// Margin is how long before the end of the interval the window closes. Zero: Interval/5.
	Margin time.Duration
	// Expired is the cause when the window closes because nothing extended it in time.
	Expired error
}

// Window is the time in which the holder of a lease may act on it. Safe for concurrent use.
type Window struct {
	clock   *Clock
	length  time.Duration // from the start of an extension
	expired error
	// slice is the longest that the timer sleeps: timers do not run while a machine is suspended.
	slice time.Duration
	// life ends when the window closes.
	life *Life

	mu    sync.Mutex
	until time.Duration // reading of the clock
	timer Timer
}

// NewWindow returns the window of a lease that was granted just now. start is what the clock said
// before the request for it was sent. ctx gives the window its values; its end does not close the
// window. A caller that is done with the lease closes the window; otherwise it closes by itself.
func NewWindow(ctx context.Context, clock *Clock, start time.Duration, opts Options) *Window {
	if opts.Margin <= 0 {
		opts.Margin = opts.Interval / 5
	}
	w := &Window{
		clock: clock, length: opts.Interval - opts.Margin, expired: opts.Expired, slice: min(opts.Margin/2, time.Second/2),
		life: NewLife(context.WithoutCancel(ctx)),
	}
	w.until = start + w.length
	w.mu.Lock() // the timer may fire at once
	defer w.mu.Unlock()
	w.timer = clock.AfterFunc(w.pause(), w.look)
	return w
}

// Extend takes in that the lease was extended by a request before which the clock said start, and
// returns whether the window is open. A window that is closed stays closed: the reply came too
// late.
func (w *Window) Extend(start time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.judge() {
		return false
	}
	w.until = max(w.until, start+w.length)
	return true
}

// Open returns whether the window is open: whether an effect may start.
func (w *Window) Open() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judge()
}

// Left returns for how long the window is open if nothing extends it; zero when it is closed.
func (w *Window) Left() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.judge() {
		return 0
	}
	return max(w.until-w.clock.Elapsed(), 0)
}

// Close closes the window. It does nothing to one that is closed: only the first cause counts.
func (w *Window) Close(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.judge() {
		w.shut(cause)
	}
}

// Guard returns ctx, cancelled when the window closes, with the cause of that. The caller calls the
// function when it no longer needs the context.
func (w *Window) Guard(ctx context.Context) (context.Context, context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge()
	return w.life.Guard(ctx)
}

// Context returns a context that is done when the window is closed, with the cause of that. Unlike
// Open it learns of a suspension only when the timer does.
func (w *Window) Context() context.Context { return w.life.over }

// Done is closed when the window is, as Context says.
func (w *Window) Done() <-chan struct{} { return w.life.over.Done() }

// Cause returns why the window is closed; nil while it is open.
func (w *Window) Cause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge()
	return context.Cause(w.life.over)
}

// look is what the timer runs.
func (w *Window) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.judge() {
		w.timer.Reset(w.pause())
	}
}

// pause returns how long the timer sleeps. w.mu is held.
func (w *Window) pause() time.Duration {
	left := w.until - w.clock.Elapsed()
	if w.clock.boot != nil {
		left = min(left, w.slice)
	}
	return left
}

// judge closes the window if its end is reached, and returns whether it is open. w.mu is held.
func (w *Window) judge() bool {
	if w.life.over.Err() == nil && w.clock.Elapsed() >= w.until {
		w.shut(w.expired)
	}
	return w.life.over.Err() == nil
}

// shut closes the window and cancels the guards before w.mu is released, so that whoever learns
// that the window is closed knows them cancelled. w.mu is held.
func (w *Window) shut(cause error) {
	w.life.End(cause)
	w.timer.Stop()
}
