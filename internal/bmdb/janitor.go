package bmdb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// RecomputeAgenda sums up the counts of states, and judges again, at most limit machines a call:
// first those that were judged under an older policy (rule 10) or by an older release's rules, then
// those whose agent start or install has become due and was claimed by no loop: what is shown of
// them changes by time alone, at that instant. It returns how many it looked at; called by the
// janitor until that is less than limit, then after a pause.
func (db *DB) RecomputeAgenda(ctx context.Context, limit int) (n int, err error) {
	if err := db.foldCounts(ctx); err != nil {
		return 0, err
	}
	if n, err = db.recomputePolicy(ctx, limit); err != nil || n >= limit {
		return n, err
	}
	for _, process := range []fleet.Process{fleet.ProcessAgentStart, fleet.ProcessInstall} {
		m, err := db.recomputeDue(ctx, process, limit-n)
		n += m
		if err != nil || n >= limit {
			return n, err
		}
	}
	return n, nil
}

// recomputePolicy judges again what was judged under an older policy, or older rules.
func (db *DB) recomputePolicy(ctx context.Context, limit int) (int, error) {
	var machines []string
	var number int64
	err := db.view(ctx, "older policies", func(ctx context.Context, t *transaction) error {
		env, err := t.environment(ctx)
		if err != nil {
			return err
		}
		number = env.Policy.Number
		machines, err = t.q.ListOlderPolicy(ctx, statement.ListOlderPolicyParams{Policy: basisNow(env.Policy).stored(), MaxRows: int64(limit)})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("list what was judged under older policies: %w", err)
	}
	if db.judged.Load() < number {
		if err := db.rewriteProviders(ctx); err != nil {
			return 0, err
		}
		db.judged.Store(number)
	}
	return eachFree(machines, "judge again machine", func(id string) error { return db.rewrite(ctx, "judge again", []string{id}, false) })
}

func (db *DB) rewriteProviders(ctx context.Context) error {
	providers, err := read(ctx, db.view, "provider names", func(ctx context.Context, t *transaction) ([]string, error) {
		return t.q.ListProviderNames(ctx)
	})
	if err != nil {
		return fmt.Errorf("list providers: %w", err)
	}
	for _, name := range providers {
		if err := db.rewrite(ctx, "judge again", []string{providerKey(fleet.ProviderName(name))}, false); err != nil {
			return fmt.Errorf("judge provider %s again: %w", name, err)
		}
	}
	return nil
}

// recomputed is how far recomputeDue has looked at what is due and stays so, by process. It holds
// the lock while it looks: who comes second has nothing to do meanwhile.
type recomputed struct {
	sync.Mutex
	at map[fleet.Process]cursor
}

// cursor is a position in the agenda of one process.
type cursor struct {
	dueAt   int64
	subject string
	// began is when the round began, and again is where the next one begins. done: it has come to what
	// is not due yet, and goes on with what becomes due.
	began, again int64
	done         bool
}

// next is where the janitor goes on. A machine that was judged when it was due stays as it is until
// somebody writes a fact, so only the first round goes through all that is due. The later ones
// begin a minute before the round before began: an entry may be committed after its instant. A
// clock that was set back begins anew.
func (c cursor) next(now int64) cursor {
	const every = int64(agenda.ScanEvery / time.Microsecond)
	switch {
	case c.began == 0 || now < c.began:
		return cursor{began: now, again: now - every}
	case c.done && now-c.began >= every:
		return cursor{dueAt: c.again, began: now, again: now - every}
	}
	return c
}

// recomputeDue judges again, in the order of the agenda, the machines for which the process has
// become due, from where the last call stopped.
func (db *DB) recomputeDue(ctx context.Context, process fleet.Process, limit int) (n int, err error) {
	db.recomputed.Lock()
	defer db.recomputed.Unlock()
	var at cursor
	var rows []statement.ListAgendaRow
	var now int64
	err = db.peek(ctx, "due and waiting", func(ctx context.Context, t *transaction) (err error) {
		now = micros(t.Now())
		if now < db.recomputed.at[process].began {
			db.judged.Store(0) // nor is what was decided about providers as it was
		}
		at = db.recomputed.at[process].next(now)
		rows, err = t.q.ListAgenda(ctx, statement.ListAgendaParams{
			Process: string(process), AfterDueAt: at.dueAt, AfterSubject: at.subject, MaxRows: int64(limit),
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the agenda: %w", err)
	}
	defer func() { db.recomputed.at[process] = at }()
	var stuck []error
	for _, r := range rows {
		if r.DueAt > now {
			at.done = true
			break
		}
		err := db.rewrite(ctx, "judge again", []string{r.Subject}, false)
		if err != nil {
			err = fmt.Errorf("judge machine %s again: %w", r.Subject, err)
			if !lockedByOthers(err) {
				return n, err
			}
			stuck = append(stuck, err) // somebody has it locked: in the next round
			at.again = min(at.again, r.DueAt-1)
		}
		n++
		at.dueAt, at.subject = r.DueAt, r.Subject
	}
	at.done = at.done || len(rows) < limit
	return n, errors.Join(stuck...)
}
