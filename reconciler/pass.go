package reconciler

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/gate"
)

const (
	// firstRetry is the pause after the first failed pass. It doubles with each further one, up to
	// the time between full passes.
	firstRetry = 100 * time.Millisecond
	// quietFailures is how long passes fail before a failure is logged.
	quietFailures = 2 * time.Second
	// logInterval is the time between two failures that are logged.
	logInterval = 10 * time.Second
	// A change leads to a pass at once for passBurst changes in quick succession. The passes after
	// that are passSpacing apart.
	passBurst   = 5
	passSpacing = time.Second / 2
)

func (t *term) retries() *backoff.ExponentialBackOff {
	retry := &backoff.ExponentialBackOff{
		InitialInterval: firstRetry, RandomizationFactor: 0.25, Multiplier: 2, MaxInterval: max(t.config.FullPass, firstRetry),
	}
	retry.Reset()
	return retry
}

// errStatusChanged tells that somebody else has written the status.
var errStatusChanged = fleet.Errorf(fleet.KindConflict, "the status was changed by somebody else")

// reach runs passes until one has found everything that API servers need as wanted, or ctx has
// ended. Then it announces a status; nil: there is none to announce. What else is to be done, or
// fails, keeps no API server waiting. It returns errStatusChanged when the status is no longer the
// known one.
func (t *term) reach(ctx context.Context, after *gate.Status) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	turns, retry := t.turns(ctx), t.retries()
	reached, failed := false, error(nil)
	announce := func(passing context.Context) error {
		switch {
		case reached:
			return nil
		case passing.Err() != nil:
			return context.Cause(passing)
		case after != nil:
			if failed = t.write(ctx, announcement{status: *after}); failed != nil {
				cancel() // the pass as well
				return failed
			}
		}
		reached = true
		t.setState(func(state *State) { state.Doing = "keeping everything as our release wants it" })
		return nil
	}
	var failures failureLog
	for {
		ready, err := t.pass(ctx, announce)
		switch {
		case reached:
			return nil // what failed is reported, and maintain tries it again
		case failed != nil || ctx.Err() != nil:
			return failed
		case ready:
			return announce(ctx)
		}
		pause := retry.NextBackOff()
		failures.failed(ctx, t.logger, err, pause)
		if err := turns.await(ctx, t, pause); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// maintain runs a pass after each change of what was applied or of the overrides, and a full pass
// at intervals. After a pass that failed, the next one comes sooner. It returns nil when ctx ends,
// and errStatusChanged when the status is no longer the known one.
func (t *term) maintain(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	turns, retry := t.turns(ctx), t.retries()
	t.followOverrides(ctx)
	pause := t.config.FullPass
	if t.State().PassError != "" { // a pass of reach left something undone
		pause = retry.NextBackOff()
	}
	var failures failureLog
	for {
		if err := turns.await(ctx, t, pause); err != nil || ctx.Err() != nil {
			return err
		}
		if _, err := t.pass(ctx, nil); err != nil {
			pause = retry.NextBackOff()
			failures.failed(ctx, t.logger, err, pause)
			continue
		}
		retry.Reset()
		failures.recovered(ctx, t.logger)
		pause = t.config.FullPass
	}
}

// turns tells when the next pass is due.
type turns struct {
	status <-chan struct{}
	faults <-chan string
	fault  string // the last known
	pace   *rate.Limiter
}

func (t *term) turns(ctx context.Context) *turns {
	known, _ := t.fault.Get()
	return &turns{
		status: t.statusChanged(ctx), faults: t.fault.Watch(ctx), fault: known, pace: rate.NewLimiter(rate.Every(passSpacing), passBurst),
	}
}

// await returns nil after a pause, or sooner when the next pass may find something to do: after a
// change of what was applied or of the overrides, or when the API server can be used again, or no
// longer. It returns errStatusChanged when the status is no longer the known one, and nil when ctx
// ends. Meanwhile it writes the notices that become due.
func (u *turns) await(ctx context.Context, t *term, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case <-t.applier.Changed():
			_ = u.pace.Wait(ctx) // it ends with ctx
			return nil
		case <-t.overridesChanged:
			_ = u.pace.Wait(ctx)
			return nil
		case <-t.troubleWriter.due:
			t.troubleWriter.tell(ctx, t, t.troubleWriter.waiting)
		case <-t.deletionWriter.due:
			t.deletionWriter.tell(ctx, t, t.deletionWriter.waiting)
		case fault := <-u.faults:
			if fault == u.fault {
				continue
			}
			u.fault = fault
			return nil
		case <-u.status:
			return errStatusChanged
		case <-ctx.Done():
			return nil
		}
	}
}

// pass runs one pass, and reports what it did to the observer, the log and the state. Ready tells
// that API servers may rely on what they need, whatever else has failed. If the applier knows that
// earlier, onReady is called then; it may be nil.
func (t *term) pass(ctx context.Context, onReady func(context.Context) error) (ready bool, err error) {
	start := time.Now()
	t.setPassing(passing{begun: start, onReady: onReady})
	defer t.setPassing(passing{})
	report, err := t.applyOverridden(ctx)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if fault := t.checkProbe(ctx); fault != nil {
		err, report.Ready = fault, false // what was compared may be old: nothing had to be asked
	}
	took := time.Since(start)
	report.Ready = report.Ready || err == nil
	t.config.Observer.PassEnded(report, took, err)
	t.troubleWriter.passEnded(ctx, t, report, err)
	t.deletionWriter.passEnded(ctx, t, report)
	t.setState(func(state *State) {
		state.PassedAt, state.PassError, state.PassReady = time.Now(), "", report.Ready
		if err != nil {
			state.PassError = err.Error()
		}
	})
	if changes := report.Created + report.Updated + report.Recreated + report.Pruned; changes > 0 {
		t.logger.InfoContext(ctx, "repaired", slog.Int("created", report.Created), slog.Int("updated", report.Updated),
			slog.Int("recreated", report.Recreated), slog.Int("pruned", report.Pruned), slog.Int("objects", report.Objects),
			slog.Duration("took", took))
	}
	return report.Ready, err
}

func (s *Service) setPassing(p passing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passing = p
}

// failureLog logs a row of passes that failed, but not each of them.
type failureLog struct {
	since, logged time.Time
}

// failed logs a failure, unless passes have only just begun to fail or one was logged a moment ago.
func (l *failureLog) failed(ctx context.Context, logger *slog.Logger, err error, pause time.Duration) {
	now := time.Now()
	if l.since.IsZero() {
		l.since = now
	}
	if now.Sub(l.since) < quietFailures || now.Sub(l.logged) < logInterval {
		return
	}
	l.logged = now
	logger.WarnContext(ctx, "not everything is as wanted", slog.Duration("for", now.Sub(l.since)), slog.Duration("retry", pause),
		slog.Any("err", err))
}

// recovered logs that passes succeed again, if a failure was logged.
func (l *failureLog) recovered(ctx context.Context, logger *slog.Logger) {
	if !l.logged.IsZero() {
		logger.InfoContext(ctx, "everything is as wanted again", slog.Duration("after", time.Since(l.since)))
	}
	*l = failureLog{}
}
