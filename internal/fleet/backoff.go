package fleet

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"time"
)

// Backoff says how long to wait after a failure: Initial first, then Exponent times as long each
// time, never above Maximum.
type Backoff struct {
	// Initial is the first interval.
	Initial time.Duration
	// Exponent is the factor from one interval to the next. Zero or 1: the interval is constant.
	Exponent float64
	// Maximum bounds the interval. Zero: the initial one where the interval is constant, else an hour.
	Maximum time.Duration
}

// Fault says what is wrong with a backoff, and begins with the field; "" where nothing is.
func (b Backoff) Fault() string {
	switch {
	case b.Initial <= 0:
		return fmt.Sprintf("initial must be positive, not %s", b.Initial)
	case b.Exponent != 0 && !(b.Exponent >= 1 && b.Exponent <= math.MaxFloat64): // NaN, too
		return fmt.Sprintf("exponent must be a finite number of at least 1, not %g", b.Exponent)
	case b.Maximum != 0 && b.Maximum < b.Initial:
		return fmt.Sprintf("maximum must not be below initial (%s), not %s", b.Initial, b.Maximum)
	}
	return ""
}

// Next returns the interval that follows previous; zero means that there was none.
//
// An interval is a whole number of seconds, rounded up, so that each is longer than the one before
// until the maximum is reached. I5: it is always within [Initial, Maximum], both rounded up to
// whole seconds.
//
// The product is computed in decimal: 90 s × 1.1 is 99 s. In floating point it is a little more,
// which would be rounded up to 100 s.
func (b Backoff) Next(previous time.Duration) time.Duration {
	initial := max(ceilSecond(b.Initial), time.Second)
	if !(b.Exponent > 1) { // NaN is constant, too
		return initial
	}
	maximum := max(ceilSecond(b.Maximum), initial)
	if b.Maximum == 0 {
		maximum = max(initial, time.Hour)
	}
	switch {
	case previous <= 0:
		return initial
	case previous >= maximum:
		return maximum
	}
	product, ok := decimal(b.Exponent)
	if !ok {
		return maximum
	}
	product.Mul(product, big.NewRat(int64(previous), int64(time.Second)))
	if product.Cmp(big.NewRat(int64(maximum/time.Second), 1)) >= 0 {
		return maximum
	}
	whole, rest := new(big.Int).QuoRem(product.Num(), product.Denom(), new(big.Int))
	next := time.Duration(whole.Int64()) * time.Second
	if rest.Sign() > 0 {
		next += time.Second
	}
	return max(next, initial)
}

// decimal returns the number that f is written as, exactly. False: f is infinite.
func decimal(f float64) (*big.Rat, bool) {
	return new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
}

// Jittered returns the time to wait for an interval: up to a quarter is added, in proportion to
// fraction in [0, 1).
func Jittered(interval time.Duration, fraction float64) time.Duration {
	return interval + time.Duration(float64(interval)/4*fraction)
}

// ceilSecond rounds up to whole seconds, and down where a Duration cannot hold more.
func ceilSecond(d time.Duration) time.Duration {
	down := d.Truncate(time.Second)
	if down == d || down > math.MaxInt64-time.Second {
		return down
	}
	return down + time.Second
}

// BackoffState is where the backoff of one process of one subject stands. The BMDB keeps it from
// the first failure until the process succeeds or an operator asks for a retry. Without a cause,
// nothing has failed since an operator asked, and it says since when a silence counts.
type BackoffState struct {
	// NotBefore is when the process may be tried again. Always finite.
	NotBefore time.Time
	// Interval is the stored interval, without jitter; the next one is computed from it.
	Interval time.Duration
	// Cause is what failed, in one sentence.
	Cause string
	// Failures counts the failures in a row.
	Failures int
	// Since is when the first of them was in which something was tried; zero: nothing was yet. For a
	// probe it is when the first of them was: whatever kept us from asking, nobody has asked since.
	Since time.Time
	// UnansweredSince is since when the host has answered nobody who tried to reach it; zero: it has
	// answered, or nobody got as far as to try.
	UnansweredSince time.Time
	// UnansweredAt is when somebody has tried to reach it last, and got no answer.
	UnansweredAt time.Time
	// Answered: the host has answered whoever reached for it last, and the work failed all the same.
	Answered bool
	// Refused: what it answered was that it does not let us in, or it has shown another host key.
	Refused bool
	// OtherKey: it was the latter.
	OtherKey bool
}

// Answer is what work that failed says of the host that it was about.
type Answer int

// The answers.
const (
	// AnswerUnknown: nobody got as far as to ask.
	AnswerUnknown Answer = iota
	// AnswerNone: there was none.
	AnswerNone
	// AnswerGiven: the host answers, whatever it said.
	AnswerGiven
	// AnswerRefused: the host answers, and refuses our key. A restart does not change that.
	AnswerRefused
	// AnswerOtherKey: the host answers, and shows another host key than the known one. A restart does
	// not change that either.
	AnswerOtherKey
)

// Heard returns the state after a failure at that time.
func (b BackoffState) Heard(answer Answer, now time.Time) BackoffState {
	switch answer {
	case AnswerNone:
		if b.UnansweredSince.IsZero() {
			b.UnansweredSince = now
		}
		b.UnansweredAt = now
		b.Answered, b.Refused, b.OtherKey = false, false, false
	case AnswerGiven, AnswerRefused, AnswerOtherKey:
		b.UnansweredSince, b.UnansweredAt = time.Time{}, time.Time{}
		b.Answered, b.Refused, b.OtherKey = true, answer != AnswerGiven, answer == AnswerOtherKey
	case AnswerUnknown:
	}
	return b
}
