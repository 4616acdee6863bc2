package bmdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/trust"
)

// SessionOptions say whose session it is and how long it lasts.
type SessionOptions struct {
	// Component, such as "provisioner", and Host and PID of its process: for people.
	Component string
	Host      string
	PID       int
	// Interval is how long the session lasts from each extension. At least one second.
	Interval time.Duration
	// Margin before the end of the interval by which everything done under the session has been
	// cancelled. Zero: Interval/5.
	Margin time.Duration
}

// Session is a component's proof of life. Everything that it holds is void when it ends. Safe for
// concurrent use.
type Session struct {
	db     *DB
	id     fleet.SessionID
	opts   SessionOptions
	window *trust.Window
	ends   ends

	mu    sync.Mutex
	works map[workKey]*Work
	// claims counts the claims that ended, claiming those under way: an extension tells with them
	// which of its lanes nobody here can know of.
	claims   int
	claiming int
}

type workKey struct {
	subject fleet.Subject
	lane    fleet.Lane
	epoch   fleet.Epoch
}

// StartSession starts a session. The caller runs Run beside what it does, and Close at the end. ctx
// gives the session its values; cancelling it later does not end the session.
func (db *DB) StartSession(ctx context.Context, opts SessionOptions) (*Session, error) {
	if opts.Interval < time.Second {
		return nil, fleet.Errorf(fleet.KindInvalid, "session.interval must be at least 1s, not %s", opts.Interval)
	}
	if opts.Margin >= opts.Interval {
		return nil, fleet.Errorf(fleet.KindInvalid, "session.margin must be below the interval (%s), not %s", opts.Interval, opts.Margin)
	}
	s := &Session{db: db, id: fleet.NewSessionID(), opts: opts, works: make(map[workKey]*Work)}
	start := db.clock.Elapsed()
	err := db.transact(ctx, "start session", db.engine.Extend, func(ctx context.Context, t *transaction) error {
		return t.q.InsertSession(ctx, statement.InsertSessionParams{
			ID: string(s.id), Component: opts.Component, Host: opts.Host, Pid: int64(opts.PID), Lease: opts.Interval.Microseconds(),
			StartedAt: micros(t.Now()), DeadlineAt: micros(t.Now().Add(opts.Interval)),
		})
	})
	if err != nil {
		return nil, fmt.Errorf("start session of %s: %w", opts.Component, err)
	}
	s.window = trust.NewWindow(ctx, db.clock, start, trust.Options{
		Interval: opts.Interval, Margin: opts.Margin, Expired: fleet.ErrLeaseLost,
	})
	db.logger.DebugContext(ctx, "session started", slog.String("session", string(s.id)), slog.String("component", opts.Component))
	return s, nil
}

// ID names the session.
func (s *Session) ID() fleet.SessionID { return s.id }

// Trusted says whether the trust window is open: whether an effect may start.
func (s *Session) Trusted() bool { return s.window.Open() }

// Guard returns a context that is cancelled, with cause ErrLeaseLost, when the trust window ends.
func (s *Session) Guard(ctx context.Context) (context.Context, context.CancelFunc) {
	return s.window.Guard(ctx)
}

// actor is how history names the session's component.
func (s *Session) actor() string { return s.opts.Component + "@" + s.opts.Host }

// Extend extends the session once and learns which of its leases were voided; the contexts of those
// are cancelled. It returns ErrLeaseLost when the session has ended or its trust window has; any
// other failure leaves the session as it was.
func (s *Session) Extend(ctx context.Context) error {
	if !s.window.Open() {
		return fleet.ErrLeaseLost
	}
	before := s.snapshot()
	start := s.db.clock.Elapsed()
	var alive bool
	var lanes []statement.ListHeldLanesRow
	err := s.db.transact(ctx, "extend session", s.db.engine.Extend, func(ctx context.Context, t *transaction) error {
		n, err := t.q.ExtendSession(ctx, statement.ExtendSessionParams{
			ID: string(s.id), ExtendedAt: micros(t.Now()), DeadlineAt: micros(t.Now().Add(s.opts.Interval)),
		})
		if err != nil {
			return err
		}
		alive = n == 1
		lanes, err = t.q.ListHeldLanes(ctx, statement.ListHeldLanesParams{Session: string(s.id), MaxRows: maxHeld})
		return err
	})
	if err != nil {
		return fmt.Errorf("extend session: %w", err)
	}
	if !alive {
		s.window.Close(fleet.ErrLeaseLost)
		return fleet.ErrLeaseLost
	}
	if !s.window.Extend(start) {
		return fleet.ErrLeaseLost
	}
	s.compare(ctx, before, lanes)
	return nil
}

