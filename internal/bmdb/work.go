package bmdb

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/trust"
)

// Work is an exclusive lease of one lane of one subject, held through a session and numbered by an
// epoch. The exported fields are as of the claim and are not to be written. It ends by exactly one
// of Finish, Fail and Cancel, or by the end of its session.
//
// Note, Finish, Fail and Cancel return ErrLeaseLost, with nothing changed, when the session has
// ended or the epoch is not the lane's any more. Any other error leaves open whether the
// transaction was committed. Repeating an end is then safe: one that was committed already is not
// done again, and nil is returned. A Note is not to be repeated: the work fails, and whoever does
// it again looks at what was written.
type Work struct {
	Session fleet.SessionID
	Process fleet.Process
	Subject fleet.Subject
	Epoch   fleet.Epoch
	// Record of a machine, as judged at the claim.
	Record fleet.Record
	// Provider, where the subject is one.
	Provider fleet.ProviderRecord
	// Decision that the work is due, and why.
	Decision lifecycle.Decision

	session *Session
	since   int64

	// life ends with the work: with cause ErrLeaseLost when it was voided.
	life *trust.Life
}

// Failing reports whether the work is on a machine at which the process failed lately: since it
// last succeeded, or an operator asked for a retry.
func (w *Work) Failing() bool {
	return !w.Process.OfProvider() && failedLately(&w.Record, w.Process)
}

func (w *Work) key() workKey { return workKey{w.Subject, w.Process.Lane(), w.Epoch} }

// Guard returns a context that is cancelled, with cause ErrLeaseLost, when the session's trust
// window ends or an extension learns that somebody voided the lease (rule 8). Every act runs under
// it.
func (w *Work) Guard(ctx context.Context) (context.Context, context.CancelFunc) {
	trusted, release := w.session.Guard(ctx)
	guarded, cancel := w.life.Guard(trusted)
	return guarded, func() {
		cancel()
		release()
	}
}

// newWork makes a work of the session, which outlives the call that claims it; remember makes it
// known.
//
//nolint:contextcheck // it ends with the session
func (s *Session) newWork(subject fleet.Subject, process fleet.Process, epoch fleet.Epoch, since int64) *Work {
	return &Work{
		session: s, Session: s.id, Process: process, Subject: subject, Epoch: epoch, since: since, life: trust.NewLife(s.window.Context()),
	}
}

// void cancels everything under Guard, and the session lets go of the work.
func (w *Work) void() {
	w.life.End(fleet.ErrLeaseLost)
	w.session.letGo(w)
}

// Failure says how work failed.
type Failure struct {
	// Cause in one sentence.
	Cause   string
	Backoff fleet.Backoff
	// RetryAfter is the least that is waited, whatever the backoff says.
	RetryAfter time.Duration
	// Answer is what the failure says of the host.
	Answer fleet.Answer
	// Queued: nothing was tried, because the call waited for its turn, or the database took nothing.
	Queued bool
}

// ending is how work ends.
type ending struct {
	event   fleet.Event
	detail  string
	failure *Failure
	jitter  float64
}

// Note writes facts in the middle of the work, all or none. The lease stays.
func (w *Work) Note(ctx context.Context, changes ...Change) error {
	return w.outcome(w.session.commitAlone(ctx, &commit{work: w, changes: changes}), false)
}

// Finish ends the work as done, with its facts, and resets the backoff of the process.
func (w *Work) Finish(ctx context.Context, changes ...Change) error {
	return w.finish(ctx, ending{event: fleet.EventFinished}, changes)
}

// Fail ends the work as failed; it is not due again before the backoff is over.
func (w *Work) Fail(ctx context.Context, f Failure, changes ...Change) error {
	return w.finish(ctx, ending{event: fleet.EventFailed, detail: f.Cause, failure: &f, jitter: w.session.db.jitter()}, changes)
}

// Cancel ends the work undone, without backoff: handed back. It is due again when lifecycle says,
// which may be at once.
func (w *Work) Cancel(ctx context.Context, reason string, changes ...Change) error {
	return w.finish(ctx, ending{event: fleet.EventCancelled, detail: reason}, changes)
}

func (w *Work) finish(ctx context.Context, e ending, changes []Change) error {
	return w.outcome(w.session.commitEnd(ctx, &commit{work: w, changes: changes, ending: &e}), true)
}

// outcome takes in how a commit went.
func (w *Work) outcome(err error, ends bool) error {
	switch {
	case fleet.KindOf(err) == fleet.KindLeaseLost:
		w.void()
		return fleet.ErrLeaseLost
	case err != nil:
		return err
	}
	if ends {
		w.life.End(context.Canceled)
		w.session.letGo(w)
	}
	return nil
}
