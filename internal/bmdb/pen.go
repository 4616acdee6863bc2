package bmdb

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// pen holds what a transaction is about to write of history, agenda and states, so that it is
// written by one statement each, however many machines it is about. What is read back is written
// first.
type pen struct {
	histories statement.Rows
	agendas   map[agendaKey]agendaRow
	// order of the agendas, and of the states, as they were first written: a simulation repeats
	// itself.
	order  []agendaKey
	states statement.Rows
	counts map[countKey]int64
	// subjects have something in the agenda or the states that is not written yet.
	subjects map[string]bool
	// stirred are the machines whose holder is to learn that what it has read is not all any more.
	stirred map[fleet.MachineID]bool
}

type agendaKey struct {
	subject string
	process fleet.Process
}

type agendaRow struct {
	provider fleet.ProviderName
	dueAt    int64
	gone     bool
}

type countKey struct{ provider, state string }

func newPen() pen {
	return pen{
		agendas: make(map[agendaKey]agendaRow), counts: make(map[countKey]int64), subjects: make(map[string]bool),
		stirred: make(map[fleet.MachineID]bool),
	}
}

func (p *pen) agenda(k agendaKey, row agendaRow) {
	if _, ok := p.agendas[k]; !ok {
		p.order = append(p.order, k)
	}
	p.agendas[k] = row
	p.subjects[k.subject] = true
}

// state notes a machine's new state; each machine once between two flushes, since it is read before
// it is written.
func (p *pen) state(was string, s statement.MachineState) {
	p.states = append(p.states, []any{s.Machine, s.Provider, s.State, s.Reason, s.Since, s.Policy})
	p.subjects[s.Machine] = true
	if was != s.State {
		p.count(s.Provider, was, -1)
		p.count(s.Provider, s.State, 1)
	}
}

func (p *pen) count(provider, state string, n int64) {
	if state == "" {
		return
	}
	k := countKey{provider, state}
	if p.counts[k] += n; p.counts[k] == 0 {
		delete(p.counts, k)
	}
}

// flush writes everything that the pen holds.
func (t *transaction) flush(ctx context.Context) error {
	p := t.pen
	t.pen = newPen()
	var puts, deletes statement.Rows
	for _, k := range p.order {
		if row := p.agendas[k]; row.gone {
			deletes = append(deletes, []any{k.subject, string(k.process)})
		} else {
			puts = append(puts, []any{k.subject, string(k.process), string(row.provider), row.dueAt})
		}
	}
	var stirs statement.Rows
	for _, id := range slices.Sorted(maps.Keys(p.stirred)) {
		stirs = append(stirs, []any{machineSubject(id), string(fleet.LaneHost)})
	}
	var counts statement.Rows
	for k, n := range p.counts {
		counts = append(counts, []any{k.provider, k.state, n})
	}
	for _, w := range []struct {
		what  string
		rows  statement.Rows
		write func(ctx context.Context, rows statement.Rows) error
	}{
		{"history", p.histories, t.q.InsertHistories},
		{"the agenda", deletes, t.q.DeleteAgendas},
		{"the agenda", puts, t.q.PutAgendas},
		{"states", p.states, t.q.PutStates},
		{"state counts", counts, t.q.InsertStateCounts},
		{"revisions", stirs, t.q.StirLanes},
	} {
		if len(w.rows) == 0 {
			continue
		}
		if err := w.write(ctx, w.rows); err != nil {
			return fmt.Errorf("write %s: %w", w.what, err)
		}
	}
	return nil
}

// prefetch loads machines by one statement for each kind of rows, for the next load of each.
func (t *transaction) prefetch(ctx context.Context, ids []fleet.MachineID) error {
	if slices.ContainsFunc(ids, func(id fleet.MachineID) bool { return t.pen.subjects[machineSubject(id)] }) {
		if err := t.flush(ctx); err != nil {
			return err
		}
	}
	keys := statement.Keys(ids)
	rows, err := t.q.GetMachines(ctx, keys)
	if err != nil {
		return fmt.Errorf("read machines: %w", err)
	}
	t.loaded = make(map[fleet.MachineID]*judged, len(rows))
	for _, row := range rows {
		j := &judged{row: row, agenda: make(map[fleet.Process]time.Time)}
		if j.record, err = recordOf(row); err != nil {
			return err
		}
		j.record.Backoffs = make(map[fleet.Process]fleet.BackoffState)
		t.loaded[fleet.MachineID(row.ID)] = j
	}
	backoffs, err := t.q.GetAllBackoffs(ctx, keys)
	if err != nil {
		return fmt.Errorf("read backoffs: %w", err)
	}
	for _, b := range backoffs {
		if j, ok := t.loaded[fleet.MachineID(b.Subject)]; ok {
			j.record.Backoffs[fleet.Process(b.Process)] = waitingOf(b)
		}
	}
	agendas, err := t.q.GetAllAgenda(ctx, keys)
	if err != nil {
		return fmt.Errorf("read agendas: %w", err)
	}
	for _, a := range agendas {
		if j, ok := t.loaded[fleet.MachineID(a.Subject)]; ok {
			j.agenda[fleet.Process(a.Process)] = time.UnixMicro(a.DueAt).UTC()
		}
	}
	return nil
}

func waitingOf(b statement.Backoff) fleet.BackoffState {
	return fleet.BackoffState{NotBefore: instant(b.NotBefore), Interval: lasting(b.Lasts), Cause: b.Cause, Failures: int(b.Failures)}
}
