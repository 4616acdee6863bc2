package live

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Question asks for a value and keeps the last answers. It is asked at most once an interval, and
// once at a time; whoever comes meanwhile waits for that answer, or leaves. It goes on when its
// caller has left, until its timeout: who comes next has what it brings. Of questions that share
// their places for that, one for which there is none left ends with its caller. A good answer stays
// while later attempts fail.
type Question[T any] struct {
	ask     func(ctx context.Context) (T, error)
	keep    time.Duration
	options Options
	// cost is how much of the time that an answer took counts: see Costly. Nil: nothing.
	cost func(value T, took time.Duration) time.Duration
	// abandoned holds a token for each attempt that goes on without its caller.
	abandoned chan struct{}

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

// NewQuestion returns a question that is asked at most once per keep, and given up after the
// timeout of the options.
func NewQuestion[T any](options Options, keep time.Duration, ask func(ctx context.Context) (T, error)) *Question[T] {
	q := &Question[T]{ask: ask, keep: keep, options: options, turn: make(chan struct{}, 1), abandoned: make(chan struct{}, 1)}
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
// ctx, or a panic of what was asked; a failed attempt is in the answer.
func (q *Question[T]) Answer(ctx context.Context) (Answer[T], error) {
	select {
	case <-q.turn:
	case <-ctx.Done():
		return Answer[T]{}, context.Cause(ctx)
	}
	if !q.asked.IsZero() && time.Since(q.asked) < q.stays {
		defer func() { q.turn <- struct{}{} }()
		return q.last, nil
	}
	var answer Answer[T]
	ended := make(chan error, 1)
	go func() {
		defer func() { q.turn <- struct{}{} }()
		ended <- Parallel(context.WithoutCancel(ctx), func(own context.Context) error {
			q.attempt(own, ctx)
			answer = q.last
			return nil
		})
	}()
	select {
	case err := <-ended:
		return answer, err
	case <-ctx.Done():
		return Answer[T]{}, context.Cause(ctx)
	}
}

// underWay reports whether somebody has the turn, as while it is asked.
func (q *Question[T]) underWay() bool { return len(q.turn) == 0 }

// attempt asks, for a caller who may leave, and notes what that brings. Whoever calls it has the
// turn.
func (q *Question[T]) attempt(ctx, caller context.Context) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	limited, cancel := context.WithTimeoutCause(ctx, q.options.Timeout, errSlow)
	defer cancel()
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { q.watch(caller, over, giveUp) })
	defer watch.Wait()
	defer close(over)
	begin := time.Now()
	value, err := q.ask(limited)
	if err != nil && errors.Is(context.Cause(limited), errSlow) {
		err = fmt.Errorf("%w within %s", errSlow, q.options.Timeout)
	}
	if err != nil && errors.Is(context.Cause(limited), errLeft) {
		err = errLeft
	}
	ended, costly := time.Now(), time.Duration(0)
	if q.cost != nil {
		costly = CostlyShare * q.cost(value, ended.Sub(begin))
	}
	switch {
	case err == nil:
		q.last = Answer[T]{Value: value, At: ended}
	case costly == 0 && caller.Err() != nil: // nobody saw it fail, and to ask again costs nothing
		return
	default:
		costly = min(costly, failedWait)
		q.last.Err = err
		if q.last.Failing.IsZero() {
			q.last.Failing = ended
		}
	}
	q.asked, q.stays = ended, max(q.keep, costly)
}

// watch gives an attempt up when its caller leaves and it has no place to go on in, or when the
// server has stopped. It returns when the attempt is over.
func (q *Question[T]) watch(caller context.Context, over <-chan struct{}, giveUp context.CancelCauseFunc) {
	select {
	case <-caller.Done():
		select {
		case q.abandoned <- struct{}{}:
			defer func() { <-q.abandoned }()
		default:
			giveUp(errLeft)
		}
	case <-q.options.Stopped:
		giveUp(nil)
	case <-over:
	}
	select {
	case <-q.options.Stopped:
		giveUp(nil)
		<-over
	case <-over:
	}
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

var (
	errSlow = errors.New("no answer")
	errLeft = errors.New("it was given up, as whoever asked for it left, and others were under way")
)
