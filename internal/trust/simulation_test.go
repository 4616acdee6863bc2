package trust

import (
	"context"
	"testing"
	"time"
)

// handmade is time that only the test lets pass.
type handmade struct {
	now   time.Time
	calls []*handmadeCall
}

type handmadeCall struct {
	owner *handmade
	at    time.Time
	do    func()
}

func (h *handmade) Now() time.Time { return h.now }

func (h *handmade) AfterFunc(d time.Duration, f func()) Timer {
	c := &handmadeCall{h, h.now.Add(d), f}
	h.calls = append(h.calls, c)
	return c
}

func (h *handmade) Sleep(ctx context.Context, d time.Duration) bool {
	h.pass(d)
	return ctx.Err() == nil
}

// pass lets time pass, and calls what is due.
func (h *handmade) pass(d time.Duration) {
	h.now = h.now.Add(d)
	for _, c := range h.calls {
		if do := c.do; do != nil && !c.at.After(h.now) {
			c.do = nil
			do()
		}
	}
}

func (c *handmadeCall) Stop() bool {
	was := c.do != nil
	c.do = nil
	return was
}

func (c *handmadeCall) Reset(d time.Duration) bool {
	do := c.do
	c.Stop()
	c.owner.AfterFunc(d, do)
	return do != nil
}

// TestASimulatedClock: a window closes by simulated time, and what it guards is cancelled when that
// has passed, however long it really takes.
func TestASimulatedClock(t *testing.T) {
	t.Parallel()
	time0 := time.Date(2026, 1, 5, 6, 0, 0, 0, time.UTC)
	h := &handmade{now: time0}
	clock := NewSimulatedClock(h)
	w := open(t, clock)
	guarded, release := w.Guard(t.Context())
	defer release()
	if !clock.Sleep(t.Context(), interval-margin-time.Second) || clock.Elapsed() != interval-margin-time.Second || guarded.Err() != nil {
		t.Fatalf("after %s: %v", clock.Elapsed(), guarded.Err())
	}
	h.pass(time.Second)
	cancelled(t, guarded, errExpired)
	if want := time0.Add(interval - margin); !clock.Now().Equal(want) || !clock.Start().Equal(time0) {
		t.Errorf("it is %s, want %s", clock.Now(), want)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if clock.Sleep(ended, time.Second) || NewClock().Sleep(ended, time.Hour) {
		t.Error("a sleep whose context has ended was slept to its end")
	}
}
