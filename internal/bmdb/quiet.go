package bmdb

import (
	"context"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Probes are many, and most of them say what the one before said. Such a probe ends quietly:
// without a row of history. Something else stands in for its row (I4):
//
//	it has found the same                     the fact of the probe, which names the work
//	it could not be made, for the same cause  the backoff
//	its turn did not come                     the backoff
//
// Where the reply to such an end is lost, these say that it was committed.

// quiet reports whether the work ends quietly. was is the backoff of its process before.
func (c *commit) quiet(was fleet.BackoffState) bool {
	if f := c.ending.failure; f != nil {
		return f.repeats(c.work.Process, was)
	}
	return c.foundSame
}

// Repeats reports whether a failure of this work says nothing new, by what was known at the claim:
// it has no row of history then.
func (w *Work) Repeats(f Failure) bool { return f.repeats(w.Process, w.Record.Backoffs[w.Process]) }

// repeats reports whether a probe could not be made for the cause that the backoff has already, or
// was not tried.
func (f Failure) repeats(process fleet.Process, was fleet.BackoffState) bool {
	return process == fleet.ProcessProbe && (f.Queued || was.Failures > 0 && f.Cause == was.Cause)
}

// endQuietly frees a lane whose work has ended, and writes no row of history.
func (t *transaction) endQuietly(l *lane, event fleet.Event) {
	t.outcomes = append(t.outcomes, observed{l.process, string(event), t.Now().Sub(instant(l.since))})
	l.free()
}

// endedBefore reports whether the end of a probe whose lease is not its own any more was committed
// before: the fact of the probe names it, or it failed, and history has no end of it (unrecorded),
// though it does not have the lane any more. Nobody ends work without a row but its holder.
func (t *transaction) endedBefore(ctx context.Context, c *commit, unrecorded bool) (bool, error) {
	w := c.work
	if w.Process != fleet.ProcessProbe {
		return false, nil
	}
	m, err := t.row(ctx, w.Subject.Machine)
	if fleet.KindOf(err) == fleet.KindNotFound {
		return false, nil
	}
	epoch := int64(w.Epoch)
	found := m.ProbeEpoch == epoch && m.ProbeSession == string(w.Session)
	return found || unrecorded && c.ending.failure != nil && (m.Epoch > epoch || m.Epoch == epoch && m.Session == ""), err
}
