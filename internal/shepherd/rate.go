package shepherd

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/trust"
)

// Limiter keeps a rate, by a clock. Safe for concurrent use.
type Limiter struct {
	limiter *rate.Limiter
	clock   *trust.Clock
}

// newLimiter returns a limiter of that rate. Its bucket is full.
func newLimiter(r fleet.Rate, clock *trust.Clock) *Limiter {
	return &Limiter{limiter: rate.NewLimiter(rate.Every(r.Every), r.Burst), clock: clock}
}

// EmptyLimiter returns a limiter of that rate. Its bucket is empty, so that a process that crashes
// and restarts again and again does not exceed the rate.
func EmptyLimiter(r fleet.Rate, clock *trust.Clock) *Limiter {
	l := newLimiter(r, clock)
	l.Drain()
	return l
}

// Drain empties the bucket. What is promised stays promised.
func (l *Limiter) Drain() {
	now, burst := l.clock.Now(), l.limiter.Burst()
	l.limiter.SetBurstAt(now, 0) // a bucket keeps no more than its burst
	l.limiter.SetBurstAt(now, burst)
}

// Wait waits for a token and takes it. When ctx ends before, it gives the token back and returns
// why.
func (l *Limiter) Wait(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	now := l.clock.Now()
	token := l.limiter.ReserveN(now, 1)
	if delay := token.DelayFrom(now); delay > 0 && !l.clock.Sleep(ctx, delay) {
		token.CancelAt(l.clock.Now())
		return context.Cause(ctx)
	}
	return nil
}

// Take takes a token, if there are so many at least, or returns how long it is until then. It
// leaves the others to whoever comes next.
func (l *Limiter) Take(among float64) (wait time.Duration) {
	if wait = l.In(among); wait == 0 {
		l.limiter.ReserveN(l.clock.Now(), 1)
	}
	return wait
}

// In returns how long it is until there are so many tokens, if nobody takes any; 0: there are.
func (l *Limiter) In(tokens float64) time.Duration {
	const rounded = 1e-6 // they are counted in fractions
	short := tokens - l.Tokens()
	if short <= rounded {
		return 0
	}
	return max(time.Duration(short/float64(l.limiter.Limit())*float64(time.Second)), time.Microsecond)
}

// Now returns the time by the limiter's clock.
func (l *Limiter) Now() time.Time { return l.clock.Now() }

// Tokens returns how many tokens there are now; below zero: so many are promised.
func (l *Limiter) Tokens() float64 { return l.limiter.TokensAt(l.clock.Now()) }

// RequireRate returns an error of kind Invalid, naming the key, when the rate cannot be used.
func RequireRate(key string, r fleet.Rate) error {
	if r.Valid() {
		return nil
	}
	return fleet.Errorf(fleet.KindInvalid, "%s must be a positive duration and a positive number, such as 250ms,8, not %s", key, r)
}
