package bmdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// transaction is one run of a function in a transaction of the engine: the statements, the
// environment as of this transaction, and what is to be told to others once it is committed.
type transaction struct {
	Tx
	db *DB
	q  *statement.Queries
	// env is read once, after the first locks; see environment.
	env *fleet.Environment
	// sooner are the agenda rows that this transaction made due earlier, the earliest for each head.
	sooner map[headKey]time.Time
	// outcomes are told to the observer after the commit.
	outcomes   []observed
	statements int
	pen        pen
	// loaded are machines that prefetch has read, for load.
	loaded map[fleet.MachineID]*judged
}

type observed struct {
	process fleet.Process
	event   string
	held    time.Duration
}

func (t *transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.statements++
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *transaction) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.statements++
	return t.Tx.QueryContext(ctx, query, args...)
}

func (t *transaction) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.statements++
	return t.Tx.QueryRowContext(ctx, query, args...)
}

// run is one of the engine's ways to run a transaction.
type run func(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error

func (db *DB) update(ctx context.Context, kind string, fn func(ctx context.Context, t *transaction) error) error {
	return db.transact(ctx, kind, db.engine.Update, fn)
}

func (db *DB) view(ctx context.Context, kind string, fn func(ctx context.Context, t *transaction) error) error {
	return db.transact(ctx, kind, db.engine.View, fn)
}

// glance is view for hints: each statement sees what is there when it runs.
func (db *DB) glance(ctx context.Context, kind string, fn func(ctx context.Context, t *transaction) error) error {
	return db.transact(ctx, kind, db.engine.Glance, fn)
}

func (db *DB) transact(ctx context.Context, kind string, run run, fn func(ctx context.Context, t *transaction) error) error {
	var t *transaction
	began := time.Now()
	err := run(ctx, func(ctx context.Context, tx Tx) error {
		t = &transaction{Tx: tx, db: db, sooner: make(map[headKey]time.Time), pen: newPen()}
		t.q = statement.New(t)
		if err := fn(ctx, t); err != nil {
			return err
		}
		return t.flush(ctx)
	})
	statements := 0
	if t != nil {
		statements = t.statements
	}
	failure := err
	if errors.Is(err, errNotEnded) { // it was left, which is no failure
		failure = nil
	}
	db.observer.Transaction(kind, time.Since(began), statements, failure)
	if t != nil {
		// also after an error: it may have been committed, and a hint too many does no harm
		db.committed(t)
	}
	if err != nil {
		return err
	}
	if t != nil {
		for _, o := range t.outcomes {
			db.observer.Outcome(o.process, o.event, o.held)
		}
	}
	return nil
}

// tellWithin is how soon a row must be due for others to be told: what is due later they find with
// their next poll.
const tellWithin = 5 * time.Second

// committed tells those who wait, here and elsewhere, what became due sooner.
func (db *DB) committed(t *transaction) {
	t.freesSlots()
	if len(t.sooner) == 0 {
		return
	}
	db.due.committed(t.sooner)
	var hints []Hint
	for k, at := range t.sooner {
		if at.Before(t.Now().Add(tellWithin)) {
			hints = append(hints, Hint{Process: k.process, Provider: k.provider, DueAt: at})
		}
	}
	if len(hints) > 0 {
		db.engine.Tell(hints)
	}
}

// becomesDue notes that a row was made, or made due earlier.
func (t *transaction) becomesDue(k headKey, at time.Time) {
	if earliest, ok := t.sooner[k]; !ok || at.Before(earliest) {
		t.sooner[k] = at
	}
}

// environment returns what lifecycle needs besides facts. It must be called after the locks of what
// is judged with it were taken, so that nothing is ever computed under a lower policy than it was
// before (rule 10).
func (t *transaction) environment(ctx context.Context) (fleet.Environment, error) {
	if t.env != nil {
		return *t.env, nil
	}
	row, err := t.q.GetEnvironment(ctx)
	if err != nil {
		return fleet.Environment{}, fmt.Errorf("read the environment: %w", err)
	}
	env := fleet.Environment{PromisedInterval: lasting(row.Promised), Restored: row.Restored}
	if row.ValidUntil >= micros(t.Now()) {
		env.ListenerUpSince = instant(row.UpSince)
	}
	if env.Policy, err = t.policy(ctx, row.Number); err != nil {
		return fleet.Environment{}, err
	}
	t.env = &env
	return env, nil
}

// policy returns the policy of that number; a number never changes its meaning.
func (t *transaction) policy(ctx context.Context, number int64) (fleet.Policy, error) {
	t.db.policyMu.Lock()
	defer t.db.policyMu.Unlock()
	if p, ok := t.db.policies[number]; ok {
		return p, nil
	}
	body, err := t.q.GetPolicy(ctx, number)
	if err != nil {
		return fleet.Policy{}, fmt.Errorf("read policy %d: %w", number, err)
	}
	p := fleet.DefaultPolicy() // for what an older version did not store
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		return fleet.Policy{}, fmt.Errorf("read policy %d: %w", number, err)
	}
	p.Number = number
	t.db.policies[number] = p
	return p, nil
}

// history is one row to append.
type history struct {
	subject fleet.Subject
	actor   string
	process fleet.Process
	lane    fleet.Lane
	epoch   fleet.Epoch
	edge    string
	event   fleet.Event
	detail  string
	retryAt time.Time
	session fleet.SessionID
}

const (
	edgeStart = "start"
	edgeEnd   = "end"
)

// maxPending bounds how many rows of history wait to be written together.
const maxPending = 1000

// record appends to history, at the end of the transaction.
func (t *transaction) record(ctx context.Context, h history) error {
	t.pen.histories = append(t.pen.histories, []any{
		subjectKey(h.subject), micros(t.Now()), h.actor, string(h.process), string(h.lane), int64(h.epoch), h.edge, string(h.event), h.detail,
		micros(h.retryAt), string(h.session),
	})
	if len(t.pen.histories) < maxPending {
		return nil
	}
	return t.flush(ctx)
}

func absent(err error) bool { return errors.Is(err, sql.ErrNoRows) }
