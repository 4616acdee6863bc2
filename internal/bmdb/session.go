package bmdb

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/batch"
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
	// Providers are those that the component serves, as far as they are registered; nil: all.
	Providers []fleet.ProviderName
	// Lease is how long the session lasts from each extension. At least one second. Everything done
	// under the session is cancelled a fifth of it before its end.
	Lease time.Duration
}

// Session is a component's proof of life. Everything that it holds is void when it ends. Safe for
// concurrent use.
type Session struct {
	db     *DB
	id     fleet.SessionID
	opts   SessionOptions
	window *trust.Window
	ends   batch.Queue[*commit]
	// serves are those of its providers that are registered.
	serves []fleet.ProviderName

	mu    sync.Mutex
	works map[workKey]*Work
	// maybeHeld are the subjects of claims whose outcome is not known, with the reading of the clock
	// when the claim failed. Extensions ask which of them are held, for as long as a lease: a commit
	// that was given up may still land.
	maybeHeld map[string]time.Duration
	// claims counts the claims that ended, claimsUnderWay those that have not, which may hold what is
	// not in works yet.
	claims         int
	claimsUnderWay int
}

type workKey struct {
	subject fleet.Subject
	lane    fleet.Lane
	epoch   fleet.Epoch
}

// LeastLease is how long the lease of a session lasts at least from each extension.
const LeastLease = time.Second

