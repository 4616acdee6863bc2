package bmdb

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

const (
	// maxBatch bounds how many works one transaction ends.
	maxBatch = 200
	// batchTimeout bounds that transaction. It is no single caller's, so no caller's context ends it.
	batchTimeout = 10 * time.Second
)

// commit is one write of a holder: a note in the middle of its work, or the work's end.
type commit struct {
	work    *Work
	changes []Change
	// ending is how the work ends; nil: it goes on.
	ending *ending
	applied
}

// applied is what one run of the transaction finds and does for a commit; each run begins anew.
type applied struct {
	// lane of the work's subject, and the subject as it was read under its lock.
	lane     *lane
	machine  *machineRecord
	provider *providerRecord
	// touched are the subjects of which a change wrote facts; the work's own may be among them.
	touched []fleet.Subject
	// gone: the machine has been given back, and its row goes with the end of the work.
	gone bool
	// found is what a probe has found, and foundSame says that the one before has found the same.
	found     string
	foundSame bool
}

// touch notes that a change wrote a fact of that machine.
func (c *commit) touch(id fleet.MachineID) {
	c.touched = append(c.touched, fleet.Subject{Machine: id})
}

// alone says whether a commit must not be put together with others. That is one that needs other
// rows than that of its own machine: it could wait for them. And it is one that has answers for its
// caller: a batch may be committed after the caller has given up, and must not write to it then.
func (c *commit) alone() bool {
	return c.work.Subject.Machine == "" || slices.ContainsFunc(c.changes, func(ch Change) bool {
		return ch.concerns != nil || len(ch.machines) > 0 || ch.answers
	})
}

// commitEnd ends a work, together with others that end while others are being committed. One that
// was not committed with them (its machine is locked by somebody else, its lease is lost, or the
// batch failed) is committed alone: there its caller waits for nobody but itself, and learns what
// is wrong.
func (s *Session) commitEnd(ctx context.Context, c *commit) error {
	if !c.alone() {
		var failed error
		done, err := s.ends.Do(ctx, c, maxBatch, func(shared context.Context, list []*commit) (done []bool) {
			if len(list) == 1 { // nobody else is concerned
				done, failed = s.commitBatch(ctx, list)
				return done
			}
			shared, cancel := context.WithTimeout(shared, batchTimeout)
			defer cancel()
			done, _ = s.commitBatch(shared, list) // each finds out for itself what was wrong
			return done
		})
		if done || err != nil || failed != nil {
			return errors.Join(err, failed)
		}
	}
	return s.commitAlone(ctx, c)
}

// commitBatch commits those of the list that it can, without waiting for anybody, and says which.
func (s *Session) commitBatch(ctx context.Context, list []*commit) (done []bool, err error) {
	done = make([]bool, len(list))
	err = s.db.update(ctx, "end works", func(ctx context.Context, t *transaction) error {
		committed, err := t.commit(ctx, s, list, true)
		for i, c := range list {
			done[i] = slices.Contains(committed, c)
		}
		return err
	})
	if err != nil {
		clear(done)
	}
	return done, err
}

// commitAlone commits one, and waits for whoever has what it needs.
func (s *Session) commitAlone(ctx context.Context, c *commit) error {
	kind := "note"
	if c.ending != nil {
		kind = string(c.ending.event)
	}
	return s.db.update(ctx, kind, func(ctx context.Context, t *transaction) error {
		committed, err := t.commit(ctx, s, []*commit{c}, false)
		if err == nil && len(committed) == 0 {
			return t.repeated(ctx, c)
		}
		return err
	})
}

