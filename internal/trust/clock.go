package trust

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// Clock counts the time since it was made, by the monotonic clock and by the one that also counts
// while the machine is suspended, and believes whichever says more. In a bubble of package
// testing/synctest only the monotonic clock counts, because the other one is not the bubble's. A
// simulated clock says what its Simulation says instead. Safe for concurrent use.
type Clock struct {
	start time.Time
	// simulation is where all time comes from; nil: from the system.
	simulation Simulation
	// boot reads the boot-time clock; nil in a bubble.
	boot   func() time.Duration
	booted time.Duration // what boot said at the start
}

// Simulation is time that somebody makes, outside of tests too: it passes only when the simulation
// says so.
type Simulation interface {
	// Now never goes back.
	Now() time.Time
	// AfterFunc calls f once when d has passed.
	AfterFunc(d time.Duration, f func()) Timer
	// Sleep returns true when d has passed, and false when ctx has ended or whoever sleeps must not go
	// on.
	Sleep(ctx context.Context, d time.Duration) bool
}

// Timer is a call of a function that is to come, as that of time.AfterFunc.
type Timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// NewSimulatedClock returns a clock that starts now, by the time of the simulation.
func NewSimulatedClock(s Simulation) *Clock { return &Clock{start: s.Now(), simulation: s} }

// Start returns the time of day at which the clock was made.
func (c *Clock) Start() time.Time { return c.start }

// Now returns the time of day at the start, advanced by what the clock has counted.
func (c *Clock) Now() time.Time { return c.start.Add(c.Elapsed()) }

// AfterFunc calls f when d has passed, from a goroutine of its own.
func (c *Clock) AfterFunc(d time.Duration, f func()) Timer {
	if c.simulation != nil {
		return c.simulation.AfterFunc(d, f)
	}
	return time.AfterFunc(d, f)
}

// Sleep waits for d. It returns false when ctx ends before.
func (c *Clock) Sleep(ctx context.Context, d time.Duration) bool {
	if c.simulation != nil {
		return c.simulation.Sleep(ctx, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// NewClock returns a clock that starts now.
func NewClock() *Clock {
	if fakeTime() {
		return newClock(nil)
	}
	return newClock(func() time.Duration { return read(unix.CLOCK_BOOTTIME) })
}

func newClock(boot func() time.Duration) *Clock {
	c := &Clock{start: time.Now(), boot: boot}
	if boot != nil {
		c.booted = boot()
	}
	return c
}

// Elapsed returns the time since the clock was made.
func (c *Clock) Elapsed() time.Duration {
	if c.simulation != nil {
		return c.simulation.Now().Sub(c.start)
	}
	elapsed := time.Since(c.start)
	if c.boot != nil {
		elapsed = max(elapsed, c.boot()-c.booted)
	}
	return elapsed
}

// fakeTime says whether this is a bubble of package testing/synctest. It compares the two ways to
// ask for the time of day: they differ only there.
func fakeTime() bool {
	return (time.Duration(time.Now().UnixNano()) - read(unix.CLOCK_REALTIME)).Abs() > time.Hour
}

// read returns zero when the kernel has no such clock.
func read(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
