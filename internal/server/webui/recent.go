package webui

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// recent is a question and its last answers. It is asked at most once per `keep`, by one caller at
// a time; the others wait for that answer. An answer that was good stays when the next attempts
// fail.
type recent[T any] struct {
	ask     func(ctx context.Context) (T, error)
	keep    time.Duration
	timeout time.Duration

	turn  chan struct{} // holds one token; who has it may ask and write
	asked time.Time     // when the last attempt ended
	last  answer[T]
}

// answer is what is known of a question.
type answer[T any] struct {
	// value is the last good answer, and at when it came; zero while there was none.
	value T
	at    time.Time
	// err says why the last attempt failed, and failing since when attempts have; nil when it
	// succeeded.
	err     error
	failing time.Time
}

func newRecent[T any](keep, timeout time.Duration, ask func(ctx context.Context) (T, error)) *recent[T] {
	r := &recent[T]{ask: ask, keep: keep, timeout: timeout, turn: make(chan struct{}, 1)}
	r.turn <- struct{}{}
	return r
}

// get returns the answer, at most `keep` old. Its error is that of ctx alone.
func (r *recent[T]) get(ctx context.Context) (answer[T], error) {
	select {
	case <-r.turn:
	case <-ctx.Done():
		return answer[T]{}, context.Cause(ctx)
	}
	defer func() { r.turn <- struct{}{} }()
	if !r.asked.IsZero() && time.Since(r.asked) < r.keep {
		return r.last, nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, r.timeout, errSlow)
	defer cancel()
	value, err := r.ask(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("%w within %s", errSlow, r.timeout)
	}
	if ctx.Err() != nil && err != nil { // the caller left: this says nothing about the control plane
		return answer[T]{}, context.Cause(ctx)
	}
	r.asked = time.Now()
	if err != nil {
		r.last.err = err
		if r.last.failing.IsZero() {
			r.last.failing = r.asked
		}
		return r.last, nil
	}
	r.last = answer[T]{value: value, at: r.asked}
	return r.last, nil
}

// must is get, with a failed last attempt as the error.
func (r *recent[T]) must(ctx context.Context) (T, error) {
	a, err := r.get(ctx)
	if err == nil {
		err = a.err
	}
	if err != nil {
		var none T
		return none, err
	}
	return a.value, nil
}

var errSlow = errors.New("no answer")
