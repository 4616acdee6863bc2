package sqlite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/fleet"
)

// counter is an observer that counts statements by the kind of their transaction.
type counter struct {
	mu         sync.Mutex
	statements map[string]int
	runs       map[string]int
}

func (c *counter) Transaction(kind string, _ time.Duration, statements int, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statements[kind] += statements
	c.runs[kind]++
}

func (c *counter) Outcome(fleet.Process, string, time.Duration) {}

func (c *counter) Happened(bmdb.Happening, string) {}

// total and of are since the counter was made.
func (c *counter) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.statements {
		n += s
	}
	return n
}

// bench is a database on the disk that the benchmark runs on, synchronous as in production.
type bench struct {
	*testing.B
	db      *bmdb.DB
	session *bmdb.Session
	counter *counter
	agents  []bmdb.AgentIdentity
}

func newBench(b *testing.B, machines int, install bool) *bench {
	b.Helper()
	ctx := b.Context()
	dir, err := os.MkdirTemp(".", "bench-") //nolint:usetesting // a real disk; the temporary directory may be memory
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	engine, err := sqlite.Open(ctx, filepath.Join(dir, "bmdb"), sqlite.Options{})
	if err != nil {
		b.Fatal(err)
	}
	if err := engine.Migrate(ctx); err != nil {
		b.Fatal(err)
	}
	n := &bench{B: b, counter: &counter{statements: make(map[string]int), runs: make(map[string]int)}}
	if n.db, err = bmdb.Open(ctx, engine, bmdb.Options{Observer: n.counter}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := n.db.Close(); err != nil {
			b.Error(err)
		}
	})
	n.must(n.db.RegisterProvider(ctx, "p", "test", 0))
	n.session, err = n.db.StartSession(ctx, bmdb.SessionOptions{Component: "bench", Host: "here", Lease: time.Hour})
	n.must(err)
	n.fill(ctx, machines, install)
	return n
}

func (n *bench) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// fill makes machines that the provider has handed over.
func (n *bench) fill(ctx context.Context, machines int, install bool) {
	n.Helper()
	c, err := n.session.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
	n.must(err)
	work := c.Works[0]
	for made := 0; made < machines; {
		var opened []fleet.Intent
		var wanted []bmdb.NewIntent
		for range min(100, machines-made) {
			i := bmdb.NewIntent{Capacity: fleet.CapacityID(fmt.Sprint("c", made)), Machine: fleet.NewMachineID(), Token: fleet.NewToken()}
			if install {
				i.Install = &fleet.InstallRequest{Image: fleet.Image{URL: "http://x/y", Digest: "sha256:0"}}
			}
			wanted = append(wanted, i)
			made++
		}
		n.must(work.Note(ctx, bmdb.OpenIntents(0, wanted, &opened)))
		var changes []bmdb.Change
		for _, i := range opened {
			changes = append(changes, bmdb.CloseIntentProvided(i.Machine, fleet.ProviderID(i.Capacity), fleet.Provided{
				Status: fleet.ProviderStatusActive, Hostname: "h-" + string(i.Capacity),
			}))
			n.agents = append(n.agents, bmdb.AgentIdentity{Machine: i.Machine, TakeoverGeneration: 1, PublicKey: []byte("k")})
		}
		n.must(work.Note(ctx, changes...))
	}
	n.must(work.Finish(ctx))
}

// start puts agents in charge that have spoken and reported.
func (n *bench) start(ctx context.Context) {
	n.Helper()
	n.must(n.db.ListenerAlive(ctx, time.Hour, time.Minute))
	for {
		c, err := n.session.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 100})
		n.must(err)
		if len(c.Works) == 0 {
			return
		}
		n.each(c.Works, func(w *bmdb.Work) error {
			var g fleet.TakeoverGeneration
			if err := w.Note(ctx, bmdb.MintTakeover(0, &g)); err != nil {
				return err
			}
			if err := w.Finish(ctx, bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: g, PublicKey: []byte("k")})); err != nil {
				return err
			}
			a := bmdb.AgentIdentity{Machine: w.Subject.Machine, TakeoverGeneration: g, PublicKey: []byte("k")}
			if err := n.db.RecordSpoken(ctx, a, "boot"); err != nil {
				return err
			}
			return n.db.RecordHardware(ctx, a, make([]byte, 4096), nil)
		})
	}
}

