package shepherd

import (
	"errors"
	"log/slog"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Config is how eagerly a loop works.
type Config struct {
	// ClaimRate limits claims (transactions, each for as many pieces of work as there are free slots).
	ClaimRate fleet.Rate `yaml:"claim_rate"`
	// Parallelism is how many pieces of work may be under way at once. At most half of them are on
	// machines that failed lately, and on machines of one provider while something is due at others.
	Parallelism int `yaml:"parallelism"`
	// ErrorPause is how long the loop waits after a claim or a session that failed.
	ErrorPause time.Duration `yaml:"error_pause"`
	// Poll is the longest time from one claim to the next. A claim that finds nothing due reads one
	// index entry.
	Poll time.Duration `yaml:"poll"`
	// Grace is how long running work may go on after the loop was told to stop. At most half of
	// drain_timeout. The default is 10 s, or half of drain_timeout where that is shorter.
	Grace time.Duration `yaml:"grace"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		ClaimRate:   fleet.Rate{Every: 250 * time.Millisecond, Burst: 8},
		Parallelism: 10,
		ErrorPause:  time.Second,
		Poll:        2 * time.Second,
		Grace:       10 * time.Second,
	}
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error {
	var faults []error
	if c.Parallelism < 1 {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "parallelism must be at least 1, not %d", c.Parallelism))
	}
	return errors.Join(append(faults,
		RequireRate("claim_rate", c.ClaimRate),
		RequirePositive("error_pause", c.ErrorPause),
		RequirePositive("poll", c.Poll),
		RequireNotNegative("grace", c.Grace))...)
}

// RequirePositive returns an error of kind Invalid, naming the key, when d is not positive.
func RequirePositive(key string, d time.Duration) error {
	if d <= 0 {
		return fleet.Errorf(fleet.KindInvalid, "%s must be positive, not %s", key, d)
	}
	return nil
}

// RequireNotNegative returns an error of kind Invalid, naming the key, when d is negative.
func RequireNotNegative(key string, d time.Duration) error {
	if d < 0 {
		return fleet.Errorf(fleet.KindInvalid, "%s must not be negative, not %s", key, d)
	}
	return nil
}

// RequireBackoff returns an error of kind Invalid, naming the key, when b is not a backoff.
func RequireBackoff(key string, b fleet.Backoff) error {
	if fault := b.Fault(); fault != "" {
		return fleet.Errorf(fleet.KindInvalid, "%s.%s", key, fault)
	}
	return nil
}

// Options is what a loop is built with besides its configuration.
type Options struct {
	// SessionLease is how long a session lives without an extension. Zero: 5 s.
	SessionLease time.Duration
	// Host and PID are shown beside the session.
	Host string
	PID  int
	// Logger receives what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
	// Observer is told of every claim and every piece of work. Nil: nobody is.
	Observer Observer
}

// Observer is told what a loop does. It is called from many goroutines at once and must not block.
type Observer interface {
	// Claimed reports one claim: how many pieces of work it got, how long it took, and its error.
	Claimed(process fleet.Process, works int, took time.Duration, err error)
	// Started reports that a piece of work begins.
	Started(process fleet.Process)
	// Ended reports how it ended, and how long acting and committing took.
	Ended(process fleet.Process, result Result, took time.Duration)
}

// noObserver stands in where nobody observes.
type noObserver struct{}

func (noObserver) Claimed(fleet.Process, int, time.Duration, error) {}
func (noObserver) Started(fleet.Process)                            {}
func (noObserver) Ended(fleet.Process, Result, time.Duration)       {}
