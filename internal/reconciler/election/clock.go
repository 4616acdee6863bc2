package election

import (
	"time"

	"golang.org/x/sys/unix"
)

// instant is a moment by two clocks: the monotonic one, and the boot-time one, which also runs
// while the machine is suspended.
type instant struct {
	monotonic time.Time
	boot      time.Duration
}

func now() instant { return instant{monotonic: time.Now(), boot: bootTime()} }

// elapsed returns the time since then, by the clock that shows more.
func (i instant) elapsed() time.Duration {
	return max(time.Since(i.monotonic), bootTime()-i.boot)
}

func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // this kernel has no such clock; the monotonic one alone decides
	}
	return time.Duration(ts.Nano())
}
