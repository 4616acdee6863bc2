package bmdb

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// buffer is what a transaction has yet to write. Of each table it is one call of statement.Many,
// which PostgreSQL makes one statement. Providers' lanes, of which each has two, go one by one. The
// transaction writes it at its end, and before it reads a subject again.
type buffer struct {
	histories  []statement.InsertHistoryParams
	delAgenda  []statement.DeleteAgendaParams
	putAgenda  []statement.InsertAgendaParams
	states     []statement.PutStateParams
	counts     map[stateKey]int64
	putBackoff []statement.PutBackoffParams
	delBackoff []statement.DeleteBackoffParams
	// machines and lanes are rows that are written as they are at the end, in the order in which they
	// were changed: a simulation repeats itself.
	machines []*machineRecord
	lanes    []*providerLane
	// subjects of what is not written yet.
	subjects map[string]bool
}

type stateKey struct{ provider, state string }

func newBuffer() *buffer {
	return &buffer{counts: make(map[stateKey]int64), subjects: make(map[string]bool)}
}

// machine notes that the row of a machine has changed.
func (b *buffer) machine(m *machineRecord) {
	if !m.changed {
		m.changed = true
		b.machines = append(b.machines, m)
		b.subjects[machineKey(m.facts.ID)] = true
	}
}

// lane notes that a lane of a provider has changed.
func (b *buffer) lane(l *providerLane) {
	if !l.changed {
		l.changed = true
		b.lanes = append(b.lanes, l)
		b.subjects[providerKey(l.provider)] = true
	}
}

// move moves the entry of a subject in the agenda from one instant to another, and reports whether
// they differ; 0: there is no entry. One that comes, or becomes earlier, is told to those who wait.
func (t *transaction) move(process fleet.Process, subject string, provider fleet.ProviderName, from, to int64) bool {
	b := t.buffer
	if from == to {
		return false
	}
	if from != 0 {
		b.delAgenda = append(b.delAgenda, statement.DeleteAgendaParams{Process: string(process), DueAt: from, Subject: subject})
	}
	if to != 0 {
		b.putAgenda = append(b.putAgenda, statement.InsertAgendaParams{Process: string(process), DueAt: to, Subject: subject, Provider: string(provider)})
		if from == 0 || to < from {
			t.becomesDue(process, provider, time.UnixMicro(to))
		}
	}
	return true
}

// state notes a machine's new state, and what that changes in the counts.
func (b *buffer) state(was string, s statement.PutStateParams) {
	b.states = append(b.states, s)
	b.subjects[s.Machine] = true
	b.count(s.Provider, was, -1)
	b.count(s.Provider, s.State, 1)
}

func (b *buffer) count(provider, state string, n int64) {
	if state == "" {
		return
	}
	k := stateKey{provider, state}
	if b.counts[k] += n; b.counts[k] == 0 {
		delete(b.counts, k)
	}
}

// backoff notes what a process of a subject waits for, and resetBackoff that it waits no more.
func (b *buffer) backoff(subject string, process fleet.Process, w fleet.BackoffState) {
	b.subjects[subject] = true
	b.putBackoff = append(b.putBackoff, statement.PutBackoffParams{
		Subject: subject, Process: string(process), NotBefore: micros(w.NotBefore), Lasts: w.Interval.Microseconds(), Cause: w.Cause,
		Failures: int64(w.Failures), UnansweredSince: micros(w.UnansweredSince), UnansweredAt: micros(w.UnansweredAt),
		Answered: bit(w.Answered) + bit(w.Refused) + bit(w.OtherKey), Since: micros(w.Since),
	})
}

// bit is how the database has what is true or not.
func bit(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func (b *buffer) resetBackoff(subject string, processes ...fleet.Process) {
	b.subjects[subject] = true
	for _, process := range processes {
		b.delBackoff = append(b.delBackoff, statement.DeleteBackoffParams{Subject: subject, Process: string(process)})
	}
}

// flush writes everything that the buffer holds.
func (t *transaction) flush(ctx context.Context) error {
	b := t.buffer
	t.buffer = newBuffer()
	var counts []statement.InsertStateCountParams
	for k, n := range b.counts {
		counts = append(counts, statement.InsertStateCountParams{Provider: k.provider, State: k.state, N: n})
	}
	for _, w := range []struct {
		rows  int
		write func() error
	}{
		{len(b.delBackoff), func() error { return t.many.DeleteBackoffs(ctx, b.delBackoff) }},
		{len(b.putBackoff), func() error { return t.many.PutBackoffs(ctx, b.putBackoff) }},
		{len(b.histories), func() error { return t.many.InsertHistories(ctx, b.histories) }},
		{len(b.delAgenda) + len(b.putAgenda), func() error { return t.many.MoveAgenda(ctx, b.delAgenda, b.putAgenda) }},
		{len(b.machines), func() error { return t.updateMachines(ctx, b.machines) }},
		{len(b.lanes), func() error { return t.updateLanes(ctx, b.lanes) }},
		{len(b.states), func() error { return t.many.PutStates(ctx, b.states) }},
		{len(counts), func() error { return t.many.InsertStateCounts(ctx, counts) }},
	} {
		if w.rows == 0 {
			continue
		}
		if err := w.write(); err != nil {
			return err
		}
	}
	return nil
}

// written fails unless every row was still as it had been read: each write of a lane names the
// session, the epoch and the revision that it replaces (rule 3). Under the locks that protect the
// rows it never does.
func written(n int64, rows int) error {
	if n != int64(rows) {
		return fleet.Errorf(fleet.KindTemporary, "%d of %d rows were changed by somebody else", int64(rows)-n, rows)
	}
	return nil
}

func (t *transaction) updateMachines(ctx context.Context, list []*machineRecord) error {
	rows := make([]statement.UpdateMachineParams, len(list))
	for i, m := range list {
		l, was := &m.lane, m.lane.was
		rows[i] = statement.UpdateMachineParams{
			ID: string(m.facts.ID), WasEpoch: was.epoch, WasSession: was.session, WasRevision: was.revision,
			Epoch: int64(l.epoch), Session: string(l.session), Process: string(l.process), Since: l.since, Why: l.why,
			DueAgentStart: m.due[fleet.ProcessAgentStart], DueInstall: m.due[fleet.ProcessInstall],
			DueOperation: m.due[fleet.ProcessOperation], DueRecovery: m.due[fleet.ProcessRecovery],
			DueProbe: m.due[fleet.ProcessProbe],
		}
		if m.underRecovery || limited(l.process) {
			rows[i].Limited = string(fleet.ProcessRecovery)
		}
		m.changed, l.was = false, fence{epoch: int64(l.epoch), session: string(l.session), revision: was.revision + 1}
	}
	n, err := t.many.UpdateMachines(ctx, rows)
	if err != nil {
		return err
	}
	return written(n, len(rows))
}

func (t *transaction) updateLanes(ctx context.Context, list []*providerLane) error {
	for _, l := range list {
		was := l.was
		l.changed, l.was = false, fence{epoch: int64(l.epoch), session: string(l.session), revision: was.revision + 1}
		n, err := t.q.UpdateProviderLane(ctx, statement.UpdateProviderLaneParams{
			Provider: string(l.provider), Process: string(l.of), WasEpoch: was.epoch, WasSession: was.session, WasRevision: was.revision,
			Epoch: int64(l.epoch), Session: string(l.session), Since: l.since, Why: l.why, DueAt: l.due,
		})
		if err != nil {
			return err
		}
		if err := written(n, 1); err != nil {
			return err
		}
	}
	return nil
}
