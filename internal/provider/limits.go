package provider

import "time"

// Limits bounds what a provider is asked. A field that is zero takes the value in brackets, except
// Spacing.
type Limits struct {
	// Spacing is the least time from the start of one request to the next. Zero: no limit.
	Spacing time.Duration
	// Limit names what the calls count against, where other processes may make calls that count
	// against the same (Options.Turns): see LimitOf. Nil: they are paced in this process alone.
	Limit func() string
	// InFlight is how many requests may be under way at once (1).
	InFlight int
	// AttemptTimeout bounds one request, from sending to the last byte of the answer (30 s).
	AttemptTimeout time.Duration
	// Attempts is how often a call is tried in all (5). Only calls that are safe to repeat are.
	Attempts int
	// Backoff is the ceiling of the wait before the first retry (1 s); it doubles with each one up to
	// MaximumBackoff (30 s). The wait itself is drawn evenly between nothing and the ceiling ("full
	// jitter"), so that callers that failed together do not return together.
	Backoff        time.Duration
	MaximumBackoff time.Duration
	// Patience is the longest time that a call waits because the provider asked for a pause (1 min).
	// When it asks for a longer one, calls fail at once as throttled until the pause is over.
	Patience time.Duration
	// AnswerSize bounds one answer, in bytes (32 MiB).
	AnswerSize int64
}

// withDefaults fills in what is zero.
func (l Limits) withDefaults() Limits {
	fill(&l.InFlight, 1)
	fill(&l.AttemptTimeout, 30*time.Second)
	fill(&l.Attempts, 5)
	fill(&l.Backoff, time.Second)
	fill(&l.MaximumBackoff, 30*time.Second)
	fill(&l.Patience, time.Minute)
	fill(&l.AnswerSize, 32<<20)
	return l
}

func fill[T int | int64 | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
