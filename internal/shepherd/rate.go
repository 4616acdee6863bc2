package shepherd

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Rate is a token bucket: Burst tokens at most, refilled by one every Every. In text it is "250ms,8".
type Rate struct {
	Every time.Duration
	Burst int
}

// ParseRate reads the text form: a positive duration, a comma, a positive number. The error is of kind Invalid.
func ParseRate(s string) (Rate, error) {
	every, burst, _ := strings.Cut(s, ",")
	d, err := time.ParseDuration(strings.TrimSpace(every))
	n, errBurst := strconv.Atoi(strings.TrimSpace(burst))
	r := Rate{Every: d, Burst: n}
	if err != nil || errBurst != nil || !r.usable() {
		return Rate{}, fleet.Errorf(fleet.KindInvalid,
			"%q is not a rate: write a positive duration, a comma and a positive number, such as 250ms,8", s)
	}
	return r, nil
}

func (r Rate) usable() bool { return r.Every > 0 && r.Burst > 0 }

// Validate returns an error of kind Invalid, naming the key, when the rate cannot be used.
func (r Rate) Validate(key string) error {
	if r.usable() {
		return nil
	}
	return fleet.Errorf(fleet.KindInvalid, "%s must be a positive duration and a positive number, such as 250ms,8, not %s", key, r)
}

// String returns the text form.
func (r Rate) String() string { return fmt.Sprintf("%s,%d", r.Every, r.Burst) }

// MarshalText returns the text form.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParseRate.
func (r *Rate) UnmarshalText(text []byte) error {
	parsed, err := ParseRate(string(text))
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}

// Limiter returns a limiter whose bucket is full.
func (r Rate) Limiter() *rate.Limiter { return rate.NewLimiter(rate.Every(r.Every), r.Burst) }

// EmptyLimiter returns a limiter whose bucket is empty: a process that keeps dying and coming back does not exceed the rate either.
func (r Rate) EmptyLimiter() *rate.Limiter {
	limiter := r.Limiter()
	limiter.AllowN(time.Now(), r.Burst)
	return limiter
}
