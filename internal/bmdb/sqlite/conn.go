package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// conn is one connection with its prepared statements. Preparing costs more than running most of
// ours, so each is prepared once per connection. A conn is used by one goroutine at a time.
type conn struct {
	sql      *sql.Conn
	prepared map[string]*sql.Stmt
}

func newConn(ctx context.Context, db *sql.DB) (*conn, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{sql: c, prepared: make(map[string]*sql.Stmt)}, nil
}

func (c *conn) close() error {
	errs := make([]error, 0, len(c.prepared)+1)
	for _, s := range c.prepared {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.sql.Close())...)
}

func (c *conn) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if s, ok := c.prepared[query]; ok {
		return s, nil
	}
	s, err := c.sql.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	c.prepared[query] = s
	return s, nil
}

// run executes one of the engine's own statements, uninterruptible as all of them.
func (c *conn) run(ctx context.Context, query string) error {
	ctx = context.WithoutCancel(ctx)
	s, err := c.prepare(ctx, query) //nolint:sqlclosecheck // it stays prepared as long as the connection is open
	if err == nil {
		_, err = s.ExecContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	return nil
}

// tx is a transaction on a conn.
//
// A context is obeyed between statements, never within one: SQLite undoes the whole transaction
// when a writing statement is interrupted, and with it the work of everybody else who is committed
// by the same group.
type tx struct {
	*conn
	now time.Time
}

func (t *tx) Now() time.Time { return t.now }

func (t *tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return t.sql.PrepareContext(ctx, query)
}

// ready prepares a statement, and returns the context in which it is to run.
func (t *tx) ready(ctx context.Context, query string) (*sql.Stmt, context.Context, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	ctx = context.WithoutCancel(ctx)
	s, err := t.prepare(ctx, query)
	return s, ctx, err
}

func (t *tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	s, ctx, err := t.ready(ctx, query) //nolint:sqlclosecheck // see run
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, args...)
}

func (t *tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	s, ctx, err := t.ready(ctx, query) //nolint:sqlclosecheck // see run
	if err != nil {
		return nil, err
	}
	return s.QueryContext(ctx, args...)
}

func (t *tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	s, uninterrupted, err := t.ready(ctx, query) //nolint:sqlclosecheck // see run
	// only database/sql can make a row that carries an error: this one fails alike
	if err != nil {
		return t.sql.QueryRowContext(ctx, query, args...)
	}
	return s.QueryRowContext(uninterrupted, args...)
}

// LockSession and the others do nothing: write transactions exclude each other.

func (t *tx) LockSession(ctx context.Context, _ fleet.SessionID, _ bool) error { return ctx.Err() }

// LockProviders: see above.
func (t *tx) LockProviders(ctx context.Context, names []fleet.ProviderName, _ bool) ([]fleet.ProviderName, error) {
	return ordered(names), ctx.Err()
}

// LockMachines: see above.
func (t *tx) LockMachines(ctx context.Context, ids []fleet.MachineID, _ bool) ([]fleet.MachineID, error) {
	return ordered(ids), ctx.Err()
}

func ordered[T ~string](keys []T) []T {
	return slices.Compact(slices.Sorted(slices.Values(keys)))
}
