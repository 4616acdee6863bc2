package postgres_test

import (
	"cmp"
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
)

// party is one process that has the database open.
type party struct {
	*bmdb.DB
	t     *testing.T
	at    string
	pause *pausing
	shift *bmdbtest.Shift
	count *counter
}

const provider = fleet.ProviderName("p1")

// join opens a database as one more process would.
func join(t *testing.T, url string, options postgres.Options) *party {
	t.Helper()
	p := &party{t: t, at: url, pause: &pausing{Engine: open(t, url, options)}, count: &counter{statements: make(map[string]int)}}
	p.shift = &bmdbtest.Shift{Engine: p.pause}
	db, err := bmdb.Open(t.Context(), p.shift, bmdb.Options{Observer: p.count})
	if err != nil {
		t.Fatal(err)
	}
	p.DB = db
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// stocked opens a new database with n machines that are due for an agent.
func stocked(t *testing.T, n int, options postgres.Options) (p *party, url string, ids []fleet.MachineID) {
	t.Helper()
	url = migrated(t)
	p = join(t, url, options)
	return p, url, p.stock(n)
}

// stock makes n machines that are due for an agent.
func (p *party) stock(n int) (ids []fleet.MachineID) {
	p.t.Helper()
	for range n {
		ids = append(ids, fleet.NewMachineID())
	}
	p.must(bmdbtest.Stock(p.t.Context(), p.DB, provider, ids, nil))
	return ids
}

func (p *party) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *party) session(name string, lasts time.Duration) *bmdb.Session {
	p.t.Helper()
	s, err := p.StartSession(p.t.Context(), bmdb.SessionOptions{Component: name, Host: "h", PID: 1, Lease: lasts})
	p.must(err)
	return s
}

func (p *party) claim(s *bmdb.Session, limit int) []*bmdb.Work {
	p.t.Helper()
	c, err := s.Claim(p.t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: limit})
	p.must(err)
	return c.Works
}

// sound checks that the database is as the protocol wants it.
func (p *party) sound() {
	p.t.Helper()
	findings, err := p.Check(p.t.Context())
	p.must(err)
	for _, f := range findings {
		p.t.Errorf("%s %s: %s", f.Invariant, f.Subject, f.Detail)
	}
}

// pausing is an engine that stops in a writing transaction, when everything is done but the commit.
type pausing struct {
	bmdb.Engine
	mu sync.Mutex
	// armed stops the next transaction, and locked the one that has locked machines, with those that
	// end while it waits.
	armed, locked *pause
	hook          func()
	limit         func()
	end           func()
	env           func()
}

// beforeLock has something done when the next transaction is about to lock machines.
func (p *pausing) beforeLock(hook func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = hook
}

// beforeLimit has something done when the next transaction is about to lock a concurrency limit.
func (p *pausing) beforeLimit(hook func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = hook
}

// beforeEnd has something done when the next transaction is about to lock a session that it may
// end.
func (p *pausing) beforeEnd(hook func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = hook
}

// beforeEnvironment has something done when the next transaction is about to read the policy.
func (p *pausing) beforeEnvironment(hook func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.env = hook
}

type hookedTx struct {
	bmdb.Tx
	engine *pausing
}

func (t hookedTx) LockMachines(ctx context.Context, ids []fleet.MachineID, skipLocked bool) ([]fleet.MachineID, error) {
	t.engine.mu.Lock()
	hook := t.engine.hook
	t.engine.hook = nil
	t.engine.mu.Unlock()
	if hook != nil {
		hook()
	}
	return t.Tx.LockMachines(ctx, ids, skipLocked)
}

func (t hookedTx) LockSession(ctx context.Context, id fleet.SessionID, exclusive bool) error {
	var hook func()
	if exclusive {
		t.engine.mu.Lock()
		hook, t.engine.end = t.engine.end, nil
		t.engine.mu.Unlock()
	}
	if hook != nil {
		hook()
	}
	return t.Tx.LockSession(ctx, id, exclusive)
}

func (t hookedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	var hook func()
	if strings.Contains(query, "name: LockLimit") {
		t.engine.mu.Lock()
		hook, t.engine.limit = t.engine.limit, nil
		t.engine.mu.Unlock()
	}
	if hook != nil {
		hook()
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t hookedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	var hook func()
	if strings.Contains(query, "name: GetEnvironment") {
		t.engine.mu.Lock()
		hook, t.engine.env = t.engine.env, nil
		t.engine.mu.Unlock()
	}
	if hook != nil {
		hook()
	}
	return t.Tx.QueryRowContext(ctx, query, args...)
}

type pause struct {
	reached, release chan struct{}
	once             sync.Once
}

// next stops the next transaction.
func (p *pausing) next() *pause {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = &pause{reached: make(chan struct{}), release: make(chan struct{})}
	return p.armed
}

// nextLocking stops the next transaction that locks machines.
func (p *pausing) nextLocking() *pause {
	stop := &pause{reached: make(chan struct{}), release: make(chan struct{})}
	p.beforeLock(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.locked = stop
	})
	return stop
}

func (p *pause) goOn() { p.once.Do(func() { close(p.release) }) }

func (p *pausing) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	p.mu.Lock()
	stop := p.armed
	p.armed = nil
	p.mu.Unlock()
	return p.Engine.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
		err := fn(ctx, hookedTx{tx, p})
		p.mu.Lock()
		stop := cmp.Or(stop, p.locked)
		p.mu.Unlock()
		if err != nil || stop == nil {
			return err
		}
		select {
		case <-stop.reached:
		default:
			close(stop.reached)
		}
		<-stop.release
		return nil
	})
}

// counter counts statements by the kind of their transaction.
type counter struct {
	mu         sync.Mutex
	statements map[string]int
}

func (c *counter) Transaction(kind string, _ time.Duration, statements int, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statements[kind] += statements
}

func (c *counter) Outcome(fleet.Process, string, time.Duration) {}

func (c *counter) Happened(bmdb.Happening, string) {}

// take returns what was counted, and forgets it.
func (c *counter) take() (all int, kinds map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kinds = c.statements
	c.statements = make(map[string]int)
	for _, n := range kinds {
		all += n
	}
	return all, kinds
}

// stranger is a client that is none of ours, in a transaction.
func stranger(t *testing.T, url, statement string, args ...any) pgx.Tx {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, statement, args...); err != nil {
		t.Fatal(err)
	}
	return tx
}

// await looks until it is so.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(time.Minute)
	for !so() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("it never came to pass: %s", what)
		case <-t.Context().Done():
			t.Fatalf("it has not come to pass: %s", what)
		}
	}
}

// query reads one value beside everybody.
func query[T any](t *testing.T, url, statement string, args ...any) (value T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := conn.QueryRow(t.Context(), statement, args...).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

// blocked says how many of the connections to the database wait for a lock.
func blocked(t *testing.T, url string) int {
	t.Helper()
	return query[int](t, url, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
}

func stock(t *testing.T, p *party, ids []fleet.MachineID) error {
	t.Helper()
	return bmdbtest.Stock(t.Context(), p.DB, provider, ids, nil)
}
