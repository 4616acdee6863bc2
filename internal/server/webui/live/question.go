package live

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Question asks for a value and keeps the last answers. It is asked at most once an interval, by
// one caller at a time; the others wait for that answer. A good answer stays while later attempts
// fail.
type Question[T any] struct {
	ask     func(ctx context.Context) (T, error)
	keep    time.Duration
	timeout time.Duration

	turn  chan struct{} // holds one token; whoever has it may ask, and write what follows
	asked time.Time     // when the last attempt ended
	last  Answer[T]
}

// Answer is what is known of a question.
type Answer[T any] struct {
	// Value is the last good answer, and At is when it came; both are zero while there was none.
	Value T
	At    time.Time
	// Err says why the last attempt failed, and Failing since when attempts have. Both are zero when
	// it succeeded.
	Err     error
	Failing time.Time
}

// NewQuestion returns a question that is asked at most once per keep, and given up after timeout.
func NewQuestion[T any](keep, timeout time.Duration, ask func(ctx context.Context) (T, error)) *Question[T] {
	q := &Question[T]{ask: ask, keep: keep, timeout: timeout, turn: make(chan struct{}, 1)}
	q.turn <- struct{}{}
	return q
}

// Answer returns the answer, at most `keep` old. Its error is that of ctx alone; a failed attempt
// is in the answer.
func (q *Question[T]) Answer(ctx context.Context) (Answer[T], error) {
	select {
	case <-q.turn:
	case <-ctx.Done():
		return Answer[T]{}, context.Cause(ctx)
	}
	defer func() { q.turn <- struct{}{} }()
	if !q.asked.IsZero() && time.Since(q.asked) < q.keep {
		return q.last, nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, q.timeout, errSlow)
	defer cancel()
	value, err := q.ask(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("%w within %s", errSlow, q.timeout)
	}
	if ctx.Err() != nil && err != nil {
		// The caller left, which says nothing about whoever was asked.
		return Answer[T]{}, context.Cause(ctx)
	}
	q.asked = time.Now()
	if err != nil {
		q.last.Err = err
		if q.last.Failing.IsZero() {
			q.last.Failing = q.asked
		}
		return q.last, nil
	}
	q.last = Answer[T]{Value: value, At: q.asked}
	return q.last, nil
}

// Value is Answer where an older value is no use: a failed last attempt is the error.
func (q *Question[T]) Value(ctx context.Context) (T, error) {
	a, err := q.Answer(ctx)
	if err == nil {
		err = a.Err
	}
	if err != nil {
		var none T
		return none, err
	}
	return a.Value, nil
}

var errSlow = errors.New("no answer")