// commit writes what holders have to write: it locks, then reads by later statements, and then goes
// on with those of the list whose leases are still theirs (rules 1 and 3), which it returns. With
// skipLocked it leaves out those whose machines somebody else has locked.
func (t *transaction) commit(ctx context.Context, s *Session, list []*commit, skipLocked bool) (ours []*commit, err error) {
	l := locks{session: s.id, skipLocked: skipLocked}
	for _, c := range list {
		c.applied = applied{}
		if err := c.addLocks(ctx, t, &l); err != nil {
			return nil, err
		}
	}
	if err := l.take(ctx, t); err != nil {
		return nil, err
	}
	if _, alive, err := t.alive(ctx, s.id); err != nil || !alive {
		return nil, err
	}
	list = slices.DeleteFunc(slices.Clone(list), func(c *commit) bool { return l.lack(c.work.Subject) })
	if err := t.readSubjects(ctx, list); err != nil {
		return nil, err
	}
	seen := make(map[fleet.Subject]bool, len(list))
	for _, c := range list {
		if c.lane == nil || !c.lane.heldBy(c.work) || seen[c.work.Subject] {
			continue
		}
		seen[c.work.Subject] = true
		for _, ch := range c.changes {
			if err := ch.apply(ctx, t, c); err != nil {
				return nil, err
			}
		}
		ours = append(ours, c)
	}
	return ours, t.writeAll(ctx, ours)
}

// addLocks adds what a commit is going to write about to what is locked for it.
func (c *commit) addLocks(ctx context.Context, t *transaction, l *locks) error {
	l.add(c.work.Subject)
	for _, ch := range c.changes {
		l.machines = append(l.machines, ch.machines...)
		if ch.concerns == nil {
			continue
		}
		if err := ch.concerns(ctx, t, c.work, l); err != nil {
			return err
		}
	}
	return nil
}

// readSubjects reads the subjects of commits.
func (t *transaction) readSubjects(ctx context.Context, list []*commit) error {
	var ids []fleet.MachineID
	for _, c := range list {
		if id := c.work.Subject.Machine; id != "" {
			ids = append(ids, id)
		}
	}
	machines := map[fleet.MachineID]*machineRecord{}
	var err error
	if len(ids) > 0 {
		if machines, err = t.loadAll(ctx, ids); err != nil {
			return err
		}
	}
	for _, c := range list {
		if name := c.work.Subject.Provider; name != "" {
			if c.provider, err = t.loadProvider(ctx, name); err != nil {
				return err
			}
			c.lane = &c.provider.lanes[c.work.Process].lane
		} else if m, there := machines[c.work.Subject.Machine]; there {
			c.machine, c.lane = m, &m.lane
		}
	}
	return nil
}

// writeAll writes the ends and notes of commits whose changes have been applied, and what follows
// from them.
func (t *transaction) writeAll(ctx context.Context, list []*commit) error {
	var changed []*commit
	for _, c := range list {
		if err := t.ran(ctx, c); err != nil {
			return err
		}
		if len(c.changes) > 0 || c.provider != nil { // what was read is no longer all that there is
			changed = append(changed, c)
		}
	}
	if err := t.readSubjects(ctx, changed); err != nil {
		return err
	}
	for _, c := range list {
		if c.ending != nil {
			t.endWork(c)
		}
		var err error
		if c.gone {
			err = t.removeFacts(ctx, c.machine, outcomeReleased)
		} else if c.machine != nil {
			t.buffer.machine(c.machine)
			err = t.derive(ctx, c.machine)
		} else {
			t.buffer.lane(c.provider.lanes[c.work.Process])
			err = t.deriveProvider(ctx, c.provider)
		}
		if err != nil {
			return err
		}
		others := slices.DeleteFunc(c.touched, func(s fleet.Subject) bool { return s == c.work.Subject })
		if err := t.rewriteSubjects(ctx, others); err != nil {
			return err
		}
	}
	return nil
}

// endWork ends the work in its lane, and writes its backoff.
func (t *transaction) endWork(c *commit) {
	w, e := c.work, c.ending
	h := history{actor: w.session.actor(), event: e.event, detail: cmp.Or(e.detail, c.found)}
	backoffs := c.backoffs()
	was, backed := backoffs[w.Process]
	switch {
	case e.failure != nil && !c.overtaken():
		h.retryAt = t.backOff(backoffs, w.Subject, w.Process, *e.failure, e.jitter)
	case backed && (e.failure != nil || e.event == fleet.EventFinished):
		delete(backoffs, w.Process)
		t.buffer.resetBackoff(keyOf(w.Subject), w.Process)
	}
	if c.quiet(was) {
		t.endQuietly(c.lane, e.event)
		return
	}
	t.end(w.Subject, c.lane, h)
}

