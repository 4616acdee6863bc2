package shepherd_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const source fleet.ProviderName = "metal"

// faulty is a real engine whose transactions can be made to fail, before or after they were
// committed.
type faulty struct {
	bmdb.Engine

	mu sync.Mutex
	// update and extend are called around each transaction: run commits it.
	update, extend func(run func() error) error
}

func (f *faulty) set(update, extend func(run func() error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.update, f.extend = update, extend
}

func (f *faulty) around(which *func(run func() error) error, run func() error) error {
	f.mu.Lock()
	hook := *which
	f.mu.Unlock()
	if hook == nil {
		return run()
	}
	return hook(run)
}

func (f *faulty) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return f.around(&f.update, func() error { return f.Engine.Update(ctx, fn) })
}

func (f *faulty) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return f.around(&f.extend, func() error { return f.Engine.Extend(ctx, fn) })
}

var errBroken = errors.New("the connection broke")

// open returns a fresh database on a real engine, and that engine.
func open(t *testing.T) (*bmdb.DB, *faulty) {
	t.Helper()
	return openWith(t, bmdb.Options{})
}

func openWith(t *testing.T, options bmdb.Options) (*bmdb.DB, *faulty) {
	t.Helper()
	engine := &faulty{Engine: shepherdtest.OpenEngine(t)}
	return shepherdtest.OpenDB(t, engine, options), engine
}

// seed puts machines into the database that the provider has handed over, and returns them in the
// order of their IDs.
func seed(t *testing.T, db *bmdb.DB, n int) []fleet.MachineID {
	t.Helper()
	return shepherdtest.Seed(t, db, source, shepherdtest.NewFakeProvider(n), n)
}

// handler is a shepherd.Handler of agent starts made of a function.
type handler func(ctx context.Context, work *bmdb.Work) shepherd.Outcome

func (h handler) Scope() shepherd.Scope {
	return shepherd.Scope{
		Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{source},
		Backoff: fleet.Backoff{Initial: 10 * time.Second, Exponent: 2, Maximum: time.Minute},
	}
}

func (h handler) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	return h(ctx, work)
}

// started is the outcome of an agent start that succeeded.
func started(work *bmdb.Work) shepherd.Outcome {
	var generation fleet.TakeoverGeneration
	return shepherd.Finish{Changes: []bmdb.Change{
		bmdb.MintTakeover(0, &generation),
		bmdb.SetAgentStarted(fleet.AgentStarted{
			TakeoverGeneration: work.Record.TakeoverGeneration + 1, PublicKey: make([]byte, 32), AgentVersion: "test", BootID: "boot",
		}),
	}}
}

// recorder is an observer.
type recorder struct {
	mu      sync.Mutex
	claims  []time.Time
	largest int
	results map[shepherd.Result]int
	// running is how much work has started and not ended; lowest is the least that it ever was.
	running, lowest int
}

func (r *recorder) Claimed(_ fleet.Process, works int, _ time.Duration, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims = append(r.claims, time.Now())
	r.largest = max(r.largest, works)
}

func (r *recorder) Started(fleet.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running++
}

func (r *recorder) Ended(_ fleet.Process, result shepherd.Result, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.results == nil {
		r.results = make(map[shepherd.Result]int)
	}
	r.results[result]++
	r.running--
	r.lowest = min(r.lowest, r.running)
}

func (r *recorder) count(result shepherd.Result) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.results[result]
}

// run starts a loop, and returns what ends it and waits for it.
func run(t *testing.T, db *bmdb.DB, h shepherd.Handler, config shepherd.Config, options shepherd.Options) (stop func()) {
	t.Helper()
	loop, err := shepherd.New(db, h, config, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the loop ended with %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// openSessions returns the sessions that have not ended.
func openSessions(t *testing.T, db *bmdb.DB) []bmdb.SessionRow {
	t.Helper()
	rows, err := db.Sessions(context.WithoutCancel(t.Context()), false)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func machineOf(t *testing.T, db *bmdb.DB, id fleet.MachineID) fleet.Record {
	t.Helper()
	record, err := db.Machine(context.WithoutCancel(t.Context()), id)
	if err != nil {
		t.Fatal(err)
	}
	return record
}

type entry = provider.Entry

var identity = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// anonymous replaces each UUID by the order in which it appears.
func anonymous(text string) string {
	seen := make(map[string]string)
	return identity.ReplaceAllStringFunc(text, func(id string) string {
		if seen[id] == "" {
			seen[id] = fmt.Sprintf("id-%d", len(seen)+1)
		}
		return seen[id]
	})
}
