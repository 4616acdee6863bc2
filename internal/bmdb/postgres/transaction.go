package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// transaction says how to run one.
type transaction struct {
	pool *pool
	// begin is the statement that begins it; "": each statement is a transaction of its own.
	begin string
	// writes: it is committed; else it is over when the function is.
	writes bool
	// extends: its time is fresh, and the later one of the two that are possible.
	extends bool
}

const (
	// maxAttempts bounds how often a transaction is run that others made impossible.
	maxAttempts = 20
	// firstPause doubles with each attempt, up to maxPause.
	firstPause = 2 * time.Millisecond
	maxPause   = 100 * time.Millisecond
	// endTimeout bounds COMMIT and ROLLBACK, which no caller can take back.
	endTimeout = 10 * time.Second
)

// run runs fn in a transaction, again after a serialization failure or a deadlock, and on another
// connection when the one that it had turns out to be gone. Before that it pauses for a random
// time, so that those who met do not meet again. Once a COMMIT is on its way, a connection that is
// gone says nothing of what was sent: the driver tells that of the closed connection, and not of
// how it was lost.
func (e *Engine) run(ctx context.Context, t *transaction, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	for attempt := 1; ; attempt++ {
		committing := false
		err := e.once(ctx, t, fn, &committing)
		if err == nil || !undoneByOthers(err) && (committing || !neverSent(err)) || attempt == maxAttempts {
			return classify(err)
		}
		longest := min(firstPause<<min(attempt, 10), maxPause)
		wait(ctx, time.Duration(rand.Int64N(int64(longest)))) //nolint:gosec // jitter
		if ctx.Err() != nil {
			return classify(err)
		}
	}
}

// wait waits for a time, or until the context ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// once runs fn in one transaction, which begins with its first statement, and says when it commits.
func (e *Engine) once(ctx context.Context, t *transaction, fn func(ctx context.Context, tx bmdb.Tx) error, committing *bool) (err error) {
	now, err := e.now(ctx, t)
	if err != nil {
		return err
	}
	x := &tx{transaction: t, now: now}
	defer func() {
		if !*committing { // fn failed, or panics
			x.rollback(ctx)
		}
		if x.conn != nil {
			_ = x.conn.Close() // gives it back; one that rollback gave up is closed already
		}
	}()
	if err := fn(ctx, x); err != nil {
		if x.err != nil && ctx.Err() == nil {
			err = x.err
		}
		return err
	}
	if !t.writes {
		return nil
	}
	*committing = true
	return x.commit(ctx)
}

// tx is one run of a transaction. It takes a connection, and begins, with its first statement.
type tx struct {
	*transaction
	now  time.Time
	conn *sql.Conn
	err  error // why it could not begin
}

// Now is database time as of the beginning.
func (t *tx) Now() time.Time { return t.now }

// ready begins, once. A context that is over runs nothing.
func (t *tx) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.conn != nil || t.err != nil {
		return t.err
	}
	conn, err := t.pool.sql.Conn(ctx)
	if err != nil {
		t.err = fmt.Errorf("connect: %w", err)
		return t.err
	}
	t.conn = conn
	if t.begin == "" {
		return nil
	}
	if _, err := conn.ExecContext(ctx, t.begin); err != nil {
		t.err = fmt.Errorf("begin: %w", err)
	}
	return t.err
}

func (t *tx) commit(ctx context.Context) error {
	if t.conn == nil {
		return nil
	}
	tag, err := t.end(ctx, "COMMIT")
	if err == nil && tag != "COMMIT" {
		err = errors.New("a statement failed, and nothing was committed")
	}
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// rollback undoes everything; a connection that cannot is given up, which does the same.
func (t *tx) rollback(ctx context.Context) {
	if t.conn == nil || t.begin == "" {
		return
	}
	if _, err := t.end(ctx, "ROLLBACK"); err != nil {
		_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// unreplicated is the key of what a connection keeps when its server has ceased to wait.
const unreplicated = "unreplicated"

// noteUnreplicated notes that a server has ceased to wait for a standby, because somebody has
// cancelled that. Its words are in any language; the file of its source that says it is not.
func noteUnreplicated(conn *pgconn.PgConn, n *pgconn.Notice) {
	if strings.HasSuffix(n.File, "syncrep.c") {
		conn.CustomData()[unreplicated] = true
	}
}

// end ends the transaction, and returns what the server says that it did. A server whose wait for a
// synchronous standby is cancelled has committed, says so, and warns: no standby may have it. Who
// cancels may be ourselves, when the time is up. What comes after that is no acknowledgement.
func (t *tx) end(ctx context.Context, text string) (tag string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	err = t.conn.Raw(func(c any) error {
		conn := c.(*stdlib.Conn).Conn()
		delete(conn.PgConn().CustomData(), unreplicated)
		done, err := conn.Exec(ctx, text)
		tag = done.String()
		if err == nil && (ctx.Err() != nil || conn.PgConn().CustomData()[unreplicated] != nil) {
			return errUnreplicated
		}
		return err
	})
	return tag, err
}

var errUnreplicated = fleet.Errorf(fleet.KindTemporary, "the server says that it is committed, but not that its standbys have it")

// PrepareContext prepares a statement on the connection.
func (t *tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	return t.conn.PrepareContext(ctx, query)
}

// ExecContext runs a statement. Statements are prepared once per connection.
func (t *tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	return t.conn.ExecContext(ctx, query, storable(args)...)
}

// QueryContext runs a query.
func (t *tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	return t.conn.QueryContext(ctx, query, storable(args)...)
}

// QueryRowContext runs a query for one row.
func (t *tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := t.ready(ctx); err != nil { // only database/sql can make a row that carries an error
		failed, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		cancel(err)
		return t.pool.sql.QueryRowContext(failed, "SELECT 1")
	}
	return t.conn.QueryRowContext(ctx, query, storable(args)...)
}