// StartSession starts a session. The caller runs Run beside what it does, and Close at the end. ctx
// gives the session its values; cancelling it later does not end the session.
func (db *DB) StartSession(ctx context.Context, opts SessionOptions) (*Session, error) {
	if opts.Lease < LeastLease {
		return nil, fleet.Errorf(fleet.KindInvalid, "session.lease must be at least %s, not %s", LeastLease, opts.Lease)
	}
	s := &Session{db: db, id: fleet.NewSessionID(), opts: opts, works: make(map[workKey]*Work), maybeHeld: make(map[string]time.Duration)}
	start := db.clock.Elapsed()
	// The deadline counts from the time of an extension, which is never from before the start. That
	// of an update may be, by as long as an answer of the server once took.
	var now time.Time
	err := db.transact(ctx, "time of a session", db.engine.Extend, func(_ context.Context, t *transaction) error {
		now = t.Now()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start session of %s: %w", opts.Component, err)
	}
	err = db.update(ctx, "start session", func(ctx context.Context, t *transaction) (err error) {
		if s.serves, err = t.registered(ctx, opts.Providers); err != nil {
			return err
		}
		return t.q.InsertSession(ctx, statement.InsertSessionParams{
			ID: string(s.id), Component: opts.Component, Host: opts.Host, Pid: int64(opts.PID), Lease: opts.Lease.Microseconds(),
			StartedAt: micros(t.Now()), DeadlineAt: micros(now.Add(opts.Lease)), Providers: served(s.serves),
		})
	})
	if err != nil {
		return nil, fmt.Errorf("start session of %s: %w", opts.Component, err)
	}
	s.window = trust.NewWindow(ctx, db.clock, start, trust.Options{Interval: opts.Lease, Expired: fleet.ErrLeaseLost})
	db.logger.DebugContext(ctx, "session started", slog.String("session", string(s.id)), slog.String("component", opts.Component))
	return s, nil
}

// registered returns those of the providers that have a row; nil stays nil. They stay locked,
// because ForgetProvider asks, under that lock, who serves one.
func (t *transaction) registered(ctx context.Context, providers []fleet.ProviderName) ([]fleet.ProviderName, error) {
	if len(providers) == 0 {
		return providers, nil
	}
	l := locks{providers: slices.Clone(providers)}
	if err := l.take(ctx, t); err != nil {
		return nil, err
	}
	names, err := t.q.ListProviderNames(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(providers), func(name fleet.ProviderName) bool { return !slices.Contains(names, string(name)) }), nil
}

// Unregistered returns those of its providers that are not registered, so that the session does not
// serve them: they were forgotten, or the database is an older one.
func (s *Session) Unregistered() []fleet.ProviderName {
	return slices.DeleteFunc(slices.Clone(s.opts.Providers), func(name fleet.ProviderName) bool { return slices.Contains(s.serves, name) })
}

// served is how a session's row says which providers it serves.
func served(providers []fleet.ProviderName) string {
	if providers == nil {
		return everywhere
	}
	return joinWords(providers)
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
	x := s.extension()
	start := s.db.clock.Elapsed()
	err := s.db.transact(ctx, "extend session", s.db.engine.Extend, func(ctx context.Context, t *transaction) error {
		n, err := t.q.ExtendSession(ctx, statement.ExtendSessionParams{
			ID: string(s.id), ExtendedAt: micros(t.Now()), DeadlineAt: micros(t.Now().Add(s.opts.Lease)), Running: x.running,
		})
		if x.alive = n == 1; err != nil || !x.alive {
			return err
		}
		return x.ask(ctx, t, string(s.id))
	})
	if err != nil {
		return fmt.Errorf("extend session: %w", err)
	}
	if !x.alive {
		s.window.Close(fleet.ErrLeaseLost)
		return fleet.ErrLeaseLost
	}
	if !s.window.Extend(start) {
		return fleet.ErrLeaseLost
	}
	for _, w := range x.void() {
		w.void()
	}
	s.handBack(ctx, x)
	return nil
}

// extension is what one extension asks, and what it is told.
type extension struct {
	works map[workKey]*Work
	// began is the reading of the clock when it began. maybeHeld are those of the session then, and
	// claims is how many there had been; claimed: one was under way.
	began     time.Duration
	maybeHeld []string
	claims    int
	claimed   bool
	running   string

	alive bool
	// held are the machines of works and of maybeHeld that are ours, and providers all lanes of
	// providers that are.
	held      []statement.GetMachineHeldRow
	providers []statement.ListProviderLanesHeldRow
}

func (s *Session) extension() *extension {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := &extension{
		works: maps.Clone(s.works), claims: s.claims, claimed: s.claimsUnderWay > 0, began: s.db.clock.Elapsed(),
		maybeHeld: slices.Sorted(maps.Keys(s.maybeHeld)),
	}
	running := make(map[fleet.Process]int)
	for _, w := range x.works {
		running[w.Process]++
	}
	x.running = encodeRunning(running)
	return x
}

// ask asks which of the works, and of what may be held, are held.
func (x *extension) ask(ctx context.Context, t *transaction, session string) (err error) {
	machines, ofProviders := slices.Clone(x.maybeHeld), len(x.maybeHeld) > 0
	for _, w := range x.works {
		if w.Subject.Machine == "" {
			ofProviders = true
		} else {
			machines = append(machines, string(w.Subject.Machine))
		}
	}
	slices.Sort(machines)
	x.held, x.providers = nil, nil
	if len(machines) > 0 {
		if x.held, err = t.many.GetMachinesHeld(ctx, session, slices.Compact(machines)); err != nil {
			return err
		}
	}
	if ofProviders {
		x.providers, err = t.q.ListProviderLanesHeld(ctx, session)
	}
	return err
}

// void returns the works whose leases are void.
func (x *extension) void() (list []*Work) {
	void := maps.Clone(x.works)
	for _, h := range x.held {
		delete(void, workKey{fleet.Subject{Machine: fleet.MachineID(h.ID)}, fleet.Process(h.Process).Lane(), fleet.Epoch(h.Epoch)})
	}
	for _, h := range x.providers {
		delete(void, workKey{fleet.Subject{Provider: fleet.ProviderName(h.Provider)}, fleet.Process(h.Process).Lane(), fleet.Epoch(h.Epoch)})
	}
	return slices.Collect(maps.Values(void))
}

// handBack hands back what a claim has taken whose reply was lost: a lease of a subject of
// maybeHeld that the database has as ours, and that the session did not know when the extension
// began. It compares with that moment, because a work that has ended since is not unknown. It does
// nothing if a claim was under way meanwhile, because the lease may be one that this claim is about
// to make known.
func (s *Session) handBack(ctx context.Context, x *extension) {
	var unknown []*Work
	s.mu.Lock()
	if len(x.maybeHeld) > 0 && !x.claimed && s.claimsUnderWay == 0 && s.claims == x.claims {
		look := func(w *Work) {
			_, known := x.works[w.key()]
			if _, maybe := s.maybeHeld[keyOf(w.Subject)]; maybe && !known {
				unknown = append(unknown, w)
			}
		}
		for _, h := range x.held {
			look(s.newWork(fleet.Subject{Machine: fleet.MachineID(h.ID)}, fleet.Process(h.Process), fleet.Epoch(h.Epoch), h.Since))
		}
		for _, h := range x.providers {
			look(s.newWork(fleet.Subject{Provider: fleet.ProviderName(h.Provider)}, fleet.Process(h.Process), fleet.Epoch(h.Epoch), h.Since))
		}
		maps.DeleteFunc(s.maybeHeld, func(_ string, since time.Duration) bool { return x.began-since >= s.opts.Lease })
	}
	s.mu.Unlock()
	for _, w := range unknown {
		if err := w.Cancel(ctx, "the reply to the claim was lost"); err != nil {
			s.db.logger.WarnContext(ctx, "a lane could not be handed back", slog.String("session", string(s.id)),
				slog.String("subject", w.Subject.String()), slog.Any("err", err))
			s.noteMaybeHeld(keyOf(w.Subject))
		}
	}
}

func (s *Session) claimStarts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claimsUnderWay++
}