// overtaken reports whether the agent that was to be started again was heard since that was begun.
// Then the failure says nothing of what comes after it: see forgetFailures.
func (c *commit) overtaken() bool {
	return c.work.Process == fleet.ProcessAgentStart && c.machine != nil && lifecycle.HeardSince(c.machine.facts, instant(c.work.since))
}

func (c *commit) backoffs() map[fleet.Process]fleet.BackoffState {
	if c.machine != nil {
		return c.machine.facts.Backoffs
	}
	return c.provider.facts.Backoffs
}

// backOff notes the next backoff of a process and returns when it is over (I5: the interval that is
// stored has no jitter).
func (t *transaction) backOff(
	backoffs map[fleet.Process]fleet.BackoffState, subject fleet.Subject, process fleet.Process, f Failure, jitter float64,
) time.Time {
	was := backoffs[process]
	interval := f.Backoff.Next(was.Interval)
	next := fleet.BackoffState{
		NotBefore: t.Now().Add(max(fleet.Jittered(interval, jitter), f.RetryAfter)).Truncate(time.Microsecond),
		Interval:  interval, Cause: f.Cause, Failures: was.Failures + 1, Since: was.Since,
	}
	if f.Queued { // what failed in earnest before goes on from there
		next.Interval = max(interval, was.Interval)
	}
	if next.Since.IsZero() && (!f.Queued || process == fleet.ProcessProbe) {
		next.Since = t.Now()
	}
	heard := was.Heard(f.Answer, t.Now())
	next.UnansweredSince, next.UnansweredAt = heard.UnansweredSince, heard.UnansweredAt
	next.Answered, next.Refused, next.OtherKey = heard.Answered, heard.Refused, heard.OtherKey
	backoffs[process] = next
	t.buffer.backoff(keyOf(subject), process, next)
	return next.NotBefore
}

// ran remembers when the pass over a provider that ends now had started, if it finishes.
func (t *transaction) ran(ctx context.Context, c *commit) (err error) {
	if c.ending == nil || c.ending.event != fleet.EventFinished {
		return nil
	}
	switch name := string(c.work.Subject.Provider); c.work.Process {
	case fleet.ProcessProvision:
		err = t.q.SetLastPass(ctx, statement.SetLastPassParams{At: c.work.since, Name: name})
	case fleet.ProcessUpdate:
		err = t.q.SetLastUpdate(ctx, statement.SetLastUpdateParams{At: c.work.since, Name: name})
	case fleet.ProcessAgentStart, fleet.ProcessInstall, fleet.ProcessOperation, fleet.ProcessRecovery, fleet.ProcessProbe:
	}
	return err
}

// repeated says what became of a commit whose lease is not ours any more: an end that was committed
// before, with its reply lost, is no loss.
func (t *transaction) repeated(ctx context.Context, c *commit) error {
	w := c.work
	if c.ending == nil {
		return fleet.ErrLeaseLost
	}
	was, err := t.q.GetWorkEnd(ctx, statement.GetWorkEndParams{
		Subject: keyOf(w.Subject), NotBefore: w.since - time.Hour.Microseconds(), StartedAt: w.since, Epoch: int64(w.Epoch), Process: string(w.Process),
	})
	unrecorded := absent(err)
	if err != nil && !unrecorded {
		return err
	}
	if done, err := t.endedBefore(ctx, c, unrecorded); done || err != nil {
		return err
	}
	if unrecorded || was.Session != string(w.Session) || was.Event != string(c.ending.event) {
		return fleet.ErrLeaseLost
	}
	return nil
}
