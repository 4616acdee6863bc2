package linear_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/ironherd/ironherd/internal/bmdb"
)

var errBroken = errors.New("the connection broke, on purpose")

// flaky is an engine whose connections break: before a transaction, in the middle of it, or after
// its commit.
type flaky struct {
	bmdb.Engine
	mu     sync.Mutex
	random *rand.Rand
	calm   atomic.Bool
}

// fate of one transaction.
type fate int

const (
	well fate = iota
	before
	middle
	after
)

func (f *flaky) draw() (fate, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calm.Load() {
		return well, 0
	}
	switch n := f.random.IntN(100); {
	case n < 3:
		return before, 0
	case n < 6:
		return middle, 1 + f.random.IntN(8)
	case n < 9:
		return after, 0
	}
	return well, 0
}

type run = func(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error

func (f *flaky) run(ctx context.Context, run run, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	fate, statements := f.draw()
	if fate == before {
		return errBroken
	}
	// a context that ends in the middle of a statement closes a connection of the engines that have
	// any
	if fate == middle {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		whole := fn
		fn = func(ctx context.Context, tx bmdb.Tx) error {
			return whole(ctx, &breaking{Tx: tx, left: statements, cancel: cancel})
		}
	}
	err := run(ctx, fn)
	if fate == after && err == nil {
		return errBroken
	}
	return err
}

func (f *flaky) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return f.run(ctx, f.Engine.Update, fn)
}

func (f *flaky) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return f.run(ctx, f.Engine.Extend, fn)
}

func (f *flaky) Peek(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return f.run(ctx, f.Engine.Peek, fn)
}

// breaking is a transaction whose connection breaks at a statement.
type breaking struct {
	bmdb.Tx
	left   int
	cancel context.CancelFunc
}

func (b *breaking) count() {
	if b.left--; b.left == 0 {
		b.cancel()
	}
}

func (b *breaking) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	b.count()
	return b.Tx.ExecContext(ctx, query, args...)
}

func (b *breaking) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	b.count()
	return b.Tx.QueryContext(ctx, query, args...)
}

func (b *breaking) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	b.count()
	return b.Tx.QueryRowContext(ctx, query, args...)
}
