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
	// cost is how much of the time that an answer took counts: see Costly. Nil: nothing.
	cost func(value T, took time.Duration) time.Duration

	turn  chan struct{} // holds one token; whoever has it may ask, and write what follows
	asked time.Time     // when the last attempt ended
	stays time.Duration // for how long what it brought is not asked for again
	last  Answer[T]
}

const (
	// CostlyShare is for how many times as long as it took an answer does that is costly.
	CostlyShare = 20
	// failedWait is how long a failure stands at most for what would be answered now.
	failedWait = 30 * time.Second
)

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

// Costly returns the question as one that reads much: an answer does for CostlyShare as long as it
// took, and a failure likewise, but for no longer than failedWait. So it never keeps more than a
// twentieth of one core busy. What is shown beside other answers must not fail with it: these may
// come again by then.
func (q *Question[T]) Costly() *Question[T] {
	q.cost = func(_ T, took time.Duration) time.Duration { return took }
	return q
}

// Answer returns the answer, at most `keep` old, or older where it is costly. Its error is that of
// ctx alone; a failed attempt is in the answer.
func (q *Question[T]) Answer(ctx context.Context) (Answer[T], error) {
	select {
	case <-q.turn:
	case <-ctx.Done():
		return Answer[T]{}, context.Cause(ctx)
	}
	defer func() { q.turn <- struct{}{} }()
	begin := time.Now()
	if !q.asked.IsZero() && begin.Sub(q.asked) < q.stays {
		return q.last, nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, q.timeout, errSlow)
	defer cancel()
	value, err := q.ask(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("%w within %s", errSlow, q.timeout)
	}
	ended, costly := time.Now(), time.Duration(0)
	if q.cost != nil {
		costly = CostlyShare * q.cost(value, ended.Sub(begin))
	}
	if err != nil {
		costly = min(costly, failedWait)
	}
	// A caller who left says nothing about whoever was asked. One who ran out of time does so of what
	// is costly: it is not asked for again at once.
	if ctx.Err() != nil && err != nil && (costly == 0 || errors.Is(ctx.Err(), context.Canceled)) {
		return Answer[T]{}, context.Cause(ctx)
	}
	q.asked, q.stays = ended, max(q.keep, costly)
	if err != nil {
		q.last.Err = err
		if q.last.Failing.IsZero() {
			q.last.Failing = q.asked
		}
		if ctx.Err() != nil {
			return Answer[T]{}, context.Cause(ctx)
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
