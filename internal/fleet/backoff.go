package fleet

import (
	"math"
	"time"
)

// Backoff says how long to wait after a failure: Initial first, then Exponent times as long each
// time, never above Maximum.
type Backoff struct {
	// Initial is the first interval.
	Initial time.Duration
	// Exponent is the factor from one interval to the next. Zero or 1: the interval is constant.
	Exponent float64
	// Maximum bounds the interval. Zero: Initial where the interval is constant, else an hour.
	Maximum time.Duration
}

// Next returns the interval that follows previous (zero: there was none). It is in whole seconds,
// rounded up, so that it grows strictly until it reaches the maximum; I5: it is always within
// [Initial, Maximum], both rounded up to whole seconds.
func (b Backoff) Next(previous time.Duration) time.Duration {
	initial := max(ceilSecond(b.Initial), time.Second)
	maximum := max(ceilSecond(b.Maximum), initial)
	if b.Exponent <= 1 {
		return initial
	}
	if b.Maximum == 0 {
		maximum = max(initial, time.Hour)
	}
	if previous <= 0 {
		return initial
	}
	next := math.Ceil(previous.Seconds() * b.Exponent)
	if next >= maximum.Seconds() {
		return maximum
	}
	return max(initial, min(maximum, time.Duration(next)*time.Second))
}

// Jittered returns the time to wait for an interval: up to a quarter is added, in proportion to
// fraction in [0, 1).
func Jittered(interval time.Duration, fraction float64) time.Duration {
	return interval + time.Duration(float64(interval)/4*fraction)
}

func ceilSecond(d time.Duration) time.Duration {
	if r := d % time.Second; r > 0 {
		return d + time.Second - r
	}
	return d
}

// Waiting is the durable backoff of one process of one machine.
type Waiting struct {
	// NotBefore is when the process may be tried again. Always finite.
	NotBefore time.Time
	// Interval is the stored interval, without jitter; the next one is computed from it.
	Interval time.Duration
	// Cause is what failed, in one sentence.
	Cause string
	// Failures counts the failures in a row.
	Failures int
}
