package bmdb

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Work is an exclusive lease of one lane of one subject, held through a session and numbered by an
// epoch. The exported fields are as of the claim and are not to be written. It ends by exactly one
// of Finish, Fail and Cancel, or by the end of its session.
//
// Note, Finish, Fail and Cancel return ErrLeaseLost, with nothing changed, when the session has
// ended or the epoch is not the lane's any more. Any other error leaves open whether the
// transaction was committed; repeating the same call is then safe: what was committed already is
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
	// unsure is the write in the middle of the work whose outcome is not known.
	unsure note
	// known is the machine as this work has last read or left it: still the truth while its lane has
	// that revision. Nil: not known.
	known *judged
}

// note identifies one write in the middle of work.
type note struct{ id, text string }

func (w *Work) key() workKey { return workKey{w.Subject, w.Process.Lane(), w.Epoch} }

// Guard returns a context that is cancelled, with cause ErrLeaseLost, when the session's trust
// window ends or an extension learns that somebody voided the lease (rule 8). Every act runs under
// it.
func (w *Work) Guard(ctx context.Context) (context.Context, context.CancelFunc) {
	trusted, release := w.session.Guard(ctx)
	guarded, cancel := context.WithCancelCause(trusted)
	stop := context.AfterFunc(w.life, func() { cancel(context.Cause(w.life)) })
	return guarded, func() {
		stop()
		cancel(context.Canceled)
		release()
	}
}

// newWork makes a work of the session; claimEnds makes it known.
func (s *Session) newWork(subject fleet.Subject, process fleet.Process, epoch fleet.Epoch, since int64) *Work {
	w := &Work{session: s, Session: s.id, Process: process, Subject: subject, Epoch: epoch, since: since}
	w.life, w.die = context.WithCancelCause(s.trust.lost)
	return w
}

// void cancels everything under Guard and lets the session forget the work.
func (w *Work) void() {
	w.die(fleet.ErrLeaseLost)
	w.forget()
}

func (w *Work) forget() {
	w.session.mu.Lock()
	defer w.session.mu.Unlock()
	delete(w.session.works, w.key())
}

// Failure says how work failed.
type Failure struct {
	// Cause in one sentence.
	Cause   string
	Backoff fleet.Backoff
	// RetryAfter is the least that is waited, whatever the backoff says.
	RetryAfter time.Duration
}

// Note writes facts in the middle of the work, all or none. The lease stays.
func (w *Work) Note(ctx context.Context, changes ...Change) error {
	w.mu.Lock()
	n := note{uuid.NewString(), textOf(changes)}
	if w.unsure.text == n.text {
		n = w.unsure
	}
	w.unsure, w.known = n, nil
	w.mu.Unlock()
	var left *judged
	err := w.session.db.update(ctx, "note", func(ctx context.Context, t *transaction) error {
		left = nil
		lane, err := w.fence(ctx, t, changes)
		if err != nil {
			return err
		}
		if lane.Note == n.id {
			return w.recall(ctx, t, changes)
		}
		if err := w.apply(ctx, t, changes); err != nil {
			return err
		}
		err = t.q.SetLaneNote(ctx, statement.SetLaneNoteParams{
			Note: n.id, Subject: subjectKey(w.Subject), Lane: string(w.Process.Lane()),
		})
		if err != nil {
			return err
		}
		left, err = w.rewrite(ctx, t, changes)
		return err
	})
	if err == nil {
		w.remember(left)
	}
	return w.outcome(err, false)
}

func (w *Work) remember(j *judged) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = j
}

