package bmdb

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock counts elapsed time by the monotonic clock and by the one that also counts while the
// machine is suspended, and believes whichever says more. It is what trust windows are judged by
// (rule 5), and what an embedded engine's database time advances by: neither can be set.
type Clock struct {
	start time.Time
	boot  time.Duration
	// fake: the process's clock is not the system's (package testing/synctest); then only the former
	// counts.
	fake bool
}

// NewClock returns a clock that starts now.
func NewClock() *Clock {
	return &Clock{start: time.Now(), boot: bootTime(), fake: fakeTime()}
}

// Elapsed returns the time since the clock was started.
func (c *Clock) Elapsed() time.Duration {
	elapsed := time.Since(c.start)
	if !c.fake {
		elapsed = max(elapsed, bootTime()-c.boot)
	}
	return elapsed
}

func bootTime() time.Duration { return read(unix.CLOCK_BOOTTIME) }

// fakeTime compares the two ways to ask for the time of day; they can differ only in a bubble of
// fake time.
func fakeTime() bool {
	return (time.Duration(time.Now().UnixNano()) - read(unix.CLOCK_REALTIME)).Abs() > time.Hour
}

func read(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0 // not on this kernel: both readings are zero and the monotonic clock decides
	}
	return time.Duration(ts.Nano())
}
