package trust

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock counts the time since it was made, by the monotonic clock and by the one that also counts
// while the machine is suspended, and believes whichever says more. In a bubble of package
// testing/synctest only the monotonic clock counts, because the other one is not the bubble's. Safe
// for concurrent use.
type Clock struct {
	start time.Time
	// boot reads the boot-time clock; nil in a bubble.
	boot   func() time.Duration
	booted time.Duration // what boot said at the start
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
