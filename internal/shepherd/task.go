package shepherd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// errStopping is the cause of contexts that end because the loop stops.
var errStopping = errors.New("the loop is stopping")

// Task is one piece of claimed work on its way: Act, then Commit, once each, from one goroutine.
type Task struct {
	Work *bmdb.Work

	holder  *Holder
	started time.Time
	outcome Outcome
}

// Act does the work. ctx bounds it, and so does the trust in the lease. It never panics.
func (t *Task) Act(ctx context.Context) {
	l := t.holder.loop
	t.started = time.Now()
	l.observer.Started(l.scope.Process)
	l.logger.DebugContext(ctx, "work started", t.attrs()...)

	guarded, cancel := t.Work.Guard(ctx)
	defer cancel()
	t.outcome = t.call(guarded)
	if failure, failed := t.outcome.(Fail); failed {
		t.outcome = l.judge(guarded, failure)
	}
}

// call runs the handler and turns a panic into a failure.
func (t *Task) call(ctx context.Context) (outcome Outcome) {
	defer func() {
		if value := recover(); value != nil {
			t.holder.loop.logger.ErrorContext(ctx, "handler panicked", append(t.attrs(),
				slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(debug.Stack())))...)
			outcome = Fail{Err: errPanicked}
		}
	}()
	if outcome = t.holder.loop.handler.Act(ctx, t.Work); outcome == nil {
		return Fail{Err: errNoOutcome}
	}
	return outcome
}

// judge tells a failure of the work from an end that came from outside. ctx is what the handler
// worked under.
func (l *Loop) judge(ctx context.Context, failure Fail) Outcome {
	switch {
	case errors.Is(context.Cause(ctx), fleet.ErrLeaseLost), errors.Is(failure.Err, fleet.ErrLeaseLost):
		return lost{}
	case ctx.Err() != nil:
		return Cancel{Reason: Cause(context.Cause(ctx))}
	}
	if failure.Err == nil {
		failure.Err = errNoCause
	}
	if failure.Backoff == (fleet.Backoff{}) {
		failure.Backoff = l.scope.Backoff
	}
	return failure
}

// handBack ends a task that nobody will act on. When that cannot be recorded, the end of the
// session frees the work.
func (t *Task) handBack(ctx context.Context) {
	t.started = time.Now()
	t.holder.loop.observer.Started(t.holder.loop.scope.Process)
	t.outcome = Cancel{Reason: Cause(errStopping)}
	_ = t.Commit(ctx)
}

// Outcome returns how Act ended; nil before it has.
func (t *Task) Outcome() Outcome { return t.outcome }

// Commit records the outcome. The end of ctx does not stop it, and it repeats what fails for as
// long as the lease is trusted. The error is ErrLeaseLost when the work is not ours any more. After
// any other error nobody knows whether the outcome is recorded: the caller should close the
// session.
func (t *Task) Commit(ctx context.Context) error {
	l := t.holder.loop
	err := t.commit(ctx, t.outcome)
	if err != nil && refused(err) {
		// The facts cannot be recorded as they are. Trying again would hold the work for ever.
		l.logger.ErrorContext(ctx, "outcome was refused", append(t.attrs(), slog.Any("err", err))...)
		t.outcome = Fail{Err: fmt.Errorf("record the outcome: %w", err), Backoff: l.scope.Backoff}
		err = t.commit(ctx, t.outcome)
	}
	t.report(ctx, err)
	return err
}

// commit tries one outcome until there is an answer.
func (t *Task) commit(ctx context.Context, outcome Outcome) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitPatience)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		attempt, done := context.WithTimeout(ctx, commitAttempt)
		err := outcome.commit(attempt, t.Work)
		done()
		if err == nil || refused(err) || errors.Is(err, fleet.ErrLeaseLost) {
			return err
		}
		t.holder.loop.logger.WarnContext(ctx, "commit failed", append(t.attrs(), slog.Any("err", err))...)
		if !t.holder.session.Trusted() || !t.holder.loop.sleep(ctx, pause) {
			return err
		}
	}
}

// refused reports whether the BMDB has answered with a refusal, which it would repeat.
func refused(err error) bool {
	switch fleet.KindOf(err) {
	case fleet.KindInvalid, fleet.KindNotFound, fleet.KindConflict, fleet.KindForbidden, fleet.KindUnsupported:
		return true
	}
	return false
}

// report tells log and observer how the work ended.
func (t *Task) report(ctx context.Context, err error) {
	l, took, result := t.holder.loop, time.Since(t.started), t.outcome.result()
	attrs, repeats := append(t.attrs(), slog.Duration("took", took)), false
	switch outcome := t.outcome.(type) {
	case Fail:
		repeats = t.Work.Repeats(outcome.failure())
		attrs = append(attrs, slog.String("cause", Cause(outcome.Err)))
	case Cancel:
		attrs = append(attrs, slog.String("reason", outcome.Reason))
	}
	switch {
	case errors.Is(err, fleet.ErrLeaseLost):
		result = ResultLost
		l.logger.WarnContext(ctx, "work was lost", attrs...)
	case err != nil:
		result = ResultUncommitted
		l.logger.ErrorContext(ctx, "outcome could not be recorded", append(attrs, slog.Any("err", err))...)
	case result == ResultFailed && repeats:
		l.logger.DebugContext(ctx, "work failed", attrs...)
	case result == ResultFailed:
		l.logger.WarnContext(ctx, "work failed", attrs...)
	case result == ResultCancelled:
		l.logger.InfoContext(ctx, "work handed back", attrs...)
	case l.scope.Process.OfProvider(), l.scope.Process == fleet.ProcessProbe:
		// These come by the clock, and what they find is told elsewhere.
		l.logger.DebugContext(ctx, "work finished", attrs...)
	default:
		l.logger.InfoContext(ctx, "work finished", attrs...)
	}
	l.observer.Ended(l.scope.Process, result, took)
}

// attrs names the work in logs.
func (t *Task) attrs() []any {
	subject := slog.String("provider", string(t.Work.Subject.Provider))
	if t.Work.Subject.Machine != "" {
		subject = slog.String("machine", string(t.Work.Subject.Machine))
	}
	return []any{subject, slog.String("session", string(t.Work.Session)), slog.Int64("epoch", int64(t.Work.Epoch))}
}

// sleep waits for d. It returns false when ctx ends before.
func (l *Loop) sleep(ctx context.Context, d time.Duration) bool { return l.db.Clock().Sleep(ctx, d) }
