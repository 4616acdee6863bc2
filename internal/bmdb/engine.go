package bmdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// ErrUnavailable is in the chain of a failure, of KindTemporary, of the database as a whole: its
// disk is full, or its server is down. Nobody has anything locked then, no other transaction would
// do better, and it says nothing of what the transaction was about.
var ErrUnavailable = errors.New("the database is not available")

// ErrFull is in the chain of an ErrUnavailable for want of room. What needs none may be taken all
// the same: a server writes a row anew where the row was.
var ErrFull = errors.New("the database has no room")

// Unavailable returns a failure with ErrUnavailable; the format works as in fmt.Errorf.
func Unavailable(format string, args ...any) error {
	return &fleet.Error{Kind: fleet.KindTemporary, Err: unavailable{error: fmt.Errorf(format, args...)}}
}

// Full is Unavailable with ErrFull.
func Full(format string, args ...any) error {
	return &fleet.Error{Kind: fleet.KindTemporary, Err: unavailable{error: fmt.Errorf(format, args...), full: true}}
}

type unavailable struct {
	error
	full bool
}

func (u unavailable) Is(target error) bool {
	return target == ErrUnavailable || u.full && target == ErrFull
}

func (u unavailable) Unwrap() error { return u.error }

// lockedByOthers reports whether a transaction failed because of what others did at the same time,
// so that one about something else may succeed.
func lockedByOthers(err error) bool {
	return fleet.KindOf(err) == fleet.KindTemporary && !errors.Is(err, ErrUnavailable)
}

// Engine is one SQL engine: bmdb/sqlite, bmdb/postgres, and whatever else passes bmdbtest. It knows
// transactions, locks, clocks and schemas, and nothing of machines; all logic that engines share is
// in DB.
type Engine interface {
	// Name of the engine, such as "sqlite".
	Name() string
	// Properties never change while the engine is open.
	Properties() Properties

	// Update runs fn in one read-write transaction and commits it when fn returns nil. fn must be
	// repeatable and have no effect outside tx: an engine runs it again after a serialization failure.
	// An engine may commit several callers' fns together, as long as each one's error or panic undoes
	// that one alone. An error means that nothing was committed, or, where the connection broke during
	// the commit, that nobody knows.
	Update(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error
	// Extend is Update for extensions of sessions: never queued behind other commits where the engine
	// can avoid it.
	Extend(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error
	// View runs fn on one snapshot, read only. It may run it again, and so may Peek.
	View(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error

	// Peek runs fn read only, each statement on a snapshot of its own if that is cheaper than one for
	// all.
	Peek(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error

	// Migrate brings the schema to the version that this binary wants.
	Migrate(ctx context.Context) error
	// Schema returns the version of the schema that is there (0: none) and the one that this binary
	// wants.
	Schema(ctx context.Context) (have, want int64, err error)

	// Restored returns why this looks like a restored or copied database, or "" (rule 11). Called once
	// at open, with the schema current.
	Restored(ctx context.Context) (evidence string, err error)
	// AcceptRestore makes the database as it is the one that counts.
	AcceptRestore(ctx context.Context) error

	// PruneHistory removes history that is older than before, and returns how many rows it removed, at
	// most about limit a call unless the engine can drop more of it at once. The start of work that
	// runs still may stay. It is called every now and then also where nothing is to be removed: the
	// engine makes what the history of the coming days needs.
	PruneHistory(ctx context.Context, before time.Time, limit int) (n int, err error)

	// Notify tells the other processes that have the database open, some time soon or never, what may
	// have become due. It does not wait, and leaves the map as it is. It only saves time.
	Notify(due map[Entry]time.Time)
	// Subscribe makes receive be called with what others tell; nil means that anything may have become
	// due. Called once, at open.
	Subscribe(receive func(due map[Entry]time.Time))

	// Many returns the statements on many rows, as this engine runs them on db.
	Many(db statement.DBTX) statement.Many

	Close() error
}

// Entry is work of a process at a provider; "": at any.
type Entry = agenda.Entry

// Exec runs one statement in a transaction of its own, and returns how many rows it concerned.
func Exec(ctx context.Context, e Engine, text string, args ...any) (n int, err error) {
	err = e.Update(ctx, func(ctx context.Context, tx Tx) error {
		result, err := tx.ExecContext(ctx, text, args...)
		if err != nil {
			return err
		}
		rows, err := result.RowsAffected()
		n = int(rows)
		return err
	})
	return n, err
}

// Properties are what the logic above must know of an engine.
type Properties struct {
	// SingleProcess: no other process can have the database open, so opening it ends every session
	// that is left.
	SingleProcess bool
	// Polled: other processes may have the database open, and do not tell what is due (see Subscribe).
	Polled bool
}

// Tx is what statements run on: the DBTX of the generated code, the database's time and its row
// locks. In an engine whose write transactions exclude each other the locks are nothing.
type Tx interface {
	statement.DBTX

	// Now is database time, the same throughout the transaction, in whole microseconds, UTC.
	Now() time.Time
	// LockSession takes the session's row FOR UPDATE (exclusive) or FOR KEY SHARE. A session that does
	// not exist is not an error.
	LockSession(ctx context.Context, id fleet.SessionID, exclusive bool) error
	// LockProviders takes the rows of the providers, so that nobody else can have them, in the order
	// of their names, and returns those that it locked, in that order: without skipLocked all that
	// exist (an engine without row locks may return others), else those that nobody has.
	LockProviders(ctx context.Context, names []fleet.ProviderName, skipLocked bool) ([]fleet.ProviderName, error)
	// LockMachines is the same for machines, in the order of their IDs.
	LockMachines(ctx context.Context, ids []fleet.MachineID, skipLocked bool) ([]fleet.MachineID, error)
}

// Storable returns text that came from outside as every engine can store it: U+FFFD is in the place
// of NUL and of what is not UTF-8.
func Storable(text string) string {
	const replacement = "\uFFFD"
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", replacement), replacement)
}
