package bmdbtest

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/ironherd/ironherd/internal/bmdb"
)

// ErrInjected is the error of every fault that Faults injects.
var ErrInjected = errors.New("injected fault")

// Faults is an engine that fails on demand: at the n-th statement of writing transactions, or after
// a commit whose reply is lost. It also lets somebody meddle with a transaction.
type Faults struct {
	bmdb.Engine
	// countdown: the statement that takes it to zero fails. Negative or zero: none does.
	countdown atomic.Int64
	// lose: the next writing transaction is committed and reported as failed.
	lose atomic.Bool
	// meddling is what somebody else is to write in the middle of a transaction.
	meddling atomic.Pointer[meddling]
	// hit counts faults.
	hit atomic.Int64
}

// meddling is a statement that runs before the next one whose text contains before.
type meddling struct {
	before, query string
	args          []any
}

// FailStatement makes the n-th statement from now, counted from 1, fail.
func (f *Faults) FailStatement(n int) { f.countdown.Store(int64(n)) }

// LoseReply makes the next writing transaction that would succeed be committed and reported as
// failed.
func (f *Faults) LoseReply() { f.lose.Store(true) }

// Meddle has a statement run, in the same transaction, before the next writing statement whose text
// contains before: as if somebody passed by the locks.
func (f *Faults) Meddle(before, query string, args ...any) {
	f.meddling.Store(&meddling{before, query, args})
}

// Clear takes back what has not happened, and returns how many faults have.
func (f *Faults) Clear() int64 {
	f.countdown.Store(0)
	f.lose.Store(false)
	f.meddling.Store(nil)
	return f.hit.Swap(0)
}

func (f *Faults) fails() bool {
	if f.countdown.Load() <= 0 || f.countdown.Add(-1) != 0 {
		return false
	}
	f.hit.Add(1)
	return true
}

// Update implements bmdb.Engine.
func (f *Faults) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return f.run(ctx, f.Engine.Update, fn)
}

// Extend implements bmdb.Engine.
func (f *Faults) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return f.run(ctx, f.Engine.Extend, fn)
}

func (f *Faults) run(ctx context.Context, engine func(context.Context, func(context.Context, bmdb.Tx) error) error,
	fn func(ctx context.Context, tx bmdb.Tx) error,
) error {
	err := engine(ctx, func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, faultyTx{tx, f}) })
	if err == nil && f.lose.CompareAndSwap(true, false) {
		f.hit.Add(1)
		return ErrInjected
	}
	return err
}

type faultyTx struct {
	bmdb.Tx
	faults *Faults
}

func (t faultyTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if t.faults.fails() {
		return nil, ErrInjected
	}
	if m := t.faults.meddling.Load(); m != nil && strings.Contains(query, m.before) && t.faults.meddling.CompareAndSwap(m, nil) {
		t.faults.hit.Add(1)
		if _, err := t.Tx.ExecContext(ctx, m.query, m.args...); err != nil {
			return nil, err
		}
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t faultyTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if t.faults.fails() {
		return nil, ErrInjected
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

func (t faultyTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if t.faults.fails() { // only database/sql can make a row that carries an error
		failing, cancel := context.WithCancelCause(ctx)
		cancel(ErrInjected)
		ctx = failing
	}
	return t.Tx.QueryRowContext(ctx, query, args...)
}
