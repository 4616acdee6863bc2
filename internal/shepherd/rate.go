package shepherd

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/fleet"
)

// newLimiter returns a limiter of that rate. Its bucket is full.
func newLimiter(r fleet.Rate) *rate.Limiter { return rate.NewLimiter(rate.Every(r.Every), r.Burst) }

// EmptyLimiter returns a limiter of that rate. Its bucket is empty, so that a process that crashes
// and restarts again and again does not exceed the rate.
func EmptyLimiter(r fleet.Rate) *rate.Limiter {
	limiter := newLimiter(r)
	limiter.AllowN(time.Now(), r.Burst)
	return limiter
}

// RequireRate returns an error of kind Invalid, naming the key, when the rate cannot be used.
func RequireRate(key string, r fleet.Rate) error {
	if r.Valid() {
		return nil
	}
	return fleet.Errorf(fleet.KindInvalid, "%s must be a positive duration and a positive number, such as 250ms,8, not %s", key, r)
}