func (s *Session) claimEnds() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claimsUnderWay--
	s.claims++
}

// remember makes works known that have been claimed.
func (s *Session) remember(works []*Work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range works {
		s.works[w.key()] = w
	}
}

// letGo makes the session not ask for a work any more, which is over, or given up.
func (s *Session) letGo(w *Work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.works, w.key())
}

// noteMaybeHeld makes the next extensions ask whether the subject is held.
func (s *Session) noteMaybeHeld(subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maybeHeld[subject] = s.db.clock.Elapsed()
}

// Run extends the session until ctx ends (nil) or the session is lost (ErrLeaseLost). One extension
// that fails is tried again; only the end of the trust window is the end.
func (s *Session) Run(ctx context.Context) error {
	guarded, cancel := s.Guard(ctx)
	defer cancel()
	pause := s.opts.Lease / 3
	for {
		if !s.db.clock.Sleep(guarded, pause) {
			if ctx.Err() != nil {
				return nil
			}
			return fleet.ErrLeaseLost
		}
		attempt, done := context.WithTimeout(guarded, s.opts.Lease/3)
		err := s.Extend(attempt)
		done()
		pause = s.opts.Lease / 3
		switch {
		case ctx.Err() != nil:
			return nil
		case fleet.KindOf(err) == fleet.KindLeaseLost:
			return fleet.ErrLeaseLost
		case err != nil:
			s.db.logger.WarnContext(ctx, "session was not extended", slog.String("session", string(s.id)), slog.Any("err", err))
			pause = s.opts.Lease / 20
		}
	}
}

// Close ends the session as a fact and frees what it knows to hold; what else there is, a janitor
// finds. Everything under Guard is cancelled first. Closing twice is harmless.
func (s *Session) Close(ctx context.Context, cause string) error {
	s.window.Close(fleet.ErrLeaseLost)
	if _, err := s.db.endSession(ctx, s.id, cause, false); err != nil {
		return fmt.Errorf("close session: %w", err)
	}
	x := s.extension()
	subjects := x.maybeHeld
	for _, w := range x.works {
		subjects = append(subjects, keyOf(w.Subject))
	}
	slices.Sort(subjects)
	for some := range slices.Chunk(slices.Compact(subjects), freeBatch) {
		if err := s.db.rewrite(ctx, "free lanes", some, false); err != nil {
			return fmt.Errorf("close session: %w", err)
		}
	}
	return nil
}

// CloseLost is Close of a session that was not extended in time, as a janitor would end it.
func (s *Session) CloseLost(ctx context.Context) error { return s.Close(ctx, causeOverdue) }

// endSession writes the death of a session by one small transaction (rule 4): the row is locked by
// one statement and judged by a later one. onlyOverdue leaves a session alone that was extended
// meanwhile.
func (db *DB) endSession(ctx context.Context, id fleet.SessionID, cause string, onlyOverdue bool) (bool, error) {
	return read(ctx, db.update, "end session", func(ctx context.Context, t *transaction) (ended bool, err error) {
		if err := t.LockSession(ctx, id, true); err != nil {
			return false, err
		}
		row, err := t.q.GetSession(ctx, string(id))
		if absent(err) || err == nil && (row.EndedAt != 0 || onlyOverdue && row.DeadlineAt >= micros(t.Now())) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		n, err := t.q.EndSession(ctx, statement.EndSessionParams{ID: string(id), EndedAt: micros(t.Now()), Cause: cause})
		ended = n == 1
		if lost := map[string]string{causeOverdue: LostOverdue, causeReopened: LostReopened}[cause]; ended && lost != "" {
			t.happens(HappeningSessionLost, lost)
		}
		return ended, err
	})
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
