package trust

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	errExpired = errors.New("expired")
	errClosed  = errors.New("closed")
)

const (
	interval = 10 * time.Second
	margin   = 3 * time.Second
)

// machine is a host in a bubble that can be suspended: its boot-time clock then runs ahead of the
// bubble's, which stands for the monotonic clock.
type machine struct {
	began     time.Time
	suspended atomic.Int64
}

func newMachine() *machine { return &machine{began: time.Now()} }

// suspend lets time pass that no timer sees.
func (m *machine) suspend(d time.Duration) { m.suspended.Add(int64(d)) }

// clock returns a clock of the machine, which was booted an hour before it was made.
func (m *machine) clock() *Clock {
	return newClock(func() time.Duration {
		return time.Hour + time.Since(m.began) + time.Duration(m.suspended.Load())
	})
}

func open(t *testing.T, clock *Clock) *Window {
	t.Helper()
	w := NewWindow(t.Context(), clock, clock.Elapsed(), Options{Interval: interval, Margin: margin, Expired: errExpired})
	if !w.Open() {
		t.Fatal("a new window is closed")
	}
	return w
}

// cancelled demands that a guarded context is done already, with that cause.
func cancelled(t *testing.T, guarded context.Context, cause error) {
	t.Helper()
	if guarded.Err() == nil || !errors.Is(context.Cause(guarded), cause) {
		t.Errorf("guarded context: %v, want it cancelled with %q", context.Cause(guarded), cause)
	}
}

func TestWindowClosesExactly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		margin, want time.Duration
	}{
		"margin":     {margin, 7 * time.Second},
		"no margin":  {0, 8 * time.Second},
		"almost all": {interval - 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clock := NewClock()
				time.Sleep(time.Minute) // a window need not be as old as its clock
				began, start := time.Now(), clock.Elapsed()
				w := NewWindow(t.Context(), clock, start, Options{Interval: interval, Margin: test.margin, Expired: errExpired})
				if left := w.Left(); left != test.want {
					t.Errorf("%s are left, want %s", left, test.want)
				}
				guarded, release := w.Guard(t.Context())
				defer release()
				<-guarded.Done()
				if took := time.Since(began); took != test.want {
					t.Errorf("closed after %s, want %s", took, test.want)
				}
				cancelled(t, guarded, errExpired)
			})
		})
	}
}

// TestExtensionCountsFromItsStart: not from its reply. One that is older than the last moves
// nothing back.
func TestExtensionCountsFromItsStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := NewClock()
		began := time.Now()
		w := open(t, clock)
		time.Sleep(4 * time.Second)
		start := clock.Elapsed()
		time.Sleep(2 * time.Second) // on the wire
		if !w.Extend(start) || !w.Extend(0) {
			t.Error("an extension in time found the window closed")
		}
		<-w.Done()
		if took := time.Since(began); took != 11*time.Second {
			t.Errorf("closed after %s, want 11s", took)
		}
		if !errors.Is(w.Cause(), errExpired) || w.Open() || w.Left() != 0 {
			t.Errorf("cause %v, open %t, left %s", w.Cause(), w.Open(), w.Left())
		}
	})
}

// TestClosedForGood: neither an extension nor another cause changes a window that is closed.
func TestClosedForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := NewClock()
		w := open(t, clock)
		if w.Cause() != nil || w.Context().Err() != nil {
			t.Errorf("an open window is over: %v", w.Cause())
		}
		guarded, release := w.Guard(t.Context())
		defer release()
		w.Close(errClosed)
		cancelled(t, guarded, errClosed)
		cancelled(t, w.Context(), errClosed)
		w.Close(errors.New("another"))
		if w.Extend(clock.Elapsed()) || w.Open() || w.Left() != 0 {
			t.Error("a closed window was opened again")
		}
		time.Sleep(interval)
		if w.Cause() != errClosed { //nolint:errorlint // the very cause
			t.Errorf("cause %v", w.Cause())
		}
		again, release := w.Guard(t.Context())
		defer release()
		cancelled(t, again, errClosed)
	})
}

// TestGuard: a guarded context ends with its parent and with its release, and keeps neither the
// window nor other guards from anything.
func TestGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		w := open(t, NewClock())
		parent, stop := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
		first, release := w.Guard(parent)
		defer release()
		second, release := w.Guard(t.Context())
		release()
		cancelled(t, second, context.Canceled)
		if first.Err() != nil || first.Value(key{}) != "value" {
			t.Errorf("%v, value %v", first.Err(), first.Value(key{}))
		}
		why := errors.New("the parent's")
		stop(why)
		cancelled(t, first, why)
		if len(w.life.guards) != 1 {
			t.Errorf("the window keeps %d guards, one is not released", len(w.life.guards))
		}
		if !w.Open() {
			t.Error("the window closed")
		}
		w.Close(errClosed)
		release()
	})
}

// TestWindowOutlivesItsContext: whoever gets a lease under a timeout holds it after the timeout.
func TestWindowOutlivesItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := NewClock()
		ctx, cancel := context.WithCancel(t.Context())
		w := NewWindow(ctx, clock, clock.Elapsed(), Options{Interval: interval, Expired: errExpired})
		cancel()
		synctest.Wait()
		if !w.Open() {
			t.Errorf("closed: %v", w.Cause())
		}
	})
}

// TestSuspensionClosesTheWindow: the first look after the machine has woken up finds it closed,
// whichever method looks, before any timer has run; what is guarded is cancelled by then.
func TestSuspensionClosesTheWindow(t *testing.T) {
	t.Parallel()
	for name, closed := range map[string]func(*Window, *Clock) bool{
		"open":   func(w *Window, _ *Clock) bool { return !w.Open() },
		"left":   func(w *Window, _ *Clock) bool { return w.Left() == 0 },
		"extend": func(w *Window, c *Clock) bool { return !w.Extend(c.Elapsed()) },
		"late":   func(w *Window, c *Clock) bool { return !w.Extend(c.Elapsed() - time.Second) },
		"close":  func(w *Window, _ *Clock) bool { w.Close(errClosed); return true },
		"cause":  func(w *Window, _ *Clock) bool { return errors.Is(w.Cause(), errExpired) },
		"guard": func(w *Window, _ *Clock) bool {
			guarded, release := w.Guard(context.Background())
			defer release()
			return guarded.Err() != nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMachine()
				clock := m.clock()
				w := open(t, clock)
				guarded, release := w.Guard(t.Context())
				defer release()
				time.Sleep(time.Second)
				m.suspend(5 * time.Second)
				if !w.Open() {
					t.Error("closed a second too early")
				}
				m.suspend(time.Second)
				if !closed(w, clock) {
					t.Error("the window is open, with all of its time slept away")
				}
				cancelled(t, guarded, errExpired)
			})
		})
	}
}

// TestWakingCancelsSoon: nobody asks, and the timer had long to go.
func TestWakingCancelsSoon(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ margin, within time.Duration }{
		"half a second":   {margin, 500 * time.Millisecond},
		"half the margin": {200 * time.Millisecond, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMachine()
				clock := m.clock()
				w := NewWindow(t.Context(), clock, clock.Elapsed(), Options{Interval: interval, Margin: test.margin, Expired: errExpired})
				guarded, release := w.Guard(t.Context())
				defer release()
				time.Sleep(time.Second + time.Millisecond)
				m.suspend(time.Hour)
				woke := time.Now()
				<-guarded.Done()
				if took := time.Since(woke); took > test.within {
					t.Errorf("cancelled %s after waking up, want at most %s", took, test.within)
				}
				cancelled(t, guarded, errExpired)
			})
		})
	}
}