// maxHeld bounds what one session can hold.
const maxHeld = 10_000

type snapshot struct {
	works            map[workKey]*Work
	claims, claiming int
}

func (s *Session) snapshot() snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	works := make(map[workKey]*Work, len(s.works))
	for k, w := range s.works {
		works[k] = w
	}
	return snapshot{works: works, claims: s.claims, claiming: s.claiming}
}

// compare cancels the works that the BMDB does not know as ours any more, and hands back the lanes
// that it knows as ours and we do not: the reply to their claim was lost.
func (s *Session) compare(ctx context.Context, before snapshot, lanes []statement.ListHeldLanesRow) {
	after := s.snapshot()
	quiet := before.claiming == 0 && after.claiming == 0 && before.claims == after.claims
	for _, l := range lanes {
		k := workKey{parseSubject(l.Subject), fleet.Lane(l.Lane), fleet.Epoch(l.Epoch)}
		if _, ours := before.works[k]; ours {
			delete(before.works, k)
			continue
		}
		if _, ours := after.works[k]; ours || !quiet {
			continue
		}
		w := s.newWork(k.subject, fleet.Process(l.Process), k.epoch, l.Since)
		if err := w.Cancel(ctx, "the reply to the claim was lost"); err != nil {
			s.db.logger.WarnContext(ctx, "a lane could not be handed back", slog.String("session", string(s.id)), slog.String("subject", l.Subject),
				slog.Any("err", err))
		}
	}
	for _, w := range before.works {
		w.void()
	}
}

// Run extends the session until ctx ends (nil) or the session is lost (ErrLeaseLost). One extension
// that fails is tried again; only the end of the trust window is the end.
func (s *Session) Run(ctx context.Context) error {
	guarded, cancel := s.Guard(ctx)
	defer cancel()
	pause := s.opts.Interval / 3
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-guarded.Done():
			if ctx.Err() != nil {
				return nil
			}
			return fleet.ErrLeaseLost
		case <-timer.C:
		}
		attempt, done := context.WithTimeout(guarded, s.opts.Interval/3)
		err := s.Extend(attempt)
		done()
		pause = s.opts.Interval / 3
		switch {
		case ctx.Err() != nil:
			return nil
		case fleet.KindOf(err) == fleet.KindLeaseLost:
			return fleet.ErrLeaseLost
		case err != nil:
			s.db.logger.WarnContext(ctx, "session was not extended", slog.String("session", string(s.id)), slog.Any("err", err))
			pause = s.opts.Interval / 20
		}
		timer.Reset(pause)
	}
}

// Close ends the session as a fact and frees what it holds. Everything under Guard is cancelled
// first. Closing twice is harmless.
func (s *Session) Close(ctx context.Context, cause string) error {
	s.window.Close(fleet.ErrLeaseLost)
	if _, err := s.db.endSession(ctx, s.id, cause, false); err != nil {
		return fmt.Errorf("close session: %w", err)
	}
	return s.db.freeLanes(ctx, s.id)
}

// endSession writes the death of a session by one small transaction (rule 4): the row is locked by
// one statement and judged by a later one. onlyOverdue leaves a session alone that was extended
// meanwhile.
func (db *DB) endSession(ctx context.Context, id fleet.SessionID, cause string, onlyOverdue bool) (ended bool, err error) {
	err = db.update(ctx, "end session", func(ctx context.Context, t *transaction) error {
		ended = false
		if err := t.LockSession(ctx, id, true); err != nil {
			return err
		}
		row, err := t.q.GetSession(ctx, string(id))
		if absent(err) || err == nil && (row.EndedAt != 0 || onlyOverdue && row.DeadlineAt >= micros(t.Now())) {
			return nil
		}
		if err != nil {
			return err
		}
		n, err := t.q.EndSession(ctx, statement.EndSessionParams{ID: string(id), EndedAt: micros(t.Now()), Cause: cause})
		ended = n == 1
		return err
	})
	return ended, err
}

// alive returns a session, and whether it has not ended. It is asked by a later statement than the
// one that locked the session's row.
func (t *transaction) alive(ctx context.Context, id fleet.SessionID) (row statement.Session, alive bool, err error) {
	row, err = t.q.GetSession(ctx, string(id))
	if absent(err) {
		return row, false, nil
	}
	if err != nil {
		return row, false, fmt.Errorf("read session %s: %w", id, err)
	}
	return row, row.EndedAt == 0, nil
}