// recollect returns what the work knows of its machine, as it is once the work has ended; nil when
// that must be read. When an agent was last heard is no part of the revision, so whoever has one is
// read.
func (w *Work) recollect() *judged {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known == nil || w.known.record.AgentSeen != nil {
		return nil
	}
	return w.known.freed()
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

// ending is how work ends.
type ending struct {
	event  fleet.Event
	detail string
	reset  bool
	// ran: a pass over a provider counts as done.
	ran     bool
	failure *Failure
	jitter  float64
}

func (w *Work) finish(ctx context.Context, e ending, changes []Change) error {
	return w.outcome(w.session.commitEnd(ctx, w, e, changes), true)
}

// endAlone commits an end by a transaction of its own.
func (w *Work) endAlone(ctx context.Context, e ending, changes []Change) error {
	return w.session.db.update(ctx, string(e.event), func(ctx context.Context, t *transaction) error {
		_, err := w.fence(ctx, t, changes)
		if fleet.KindOf(err) == fleet.KindLeaseLost {
			return w.again(ctx, t, e, changes)
		}
		if err != nil {
			return err
		}
		if err := w.apply(ctx, t, changes); err != nil {
			return err
		}
		return w.end(ctx, t, e, changes)
	})
}

// outcome keeps the book of what this process holds.
func (w *Work) outcome(err error, ends bool) error {
	switch {
	case fleet.KindOf(err) == fleet.KindLeaseLost:
		w.void()
		return fleet.ErrLeaseLost
	case err != nil:
		return fmt.Errorf("%s of %s: %w", w.Process, w.Subject, err)
	}
	w.mu.Lock()
	w.unsure = note{}
	w.mu.Unlock()
	if ends {
		w.die(context.Canceled)
		w.forget()
	}
	return nil
}

// fence locks what the commit needs and then, by a later statement, makes sure that the lane is
// still ours (rules 1 and 3).
func (w *Work) fence(ctx context.Context, t *transaction, changes []Change) (statement.GetLaneRow, error) {
	l := locks{session: w.Session}
	l.add(w.Subject)
	for _, c := range changes {
		ids, err := c.concerns(ctx, t)
		if err != nil {
			return statement.GetLaneRow{}, err
		}
		l.machines = append(l.machines, ids...)
	}
	if err := l.take(ctx, t); err != nil {
		return statement.GetLaneRow{}, err
	}
	lane, err := t.q.GetLane(ctx, statement.GetLaneParams{Subject: subjectKey(w.Subject), Lane: string(w.Process.Lane())})
	if absent(err) {
		return statement.GetLaneRow{}, fleet.ErrLeaseLost
	}
	if err != nil {
		return statement.GetLaneRow{}, fmt.Errorf("read the lane: %w", err)
	}
	if lane.Session != string(w.Session) || lane.Epoch != int64(w.Epoch) || lane.EndedAt != 0 {
		return statement.GetLaneRow{}, fleet.ErrLeaseLost
	}
	return lane, nil
}

// again: an end that was committed before, with its reply lost, is no loss.
func (w *Work) again(ctx context.Context, t *transaction, e ending, changes []Change) error {
	was, err := t.q.GetWorkEnd(ctx, statement.GetWorkEndParams{
		Subject: subjectKey(w.Subject), Epoch: int64(w.Epoch), Lane: string(w.Process.Lane()),
	})
	if absent(err) {
		return fleet.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("look how the work ended: %w", err)
	}
	if was.Session != string(w.Session) || was.Event != string(e.event) {
		return fleet.ErrLeaseLost
	}
	return w.recall(ctx, t, changes)
}

func (w *Work) apply(ctx context.Context, t *transaction, changes []Change) error {
	for _, c := range changes {
		if err := c.apply(ctx, t, w); err != nil {
			return err
		}
	}
	return nil
}

// recall fills in the answers of changes that were committed before.
func (w *Work) recall(ctx context.Context, t *transaction, changes []Change) error {
	for _, c := range changes {
		if err := c.recall(ctx, t, w); err != nil {
			return err
		}
	}
	return nil
}

// rewrite the agendas of the subject and of whatever else was changed. It returns what it has read
// and left of the subject, where that is a machine.
func (w *Work) rewrite(ctx context.Context, t *transaction, changes []Change) (*judged, error) {
	machines := make(map[fleet.MachineID]bool)
	for _, c := range changes {
		for _, id := range c.touched() {
			if machines[id] || id == w.Subject.Machine {
				continue
			}
			machines[id] = true
			if err := t.rewrite(ctx, id); err != nil {
				return nil, err
			}
		}
	}
	if w.Subject.Provider != "" {
		return nil, t.rewriteProvider(ctx, w.Subject.Provider)
	}
	return t.rewritten(ctx, w.Subject.Machine)
}

// end writes the end of the work and what follows from it.
func (w *Work) end(ctx context.Context, t *transaction, e ending, changes []Change) error {
	h := history{actor: w.session.actor(), event: e.event, detail: e.detail}
	subject := subjectKey(w.Subject)
	switch {
	case e.failure != nil:
		retryAt, err := t.backOff(ctx, subject, w.Process, *e.failure, e.jitter)
		if err != nil {
			return err
		}
		h.retryAt = retryAt
	case e.reset:
		if _, err := t.q.DeleteBackoff(ctx, statement.DeleteBackoffParams{Subject: subject, Process: string(w.Process)}); err != nil {
			return fmt.Errorf("reset the backoff: %w", err)
		}
	}
	if e.ran {
		if err := w.ran(ctx, t); err != nil {
			return err
		}
	}
	err := t.end(ctx, held{
		subject: w.Subject, lane: w.Process.Lane(), epoch: w.Epoch, session: w.Session, process: w.Process, since: w.since,
	}, h)
	if err != nil {
		return err
	}
	_, err = w.rewrite(ctx, t, changes)
	return err
}

// ran remembers when the pass over a provider that is finished now had started.
func (w *Work) ran(ctx context.Context, t *transaction) (err error) {
	switch name := string(w.Subject.Provider); w.Process {
	case fleet.ProcessProvision:
		err = t.q.SetLastPass(ctx, statement.SetLastPassParams{At: w.since, Name: name})
	case fleet.ProcessUpdate:
		err = t.q.SetLastUpdate(ctx, statement.SetLastUpdateParams{At: w.since, Name: name})
	case fleet.ProcessAgentStart, fleet.ProcessInstall, fleet.ProcessRecovery:
	}
	if err != nil {
		return fmt.Errorf("remember the pass: %w", err)
	}
	return nil
}

// backOff writes the next backoff of a process and returns when it is over (I5: the stored interval
// has no jitter).
func (t *transaction) backOff(ctx context.Context, subject string, process fleet.Process, f Failure, jitter float64) (time.Time, error) {
	all, err := t.backoffs(ctx, subject)
	if err != nil {
		return time.Time{}, err
	}
	next := t.nextBackoff(all[process], f, jitter)
	err = t.q.PutBackoff(ctx, statement.PutBackoffParams{
		Subject: subject, Process: string(process), NotBefore: micros(next.NotBefore), Lasts: next.Interval.Microseconds(), Cause: next.Cause,
		Failures: int64(next.Failures),
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("write the backoff: %w", err)
	}
	return next.NotBefore, nil
}

// nextBackoff is what follows one more failure.
func (t *transaction) nextBackoff(was fleet.Waiting, f Failure, jitter float64) fleet.Waiting {
	interval := f.Backoff.Next(was.Interval)
	until := t.Now().Add(max(fleet.Jittered(interval, jitter), f.RetryAfter)).Truncate(time.Microsecond)
	return fleet.Waiting{NotBefore: until, Interval: interval, Cause: f.Cause, Failures: was.Failures + 1}
}

// textOf tells one set of changes from another.
func textOf(changes []Change) string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		texts[i] = c.String()
	}
	return strings.Join(texts, "\n")
}
