package bmdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// transaction is one run of a function in a transaction of the engine: the statements, the
// environment as of this transaction, and what is to be told to others once it is committed.
type transaction struct {
	Tx
	db *DB
	q  *statement.Queries
	// many are the statements on many rows.
	many statement.Many
	// env is nil until locks.take has read it, or environment, which views call: they take no locks.
	// known is the number of the policy that this process knew before: what the transaction reads is
	// not from before that policy.
	env   *fleet.Environment
	known int64
	// parts is read once; see attendance.
	parts *attendance
	// sooner are the entries that this transaction made due earlier, the earliest of each.
	sooner map[Entry]time.Time
	// outcomes are told to the observer after the commit.
	outcomes   []observed
	happenings []happened
	statements int
	buffer     *buffer
	// under ends the detail of what is recorded: the operators' plan that it is done under.
	under string
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

// peek is view for hints: each statement sees what is there when it runs.
func (db *DB) peek(ctx context.Context, kind string, fn func(ctx context.Context, t *transaction) error) error {
	return db.transact(ctx, kind, db.engine.Peek, fn)
}

// read returns what fn returns in a transaction, and nothing when that fails. in is DB.view, peek
// or update; an update may run fn again.
func read[T any](
	ctx context.Context, in func(ctx context.Context, kind string, fn func(context.Context, *transaction) error) error, kind string,
	fn func(ctx context.Context, t *transaction) (T, error),
) (result T, err error) {
	err = in(ctx, kind, func(ctx context.Context, t *transaction) (err error) {
		result, err = fn(ctx, t)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return result, nil
}

func (db *DB) transact(ctx context.Context, kind string, run run, fn func(ctx context.Context, t *transaction) error) error {
	var t *transaction
	began := time.Now()
	err := run(ctx, func(ctx context.Context, tx Tx) error {
		t = &transaction{Tx: tx, db: db, sooner: make(map[Entry]time.Time), buffer: newBuffer()}
		if p := db.policy.Load(); p != nil {
			t.known = p.newest.Number
		}
		t.q, t.many = statement.New(t), db.engine.Many(t)
		if err := fn(ctx, t); err != nil {
			return err
		}
		return t.flush(ctx)
	})
	statements := 0
	if t != nil {
		statements = t.statements
	}
	db.noteFull(err)
	db.observer.Transaction(kind, time.Since(began), statements, err)
	if t != nil {
		// also after an error: it may have been committed, and a hint too many does no harm
		db.committed(t)
	}
	switch fleet.KindOf(err) {
	case fleet.KindUnknown, fleet.KindTemporary: // the engine's
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	if err != nil {
		return err
	}
	if t != nil {
		for _, o := range t.outcomes {
			db.observer.Outcome(o.process, o.event, o.held)
		}
		for _, h := range t.happenings {
			db.observer.Happened(h.what, h.cause)
		}
	}
	return nil
}

// notifyWithin is how soon an entry must be due for others to be notified: what is due later they
// find with their next poll.
const notifyWithin = 5 * time.Second

// committed tells those who wait, here and elsewhere, what became due sooner.
func (db *DB) committed(t *transaction) {
	for _, o := range t.outcomes { // its end makes room for another one
		if limited(o.process) {
			t.becomesDue(o.process, "", t.Now())
		}
	}
	db.heads.Due(t.sooner, t.Now())
	maps.DeleteFunc(t.sooner, func(_ Entry, at time.Time) bool { return !at.Before(t.Now().Add(notifyWithin)) })
	if len(t.sooner) > 0 {
		db.engine.Notify(t.sooner)
	}
}

// becomesDue notes that an entry was made, or made due earlier. Without a provider it is at any.
func (t *transaction) becomesDue(process fleet.Process, provider fleet.ProviderName, at time.Time) {
	entry := Entry{Process: process, Provider: provider}
	if earliest, ok := t.sooner[entry]; !ok || at.Before(earliest) {
		t.sooner[entry] = at
	}
}

// environment returns what lifecycle needs besides facts. Without locks.take it must be called
// after the locks of what is judged with it were taken, so that nothing is ever computed under a
// lower policy than it was before (rule 10).
func (t *transaction) environment(ctx context.Context) (fleet.Environment, error) {
	if t.env != nil {
		return *t.env, nil
	}
	row, err := t.q.GetEnvironment(ctx)
	if err != nil {
		return fleet.Environment{}, err
	}
	env := fleet.Environment{PromisedInterval: lasting(row.Promised), Restored: row.Restored}
	env.ListenerFullSince, env.ListenerFullUntil = instant(row.FullSince), instant(row.FullUntil)
	env.RecoveryHold = when(row.HoldAt != 0, fleet.RecoveryHold{
		At: instant(row.HoldAt), Until: instantPointer(row.HoldUntil), Actor: row.HoldActor, Reason: row.HoldReason,
		Cause: fleet.StopCause(row.HoldCause),
	})
	p, err := t.policy(ctx, row.Number)
	if err != nil {
		return fleet.Environment{}, err
	}
	env.Policy, env.WatchedBefore = p.newest, p.watchedBefore
	since, until := row.ListenedSince, row.ListenedUntil
	if row.ValidUntil >= micros(t.Now()) {
		env.ListenerUpSince = instant(row.UpSince)
	} else {
		since, until = listened(statement.LockListenerRow{
			UpSince: row.UpSince, ValidUntil: row.ValidUntil, FullSince: row.FullSince, FullUntil: row.FullUntil, ListenedSince: since, ListenedUntil: until,
		}, lifecycle.LongestSilence(env))
	}
	env.ListenedSince, env.ListenedUntil = instant(since), instant(until)
	t.env = &env
	return env, nil
}

// reread is environment as it is by now: for who has locked what changes it, or has met what was
// written under a newer policy.
func (t *transaction) reread(ctx context.Context) (fleet.Environment, error) {
	t.env = nil
	return t.environment(ctx)
}

// history is one row to append: the end of work when startedAt is set, else something that
// happened.
type history struct {
	subject   fleet.Subject
	actor     string
	process   fleet.Process
	epoch     fleet.Epoch
	startedAt int64
	why       string
	event     fleet.Event
	detail    string
	retryAt   time.Time
	session   fleet.SessionID
}

// addHistory appends to history, at the end of the transaction.
func (t *transaction) addHistory(h history) {
	t.buffer.histories = append(t.buffer.histories, statement.InsertHistoryParams{
		Subject: keyOf(h.subject), At: micros(t.Now()), Actor: h.actor, Process: string(h.process), Epoch: int64(h.epoch),
		StartedAt: h.startedAt, Why: h.why, Event: string(h.event), Detail: h.detail + t.under, RetryAt: micros(h.retryAt), Session: string(h.session),
	})
}

// addEvent appends what happened outside of any work.
func (t *transaction) addEvent(of fleet.Subject, actor string, process fleet.Process, event fleet.Event, detail string) {
	t.addHistory(history{subject: of, actor: actor, process: process, event: event, detail: detail})
}

// converted converts rows.
func converted[A, B any](rows []A, convert func(A) B) []B {
	list := make([]B, len(rows))
	for i, row := range rows {
		list[i] = convert(row)
	}
	return list
}

func absent(err error) bool { return errors.Is(err, sql.ErrNoRows) }