// each does something with all works at once, as a loop with that many slots does.
func (n *bench) each(works []*bmdb.Work, do func(w *bmdb.Work) error) {
	var wg sync.WaitGroup
	for _, w := range works {
		wg.Go(func() {
			if err := do(w); err != nil {
				n.Error(err)
			}
		})
	}
	wg.Wait()
}

// BenchmarkLeaseCycle is claim + history + fenced end + history + agenda, in batches of 20.
func BenchmarkLeaseCycle(b *testing.B) {
	for _, machines := range []int{1000, 20000} {
		b.Run(fmt.Sprint(machines), func(b *testing.B) {
			n := newBench(b, machines, false)
			before := n.counter.total()
			b.ResetTimer()
			cycles := 0
			for cycles < b.N {
				c, err := n.session.Claim(b.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 20})
				n.must(err)
				n.each(c.Works, func(w *bmdb.Work) error { return w.Cancel(b.Context(), "bench") })
				cycles += len(c.Works)
			}
			b.ReportMetric(float64(cycles)/b.Elapsed().Seconds(), "cycles/s")
			b.ReportMetric(float64(n.counter.total()-before)/float64(cycles), "statements/cycle")
		})
	}
}

// BenchmarkFlush is one batch of 2,000 heartbeats.
func BenchmarkFlush(b *testing.B) {
	n := newBench(b, 2000, false)
	n.start(b.Context())
	seen := make([]bmdb.Seen, len(n.agents))
	b.ResetTimer()
	for i := range b.N {
		for k, a := range n.agents {
			seen[k] = bmdb.Seen{Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration, Age: time.Duration(b.N-i) * time.Nanosecond}
		}
		n.must(n.db.FlushSeen(b.Context(), seen))
	}
}

// BenchmarkAgents is what one agent costs from its first words to its installed system, 32 agents
// at a time.
func BenchmarkAgents(b *testing.B) {
	n := newBench(b, b.N, true)
	n.start(b.Context())
	run := func(name string, do func(i int) error) {
		began, before := time.Now(), n.counter.total()
		var next atomic.Int64
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
					if err := do(i); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), name+"/s")
		b.ReportMetric(float64(n.counter.total()-before)/float64(b.N), "statements/"+name)
	}
	orders := make([]*bmdb.InstallOrder, b.N)
	b.ResetTimer()
	run("handout", func(i int) (err error) {
		orders[i], err = n.db.HandOutInstall(b.Context(), n.agents[i], 0, 0)
		return err
	})
	run("nothing", func(i int) error {
		_, err := n.db.HandOutInstall(b.Context(), n.agents[i], 1, 1)
		return err
	})
	run("report", func(i int) error {
		return n.db.RecordInstallReport(b.Context(), n.agents[i], fleet.InstallReport{Generation: 1, Attempt: 1, OK: true})
	})
	run("installed", func(i int) error {
		return errorOf(n.db.RecordInstalled(b.Context(), n.agents[i].Machine, 1, 1, orders[i].Secret, "b"))
	})
}

// BenchmarkIdle is a claim that finds nothing.
func BenchmarkIdle(b *testing.B) {
	n := newBench(b, 1000, false)
	n.start(b.Context())
	before := n.counter.total()
	b.ResetTimer()
	for range b.N {
		_, err := n.session.Claim(b.Context(), bmdb.ClaimRequest{
			Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{"p"}, Limit: 10,
		})
		n.must(err)
	}
	b.ReportMetric(float64(n.counter.total()-before)/float64(b.N), "statements/claim")
}