// CollectSessions ends the sessions whose deadline has passed and frees what ended sessions hold.
// Called by the janitor; claims do the same for the sessions that are in their way.
func (db *DB) CollectSessions(ctx context.Context) (ended int, err error) {
	var overdue []string
	err = db.view(ctx, "overdue sessions", func(ctx context.Context, t *transaction) (err error) {
		overdue, err = t.q.ListOverdueSessions(ctx, micros(t.Now()))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("list overdue sessions: %w", err)
	}
	var stuck []error
	for _, id := range overdue {
		did, err := db.endSession(ctx, fleet.SessionID(id), causeOverdue, true)
		// a commit of its holder hangs; the others are ended all the same
		if fleet.KindOf(err) == fleet.KindTemporary {
			stuck = append(stuck, fmt.Errorf("end session %s: %w", id, err))
			continue
		}
		if err != nil {
			return ended, fmt.Errorf("end session %s: %w", id, err)
		}
		if did {
			ended++
			db.logger.InfoContext(ctx, "session ended", slog.String("session", id), slog.String("cause", causeOverdue))
		}
	}
	return ended, errors.Join(append(stuck, db.freeAbandonedLanes(ctx))...)
}

const causeOverdue = "not extended in time"

// endAllSessions is for an engine that only one process can have open: whoever is left in it is
// dead.
func (db *DB) endAllSessions(ctx context.Context) error {
	var live []statement.Session
	err := db.view(ctx, "live sessions", func(ctx context.Context, t *transaction) (err error) {
		live, err = t.q.ListLiveSessions(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, s := range live {
		if _, err := db.endSession(ctx, fleet.SessionID(s.ID), "its process is gone: the database was opened anew", false); err != nil {
			return err
		}
	}
	return db.freeAbandonedLanes(ctx)
}

// freeLanes frees what an ended session holds, in small transactions. What it does not get to, the
// next claim or fact does.
func (db *DB) freeLanes(ctx context.Context, id fleet.SessionID) error {
	return db.freeEach(ctx, func(ctx context.Context, t *transaction) ([]string, error) {
		rows, err := t.q.ListHeldLanes(ctx, statement.ListHeldLanesParams{Session: string(id), MaxRows: freeBatch})
		subjects := make([]string, len(rows))
		for i, r := range rows {
			subjects[i] = r.Subject
		}
		return subjects, err
	})
}

func (db *DB) freeAbandonedLanes(ctx context.Context) error {
	return db.freeEach(ctx, func(ctx context.Context, t *transaction) ([]string, error) {
		rows, err := t.q.ListAbandonedLanes(ctx, freeBatch)
		subjects := make([]string, len(rows))
		for i, r := range rows {
			subjects[i] = r.Subject
		}
		return subjects, err
	})
}

const freeBatch = 50

// freeEach rewrites the subjects that list returns, which frees the lanes that the dead hold there,
// until it returns none.
func (db *DB) freeEach(ctx context.Context, list func(context.Context, *transaction) ([]string, error)) error {
	var last []string
	for {
		var subjects []string
		err := db.view(ctx, "dead lanes", func(ctx context.Context, t *transaction) (err error) {
			subjects, err = list(ctx, t)
			return err
		})
		if err != nil {
			return fmt.Errorf("list the lanes of ended sessions: %w", err)
		}
		if len(subjects) == 0 {
			return nil
		}
		if slices.Equal(subjects, last) {
			return fmt.Errorf("the lanes of ended sessions stay held: %s and others", subjects[0])
		}
		last = subjects
		err = db.update(ctx, "free lanes", func(ctx context.Context, t *transaction) error { return t.rewriteSubjects(ctx, subjects) })
		if err != nil {
			return fmt.Errorf("free the lanes of ended sessions: %w", err)
		}
	}
}

// rewriteSubjects locks and rewrites providers and machines, in the one lock order.
func (t *transaction) rewriteSubjects(ctx context.Context, keys []string) error {
	l := locks{}
	for _, key := range keys {
		l.add(parseSubject(key))
	}
	if err := l.take(ctx, t); err != nil {
		return err
	}
	for _, name := range l.providers {
		if err := t.rewriteProvider(ctx, name); err != nil {
			return err
		}
	}
	for _, id := range l.machines {
		if err := t.rewrite(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
