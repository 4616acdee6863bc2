package trust

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestClockBelievesWhoeverSaysMore: time during which the machine was suspended counts, and a
// boot-time clock that says less, or nothing, takes nothing away.
func TestClockBelievesWhoeverSaysMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		suspendable, without := m.clock(), newClock(func() time.Duration { return 0 })
		time.Sleep(3 * time.Second)
		if got := suspendable.Elapsed(); got != 3*time.Second {
			t.Errorf("before the suspension: %s, want 3s", got)
		}
		m.suspend(time.Minute)
		if got := suspendable.Elapsed(); got != 63*time.Second {
			t.Errorf("after a suspension: %s, want 1m3s", got)
		}
		m.suspend(-2 * time.Minute)
		if got := suspendable.Elapsed(); got != 3*time.Second {
			t.Errorf("with a boot-time clock that says less: %s, want 3s", got)
		}
		if got := without.Elapsed(); got != 3*time.Second {
			t.Errorf("without a boot-time clock: %s, want 3s", got)
		}
	})
}

// TestClockInABubble: it follows the bubble's time to the instant, and reads no clock of the
// system.
func TestClockInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		if c.boot != nil {
			t.Error("reads the system's boot-time clock")
		}
		time.Sleep(36 * time.Hour)
		if got := c.Elapsed(); got != 36*time.Hour {
			t.Errorf("%s, want 36h", got)
		}
	})
}

// TestClockOfTheSystem: outside a bubble both clocks are read, and they agree.
func TestClockOfTheSystem(t *testing.T) {
	t.Parallel()
	before := time.Now()
	c := NewClock()
	if c.boot == nil {
		t.Fatal("does not read the system's boot-time clock")
	}
	if c.booted <= 0 {
		t.Errorf("the boot-time clock says %s", c.booted)
	}
	for c.boot() == c.booted { // until it has moved
		continue
	}
	if got := c.Elapsed(); got <= 0 || got > time.Since(before)+time.Second {
		t.Errorf("elapsed %s of at most %s", got, time.Since(before))
	}
}
