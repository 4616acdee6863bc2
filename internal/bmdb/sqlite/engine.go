package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/trust"
)

// Options of the engine.
type Options struct {
	// Logger gets what no caller can be told. Nil: nothing is logged.
	Logger *slog.Logger
	// Unsynced leaves it to the operating system when commits reach the disk. A crash of the machine
	// may then lose the last of them, which the BMDB promises never to do: for tests and rehearsals
	// only.
	Unsynced bool
	// Readers is how many transactions may read at a time; 0: 6.
	Readers int
	// Clock that database time advances by. Nil: the system's.
	Clock *trust.Clock
}

// Engine is an open SQLite database. See the package comment.
type Engine struct {
	path string
	// file is the path without links, for SQLite.
	file string
	// unsynced: see Options.
	unsynced bool
	logger   *slog.Logger
	lock     *fileLock
	pool     *sql.DB // all connections come from it
	writer   *conn
	readers  chan *conn

	updates, extensions chan *request
	closing, written    chan struct{}
	closeOnce           sync.Once
	closeErr            error

	clock *trust.Clock
	time  timeline
	mark  mark
	// leapt is why the system's clock is not believed; "" when it is.
	leapt string
}

var _ bmdb.Engine = (*Engine)(nil)

// Open opens the database in the file, which it creates when there is none, and holds it until
// Close: KindInUse, naming the process, when another one does. KindTemporary when its file system
// takes no files, and KindInvalid when the file cannot be used. Whatever the modes of its files
// were, they are 0600 then. What root makes belongs to the owner of the directory, who is to open
// it afterwards. The schema is left as it is: see Migrate.
func Open(ctx context.Context, path string, opts Options) (*Engine, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "database path: %w", err)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Clock == nil {
		opts.Clock = trust.NewClock()
	}
	file, err := locate(path)
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(path, file)
	if err != nil {
		return nil, err
	}
	if err := closeToOthers(path, file); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	e := &Engine{
		path: path, file: file, unsynced: opts.Unsynced, logger: opts.Logger, lock: lock, clock: opts.Clock,
		updates: make(chan *request), extensions: make(chan *request),
		closing: make(chan struct{}), written: make(chan struct{}), time: timeline{base: opts.Clock.Start().UTC()},
	}
	if err := e.connect(ctx, opts); err != nil {
		return nil, errors.Join(classify(path, e.failed(err)), e.disconnect(len(e.readers)))
	}
	go e.write(context.WithoutCancel(ctx))
	return e, nil
}

// closeToOthers gives the database, which is the file, and what belongs to it mode 0600. It makes a
// database that is not there, because SQLite would let others read it. SQLite gives the files that
// it makes beside a database the mode of that one and, where root runs it, the owner.
func closeToOthers(path, file string) error {
	database, err := secret.Create(file)
	if err != nil {
		return unwritable(path, err)
	}
	err = database.Close()
	for _, suffix := range parts {
		err = errors.Join(err, secret.Close(file+suffix))
	}
	return errors.Join(err, secret.Close(file+".lock"), secret.Close(path+markSuffix))
}

// connect opens the one connection that writes and those that read.
func (e *Engine) connect(ctx context.Context, opts Options) error {
	synchronous := "FULL"
	if opts.Unsynced {
		synchronous = "OFF"
	}
	var err error
	e.pool, err = openFile(e.file, "rw", "synchronous("+synchronous+")", "journal_mode(WAL)", "foreign_keys(ON)", "temp_store(MEMORY)",
		"cache_size(-65536)", "journal_size_limit(67108864)")
	if err != nil {
		return err
	}
	e.pool.SetMaxIdleConns(1)
	if e.writer, err = newConn(ctx, e.pool); err != nil {
		return err
	}
	var tables int64 // asked only to see whether the file can be read
	if err := e.writer.sql.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if opts.Readers <= 0 {
		opts.Readers = 6
	}
	e.readers = make(chan *conn, opts.Readers)
	for range opts.Readers {
		c, err := newConn(ctx, e.pool)
		if err != nil {
			return err
		}
		e.readers <- c
		if _, err := c.sql.ExecContext(ctx, "PRAGMA query_only = ON"); err != nil {
			return err
		}
	}
	return nil
}

// disconnect closes whatever is open, as soon as nobody uses it. The lock goes last.
func (e *Engine) disconnect(readers int) error {
	var errs []error
	for range readers { // none is given back, so no View finds one
		errs = append(errs, (<-e.readers).close())
	}
	if e.writer != nil {
		errs = append(errs, e.writer.close())
	}
	if e.pool != nil {
		errs = append(errs, e.pool.Close())
	}
	return errors.Join(append(errs, e.lock.Close())...)
}

// Name returns "sqlite".
func (e *Engine) Name() string { return "sqlite" }

// Properties says that nobody else can have the database open.
func (e *Engine) Properties() bmdb.Properties { return bmdb.Properties{SingleProcess: true} }

// Update implements bmdb.Engine by group commit.
func (e *Engine) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.submit(ctx, e.updates, fn)
}

// Extend implements bmdb.Engine; extensions are first in the next group.
func (e *Engine) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.submit(ctx, e.extensions, fn)
}

// View implements bmdb.Engine on one of the reading connections.
func (e *Engine) View(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) (err error) {
	var c *conn
	select {
	case c = <-e.readers:
	case <-ctx.Done():
		return fmt.Errorf("wait for the database: %w", context.Cause(ctx))
	case <-e.closing:
		return errClosed
	}
	defer func() { e.readers <- c }()
	defer func() { err = e.failed(err) }()
	if err := c.run(ctx, "BEGIN"); err != nil {
		return err
	}
	defer func() {
		if end := c.run(ctx, "ROLLBACK"); err == nil {
			err = end
		}
	}()
	return fn(ctx, &tx{conn: c, now: e.now()})
}

// Peek implements bmdb.Engine: a snapshot costs nothing here.
func (e *Engine) Peek(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return e.View(ctx, fn)
}

// Many implements bmdb.Engine: a statement is a function call here, so each row has one of its own.
func (e *Engine) Many(db statement.DBTX) statement.Many { return statement.RowByRow(db) }

// Close ends the writer after the group that it is at, waits for readers and closes the file.
// Whoever still waits gets an error.
func (e *Engine) Close() error {
	e.closeOnce.Do(func() {
		close(e.closing)
		<-e.written
		e.closeErr = e.disconnect(cap(e.readers))
	})
	return e.closeErr
}

// classify says of an error at open what a person can do about it.
func classify(path string, err error) error {
	var de *driver.Error
	if errors.As(err, &de) {
		switch de.Code() & 0xff {
		case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
			return fleet.Errorf(fleet.KindInvalid, "%s is not a usable SQLite database (%w): move it away, and put a backup in its place with `ironherd db restore FILE`",
				path, err)
		case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY:
			if why := refusal(path); why != nil {
				err = fmt.Errorf("%w (%w)", why, err)
			}
			return unwritable(path, err)
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			return fleet.Errorf(fleet.KindInUse, "database %s is in use by another program: %w", path, err)
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		return fleet.Errorf(fleet.KindInvalid, "database %s cannot be opened: %w", path, err)
	}
	return fmt.Errorf("open database %s: %w", path, err)
}
