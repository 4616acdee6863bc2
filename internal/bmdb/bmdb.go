package bmdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/agenda"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/trust"
)

// DB is the Bare Metal Database on some engine. Safe for concurrent use.
type DB struct {
	engine     Engine
	logger     *slog.Logger
	observer   Observer
	jitter     func() float64
	clock      *trust.Clock
	heads      *agenda.Heads
	recomputed recomputed
	idle       idle
	// judged is the number of the policy under which the janitor has judged the providers. Until it is
	// the newest, a check does not ask when their work is due.
	judged atomic.Int64
	// opened is when this process opened the database, in database time.
	opened time.Time

	// policy is the one that was read last.
	policy atomic.Pointer[policy]
	// full is the newest failure for want of room; nil: none since room was found. See CheckWritable.
	full atomic.Pointer[error]
}

// Options of a DB.
type Options struct {
	// Logger gets what no caller can be told. Nil: nothing is logged.
	Logger *slog.Logger
	// Observer is told what happens, for metrics. Nil: nobody is.
	Observer Observer
	// Jitter returns the fraction in [0, 1) by which a backoff is stretched. Nil: random. A simulation
	// that is to repeat itself brings its own.
	Jitter func() float64
	// Clock by which holders count how long they may trust their leases, and loops wait. Nil: the
	// system's.
	Clock *trust.Clock
}

// Observer is told of every transaction and every end of work. Its methods must be quick and safe
// for concurrent use.
type Observer interface {
	// Transaction: kind is a constant name such as "claim"; statements counts those of the last run.
	Transaction(kind string, took time.Duration, statements int, err error)
	// Outcome: "finished", "failed", "cancelled", "expired", "revoked"; held is how long the lane was
	// held.
	Outcome(process fleet.Process, outcome string, held time.Duration)
	// Happened: cause is one of Causes.
	Happened(what Happening, cause string)
}

type nobody struct{}

func (nobody) Transaction(string, time.Duration, int, error) {}

func (nobody) Outcome(fleet.Process, string, time.Duration) {}

func (nobody) Happened(Happening, string) {}

// Open checks that the schema is the one that this binary wants, looks whether the database is a
// restored or copied one, and, where no other process can have it open, ends every session that is
// left. KindConflict when the schema is older or newer. The DB owns the engine from here on, also
// when Open fails.
func Open(ctx context.Context, engine Engine, opts Options) (*DB, error) {
	db := &DB{
		engine: engine, logger: opts.Logger, observer: opts.Observer, clock: opts.Clock, heads: agenda.New(),
		recomputed: recomputed{at: make(map[fleet.Process]cursor)},
	}
	if db.logger == nil {
		db.logger = slog.New(slog.DiscardHandler)
	}
	if db.observer == nil {
		db.observer = nobody{}
	}
	if db.clock == nil {
		db.clock = trust.NewClock()
	}
	if db.jitter = opts.Jitter; db.jitter == nil {
		db.jitter = rand.Float64
	}
	if err := db.open(ctx); err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return db, nil
}

func (db *DB) open(ctx context.Context) error {
	have, want, err := db.engine.Schema(ctx)
	switch {
	case err != nil:
		return err
	case have > want:
		return fleet.Errorf(fleet.KindConflict, "the database's schema (version %d) is newer than this binary knows (version %d): use a newer binary",
			have, want)
	case have < want:
		return fleet.Errorf(fleet.KindConflict, "the database's schema (version %d) is older than this binary needs (version %d): run `ironherd db migrate`",
			have, want)
	}
	evidence, err := db.engine.Restored(ctx)
	if err != nil {
		return fmt.Errorf("look whether the database was restored: %w", err)
	}
	if err := db.prepare(ctx, evidence); err != nil {
		return err
	}
	db.engine.Subscribe(db.receive)
	if db.engine.Properties().SingleProcess {
		if err := db.endAllSessions(ctx); err != nil {
			return fmt.Errorf("end the sessions of the last process: %w", err)
		}
	}
	return nil
}

// prepare writes what every database has: a first policy, a row for the listeners of agents, and
// the evidence of a restore until it is accepted.
func (db *DB) prepare(ctx context.Context, evidence string) error {
	body, err := json.Marshal(fleet.DefaultPolicy())
	if err != nil {
		return fmt.Errorf("encode the policy: %w", err)
	}
	return db.update(ctx, "open", func(ctx context.Context, t *transaction) error {
		db.opened = t.Now()
		if _, err := t.q.InsertPolicy(ctx, statement.InsertPolicyParams{Number: 1, At: micros(t.Now()), Body: string(body)}); err != nil {
			return fmt.Errorf("write the first policy: %w", err)
		}
		if err := t.q.InsertListener(ctx); err != nil {
			return fmt.Errorf("make the row of the listeners: %w", err)
		}
		if err := t.warnOfBefore(ctx); err != nil {
			return err
		}
		// From here on this process knows a policy.
		if _, err := t.environment(ctx); err != nil || evidence == "" {
			return err
		}
		db.logger.WarnContext(ctx, "the database looks restored or copied; whatever destroys or reboots waits for `ironherd db accept-restore`",
			slog.String("evidence", evidence))
		return t.q.PutRestored(ctx, statement.PutRestoredParams{At: micros(t.Now()), Evidence: evidence})
	})
}

// clockDiffers is how far the database's clock may be behind what was written by it while nobody
// has set it back.
const clockDiffers = time.Minute

// warnOfBefore warns where providers or sessions that live were written at an instant that is to
// come: what was written then counts until then.
func (t *transaction) warnOfBefore(ctx context.Context) error {
	newest, err := t.q.NewestWrite(ctx)
	if err != nil {
		return err
	}
	if at := instant(newest); at.After(t.Now().Add(clockDiffers)) {
		t.db.logger.WarnContext(ctx, "the database's clock was set back; what was written before that, as the sessions of processes that have died since, counts until then",
			slog.Time("until", at), slog.Duration("by", at.Sub(t.Now())))
	}
	return nil
}

// Close closes the engine. Sessions are not ended by it: see Session.Close.
func (db *DB) Close() error { return db.engine.Close() }

// Clock returns the clock that this process counts by. Whoever waits in a loop waits by it, so that
// a simulation can make the time.
func (db *DB) Clock() *trust.Clock { return db.clock }

// Shared reports whether other processes may have the database open.
func (db *DB) Shared() bool { return !db.engine.Properties().SingleProcess }

// Now returns database time.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	return read(ctx, db.view, "now", func(_ context.Context, t *transaction) (time.Time, error) { return t.Now(), nil })
}

// receive takes in what other processes tell; nil means that anything may have become due.
func (db *DB) receive(due map[Entry]time.Time) {
	if due == nil {
		db.heads.Forget()
		return
	}
	db.heads.Due(due, time.Time{})
}

// Wake returns a channel that receives a hint when something became due for the process, or is to
// become due sooner than it was. There is one channel per process for the life of the DB, hints are
// coalesced in it, and it is never closed. Correctness never depends on it.
func (db *DB) Wake(process fleet.Process) <-chan struct{} { return db.heads.Wake(process) }
