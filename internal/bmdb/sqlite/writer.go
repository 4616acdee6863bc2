package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// maxGroup and maxGroupTime bound how much is committed together, and so how long an extension can
	// be behind others.
	maxGroup     = 256
	maxGroupTime = 20 * time.Millisecond
)

// request is one caller's transaction, waiting for the writer.
type request struct {
	ctx   context.Context //nolint:containedctx // the caller's, for as long as the caller waits
	fn    func(ctx context.Context, tx bmdb.Tx) error
	reply chan outcome
}

type outcome struct {
	err      error
	panicked any
}

var errClosed = fleet.Errorf(fleet.KindConflict, "the database is closed")

// submit hands a transaction to the writer and waits for its outcome. Until the writer has taken it
// the context can withdraw it; from then on it is a matter of milliseconds and the caller waits, so
// that an outcome is never unknown.
func (e *Engine) submit(ctx context.Context, queue chan<- *request, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	r := &request{ctx: ctx, fn: fn, reply: make(chan outcome, 1)}
	select {
	case queue <- r:
	case <-ctx.Done():
		return fmt.Errorf("wait for the database: %w", context.Cause(ctx))
	case <-e.closing:
		return errClosed
	}
	o := <-r.reply
	if o.panicked != nil {
		panic(o.panicked)
	}
	return e.failed(o.err)
}

// write is the one goroutine that writes. Whoever waits while it commits is in the next group: one
// synchronous write of the disk serves all of them.
func (e *Engine) write(ctx context.Context) {
	defer close(e.written)
	for {
		select {
		case r := <-e.extensions:
			e.group(ctx, r)
		case r := <-e.updates:
			e.group(ctx, r)
		case <-e.closing:
			return
		}
	}
}

// group runs first and whoever else waits in one transaction, and replies to all of them.
func (e *Engine) group(ctx context.Context, first *request) {
	e.advanceMarkWhenDue(ctx)
	if err := e.writer.run(ctx, "BEGIN IMMEDIATE"); err != nil {
		first.reply <- outcome{err: fmt.Errorf("begin: %w", err)}
		return
	}
	var done []*request
	began := time.Now()
	for r := first; r != nil; r = e.waiting(len(done), began) {
		o, intact := e.attempt(r)
		switch {
		case !intact: // the transaction itself is gone, and with it what the others did
			e.abandon(ctx, append(done, r), fmt.Errorf("transaction lost: %w", o.err))
			return
		case o.err != nil || o.panicked != nil:
			r.reply <- o
		default:
			done = append(done, r)
		}
	}
	if err := e.writer.run(ctx, "COMMIT"); err != nil {
		e.abandon(ctx, done, err)
		return
	}
	for _, r := range done {
		r.reply <- outcome{}
	}
}

// waiting returns the next request for the group, or nil when nobody waits or the group is full.
func (e *Engine) waiting(done int, began time.Time) *request {
	if done >= maxGroup || time.Since(began) > maxGroupTime {
		return nil
	}
	select {
	case r := <-e.extensions:
		return r
	default:
	}
	select {
	case r := <-e.updates:
		return r
	default:
		return nil
	}
}

// attempt runs one request in a savepoint. intact is false when the transaction did not survive it.
func (e *Engine) attempt(r *request) (o outcome, intact bool) {
	if err := r.ctx.Err(); err != nil {
		return outcome{err: fmt.Errorf("wait for the database: %w", context.Cause(r.ctx))}, true
	}
	if err := e.writer.run(r.ctx, "SAVEPOINT one"); err != nil {
		return outcome{err: err}, false
	}
	o = call(r, &tx{conn: e.writer, now: e.now()})
	if o.err != nil || o.panicked != nil {
		if err := e.writer.run(r.ctx, "ROLLBACK TO one"); err != nil {
			o.err = errors.Join(o.err, err)
			return o, false
		}
	}
	if err := e.writer.run(r.ctx, "RELEASE one"); err != nil {
		o.err = errors.Join(o.err, err)
		return o, false
	}
	return o, true
}

// call turns a panic of the caller's function into an outcome, so that it happens in the caller's
// goroutine.
func call(r *request, t *tx) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			o.panicked = fmt.Sprintf("%v\n\nin a transaction:\n%s", p, debug.Stack())
		}
	}()
	return outcome{err: r.fn(r.ctx, t)}
}

// abandon rolls back whatever is left of the transaction and fails everybody in it. Nothing of them
// is committed.
func (e *Engine) abandon(ctx context.Context, requests []*request, err error) {
	// Where a disk is full or fails, SQLite itself rolls back. That no transaction is left is then an
	// error of ROLLBACK, and the only one of that code.
	var why *driver.Error
	if rollback := e.writer.run(ctx, "ROLLBACK"); rollback != nil && (!errors.As(rollback, &why) || why.Code() != sqlite3.SQLITE_ERROR) {
		e.logger.ErrorContext(ctx, "rollback failed", slog.Any("err", rollback))
	}
	for _, r := range requests {
		r.reply <- outcome{err: fmt.Errorf("commit: %w", err)}
	}
}
