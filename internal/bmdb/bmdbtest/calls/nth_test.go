package calls_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var errInjected = errors.New("injected fault")

// manner is how a call fails.
type manner string

const (
	// fails: the call is not made.
	fails manner = "error"
	// late: the call is given up when its time is over.
	late manner = "timeout"
	// unanswered: the call is made, and the reply lost.
	unanswered manner = "reply lost"
	// conflict: the server undoes the transaction because of others.
	conflict manner = "40001"
	// killed: the server ends the connection.
	killed manner = "connection killed"
)

// provoke is a query by which a server fails in that manner.
var provoke = map[manner]string{
	conflict: "SELECT fail_40001()",
	killed:   "SELECT pg_terminate_backend(pg_backend_pid())",
}

const makeProvocation = `CREATE OR REPLACE FUNCTION fail_40001() RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '40001'; END $$`

// nth is an engine whose n-th call to the database fails. A call is a statement, or the end of a
// transaction.
type nth struct {
	bmdb.Engine
	manner manner
	left   atomic.Int64 // the call that takes it to zero fails
	hit    atomic.Bool
}

// arm makes the n-th call from now fail.
func (e *nth) arm(n int, m manner) {
	e.manner = m
	e.hit.Store(false)
	e.left.Store(int64(n))
}

func (e *nth) due() bool {
	if e.left.Load() <= 0 || e.left.Add(-1) != 0 {
		return false
	}
	e.hit.Store(true)
	return true
}

type way = func(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error

func (e *nth) run(ctx context.Context, way way, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	lost := false
	err := way(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		if err := fn(ctx, &nthTx{tx, e}); err != nil {
			return err
		}
		if !e.due() {
			return nil
		}
		switch e.manner {
		case unanswered:
			lost = true
			return nil
		case conflict, killed:
			_, err := tx.ExecContext(ctx, provoke[e.manner])
			return err
		case late:
			return context.DeadlineExceeded
		}
		return errInjected
	})
	if lost && err == nil {
		return errInjected
	}
	return err
}

func (e *nth) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.run(ctx, e.Engine.Update, fn)
}

func (e *nth) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.run(ctx, e.Engine.Extend, fn)
}

func (e *nth) View(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.run(ctx, e.Engine.View, fn)
}

func (e *nth) Peek(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.run(ctx, e.Engine.Peek, fn)
}

// nthTx counts statements.
type nthTx struct {
	bmdb.Tx
	engine *nth
}

// fail lets the call, which is due, fail; do makes it.
func (t *nthTx) fail(ctx context.Context, do func() error) error {
	switch t.engine.manner {
	case late:
		return fmt.Errorf("statement: %w", context.DeadlineExceeded)
	case unanswered:
		if err := do(); err != nil {
			return err
		}
	case conflict, killed:
		_, err := t.Tx.ExecContext(ctx, provoke[t.engine.manner])
		return err
	}
	return errInjected
}

func (t *nthTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if t.engine.due() {
		return nil, t.fail(ctx, func() error { _, err := t.Tx.ExecContext(ctx, query, args...); return err })
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t *nthTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if t.engine.due() {
		return nil, t.fail(ctx, func() error {
			rows, err := t.Tx.QueryContext(ctx, query, args...)
			if err != nil {
				return err
			}
			defer rows.Close()
			return rows.Err()
		})
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

func (t *nthTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if !t.engine.due() {
		return t.Tx.QueryRowContext(ctx, query, args...)
	}
	if p, ok := provoke[t.engine.manner]; ok {
		return t.Tx.QueryRowContext(ctx, p)
	}
	if t.engine.manner == unanswered {
		row := t.Tx.QueryRowContext(ctx, query, args...)
		_ = row.Scan() // closes it
	}
	over, cancel := context.WithCancel(ctx) // only database/sql can make a row that carries an error
	cancel()
	return t.Tx.QueryRowContext(over, query, args...)
}

func (t *nthTx) LockSession(ctx context.Context, id fleet.SessionID, exclusive bool) error {
	if t.engine.due() {
		return t.fail(ctx, func() error { return t.Tx.LockSession(ctx, id, exclusive) })
	}
	return t.Tx.LockSession(ctx, id, exclusive)
}

func (t *nthTx) LockProviders(ctx context.Context, names []fleet.ProviderName, skip bool) ([]fleet.ProviderName, error) {
	if t.engine.due() {
		return nil, t.fail(ctx, func() error { _, err := t.Tx.LockProviders(ctx, names, skip); return err })
	}
	return t.Tx.LockProviders(ctx, names, skip)
}

func (t *nthTx) LockMachines(ctx context.Context, ids []fleet.MachineID, skip bool) ([]fleet.MachineID, error) {
	if t.engine.due() {
		return nil, t.fail(ctx, func() error { _, err := t.Tx.LockMachines(ctx, ids, skip); return err })
	}
	return t.Tx.LockMachines(ctx, ids, skip)
}
