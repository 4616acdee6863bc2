package reconciler

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/fleet"
)

// The pace of passes: one that failed is tried again from firstRetry on, twice as long each time,
// at most after the time between full passes. Changes that are seen lead to a pass at once, but not
// without end.
const (
	firstRetry = 100 * time.Millisecond
	silence    = 2 * time.Second  // of failures, before one is logged
	repetition = 10 * time.Second // between two that are logged
	burst      = 5                // passes for changes in quick succession, and then
	spacing    = time.Second / 2  // between them
)

func (t *term) retries() *backoff.ExponentialBackOff {
	retry := &backoff.ExponentialBackOff{
		InitialInterval: firstRetry, RandomizationFactor: 0.25, Multiplier: 2, MaxInterval: max(t.config.FullPass, firstRetry),
	}
	retry.Reset()
	return retry
}

// errStatusChanged: somebody else has written the status.
var errStatusChanged = fleet.Errorf(fleet.KindConflict, "the status was changed by somebody else")

// first runs passes until one has found everything as wanted. It returns nil, too, when ctx has
// ended; errStatusChanged when the status is no longer the one that is known.
func (t *term) first(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed, retry := t.statusChanged(ctx), t.retries()
	var trouble trouble
	for {
		err := t.pass(ctx)
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // what a pass says that has been stopped is of no interest
		}
		pause := retry.NextBackOff()
		trouble.tell(ctx, t.logger, err, pause)
		select {
		case <-time.After(pause):
		case <-changed:
			return errStatusChanged
		case <-ctx.Done():
			return nil
		}
	}
}

// keep runs a pass when a change was seen, and now and then, until ctx ends (nil) or the status is
// no longer the one that is known (errStatusChanged).
func (t *term) keep(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed, retry := t.statusChanged(ctx), t.retries()
	pace := rate.NewLimiter(rate.Every(spacing), burst)
	pause := t.config.FullPass
	var trouble trouble
	for {
		select {
		case <-time.After(pause):
		case <-t.applier.Changed():
			if pace.Wait(ctx) != nil {
				return nil
			}
		case <-changed:
			return errStatusChanged
		case <-ctx.Done():
			return nil
		}
		if err := t.pass(ctx); err != nil {
			pause = retry.NextBackOff()
			trouble.tell(ctx, t.logger, err, pause)
			continue
		}
		retry.Reset()
		trouble.over(ctx, t.logger)
		pause = t.config.FullPass
	}
}

// pass runs one pass and tells what it did.
func (t *term) pass(ctx context.Context) error {
	start := time.Now()
	report, err := t.applier.Pass(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	took := time.Since(start)
	t.config.Observer.PassEnded(report, took, err)
	t.teller.tell(ctx, t, report, err)
	t.note(func(state *State) {
		state.PassedAt, state.PassError = time.Now(), ""
		if err != nil {
			state.PassError = err.Error()
		}
	})
	if changes := report.Created + report.Updated + report.Recreated + report.Pruned; changes > 0 {
		t.logger.InfoContext(ctx, "repaired", slog.Int("created", report.Created), slog.Int("updated", report.Updated),
			slog.Int("recreated", report.Recreated), slog.Int("pruned", report.Pruned), slog.Int("objects", report.Objects),
			slog.Duration("took", took))
	}
	return err
}

// trouble is a row of passes that failed.
type trouble struct {
	since, told time.Time
}

// tell logs a failure, unless it has not lasted for a moment or was told a moment ago.
func (r *trouble) tell(ctx context.Context, logger *slog.Logger, err error, pause time.Duration) {
	now := time.Now()
	if r.since.IsZero() {
		r.since = now
	}
	if now.Sub(r.since) < silence || now.Sub(r.told) < repetition {
		return
	}
	r.told = now
	logger.WarnContext(ctx, "not everything is as wanted", slog.Duration("for", now.Sub(r.since)), slog.Duration("retry", pause),
		slog.Any("err", err))
}

// over logs that it is over, if it was told, and begins anew.
func (r *trouble) over(ctx context.Context, logger *slog.Logger) {
	if !r.told.IsZero() {
		logger.InfoContext(ctx, "everything is as wanted again", slog.Duration("after", time.Since(r.since)))
	}
	*r = trouble{}
}
