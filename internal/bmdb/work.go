package bmdb

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Work is an exclusive lease of one lane of one subject, held through a session and numbered by an
// epoch. The exported fields are as of the claim and are not to be written. It ends by exactly one
// of Finish, Fail and Cancel, or by the end of its session.
//
// Note, Finish, Fail and Cancel return ErrLeaseLost, with nothing changed, when the session has
// ended or the epoch is not the lane's any more. Any other error leaves open whether the
// transaction was committed. Repeating the same call is then safe: what was committed already is
// not done again, and nil is returned.
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
	life context.Context //nolint:containedctx // it is the lease
	die  context.CancelCauseFunc

	mu sync.Mutex
	// guards are the contexts that end with life.
	guards map[context.Context]context.CancelCauseFunc
	// unsure is the write in the middle of the work whose outcome is not known.
	unsure noted
}

// noted identifies one write in the middle of work.
type noted struct{ id, text string }

// Failing reports whether the work is on a machine at which the process failed lately: since it
// last succeeded, or an operator asked for a retry.
func (w *Work) Failing() bool {
	return !w.Process.OfProvider() && failing(&w.Record, w.Process)
}

func (w *Work) key() workKey { return workKey{w.Subject, w.Process.Lane(), w.Epoch} }

// anyEpoch is the key of the lane, whoever has it.
func (k workKey) anyEpoch() workKey {
	k.epoch = 0
	return k
}

// Guard returns a context that is cancelled, with cause ErrLeaseLost, when the session's trust
// window ends or an extension learns that somebody voided the lease (rule 8). Every act runs under
// it.
func (w *Work) Guard(ctx context.Context) (context.Context, context.CancelFunc) {
	trusted, release := w.session.Guard(ctx)
	guarded, cancel := context.WithCancelCause(trusted)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life.Err() != nil {
		cancel(context.Cause(w.life))
	} else {
		w.guards[guarded] = cancel
	}
	return guarded, func() {
		w.mu.Lock()
		delete(w.guards, guarded)
		w.mu.Unlock()
		cancel(context.Canceled)
		release()
	}
}

// newWork makes a work of the session; remember makes it known.
func (s *Session) newWork(subject fleet.Subject, process fleet.Process, epoch fleet.Epoch, since int64) *Work {
	w := &Work{session: s, Session: s.id, Process: process, Subject: subject, Epoch: epoch, since: since}
	w.life, w.die = context.WithCancelCause(s.window.Context())
	w.guards = make(map[context.Context]context.CancelCauseFunc)
	return w
}

// end ends the life of the work. What is under Guard is cancelled when it returns.
func (w *Work) end(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.die(cause)
	for _, cancel := range w.guards {
		cancel(cause)
	}
	clear(w.guards)
}

// void cancels everything under Guard and lets the session forget the work.
func (w *Work) void() {
	w.end(fleet.ErrLeaseLost)
	w.session.forget(w)
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
}

// ending is how work ends.
type ending struct {
	event  fleet.Event
	detail string
	// reset ends the backoff of the process.
	reset bool
	// ran: a pass over a provider counts as done.
	ran     bool
	failure *Failure
	jitter  float64
}

// Note writes facts in the middle of the work, all or none. The lease stays.
func (w *Work) Note(ctx context.Context, changes ...Change) error {
	w.mu.Lock()
	n := noted{uuid.NewString(), textOf(changes)}
	if w.unsure.text == n.text {
		n = w.unsure
	}
	w.unsure = n
	w.mu.Unlock()
	return w.outcome(w.session.commitAlone(ctx, &commit{work: w, changes: changes, note: n.id}), false)
}

// Finish ends the work as done, with its facts, and resets the backoff of the process.
func (w *Work) Finish(ctx context.Context, changes ...Change) error {
	return w.finish(ctx, ending{event: fleet.EventFinished, reset: true, ran: true}, changes)
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
	w.mu.Lock()
	w.unsure = noted{}
	w.mu.Unlock()
	if ends {
		w.end(context.Canceled)
		w.session.forget(w)
	}
	return nil
}

// textOf tells one set of changes from another.
func textOf(changes []Change) string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		texts[i] = c.text
	}
	return strings.Join(texts, "\n")
}
