// Package calls_test lets one machine go its whole way, from an open intent to an installed system,
// once for every call that this makes to the database, and lets that call fail: by an error, by a
// timeout, done but with the reply lost, and, on a server, by a serialization failure or a
// connection that is killed. Whoever meets the failure does what every caller of the BMDB does: it
// asks again. In the end the machine must be where it would have been without the failure, with
// nothing done twice.
package calls_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest/engines"
	"github.com/ironherd/ironherd/internal/fleet"
)

var stride = flag.Int("stride", 7, "let only each n-th call fail; 1: every one")

func TestMain(m *testing.M) { os.Exit(engines.Main(m)) }

const provider = fleet.ProviderName("p1")

func TestEveryCallFailsOnce(t *testing.T) {
	t.Parallel()
	for _, e := range engines.All() {
		manners := []manner{fails, late, unanswered}
		if e.Name != "sqlite" {
			manners = append(manners, conflict, killed)
		}
		for _, m := range manners {
			t.Run(e.Name+"/"+string(m), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, e)
				begin := 1 + rand.IntN(*stride) //nolint:gosec // any sample will do
				for n := begin; ; n += *stride {
					if !w.way(n, m) {
						t.Logf("the way makes up to %d calls", n)
						if n < 50 {
							t.Errorf("the way makes less than %d calls: the test tests nothing", n)
						}
						break
					}
				}
				w.sound()
			})
		}
	}
}

// world is one database.
type world struct {
	*testing.T
	ctx    context.Context //nolint:containedctx // of the test
	engine *nth
	db     *bmdb.DB
}

func newWorld(t *testing.T, e engines.Opener) *world {
	t.Helper()
	w := &world{T: t, ctx: t.Context(), engine: &nth{Engine: e.Open(t)}}
	if e.Name != "sqlite" {
		w.must(w.engine.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
			_, err := tx.ExecContext(ctx, makeProvocation)
			return err
		}))
	}
	db, err := bmdb.Open(w.ctx, w.engine, bmdb.Options{})
	w.must(err)
	w.db = db
	t.Cleanup(func() { _ = db.Close() })
	w.must(db.RegisterProvider(w.ctx, provider, "test", 0))
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) sound() {
	w.Helper()
	findings, err := w.db.Check(w.ctx)
	w.must(err)
	if len(findings) > 0 {
		w.Fatalf("the database is not sound: %v", findings)
	}
}

// machine is one machine on its way.
type machine struct {
	*world
	n       int
	manner  manner
	id      fleet.MachineID
	session *bmdb.Session
	work    *bmdb.Work
	agent   bmdb.AgentIdentity
	order   *bmdb.InstallOrder
	orders  []int
}

// way lets a machine go its way while the n-th call fails; false when there are not that many.
func (w *world) way(n int, m manner) (hit bool) {
	w.Helper()
	x := &machine{world: w, n: n, manner: m, id: fleet.NewMachineID()}
	x.agent = bmdb.AgentIdentity{Machine: x.id, PublicKey: []byte("k")}
	w.engine.arm(n, m)
	for name, step := range x.steps() {
		x.again(name, step)
	}
	hit = w.engine.hit.Load()
	w.engine.arm(0, m)
	x.arrived()
	return hit
}

// again repeats a step until it succeeds. What the server resolves by itself nobody may notice.
//
// PostgreSQL tells a client that its connection is killed before it lets go of what that had
// locked: until it has, nothing can be claimed.
func (x *machine) again(name string, step func() error) {
	x.Helper()
	var err error
	start := time.Now()
	for tries := 1; tries <= 4; tries++ {
		if err = step(); err == nil {
			return
		}
		if x.manner == killed && errors.Is(err, errNothing) && time.Since(start) < time.Minute {
			tries--
		}
		if !x.engine.hit.Load() || x.manner == conflict && !errors.Is(err, errNothing) {
			break
		}
	}
	x.Fatalf("%s at call %d: %s: %v", x.manner, x.n, name, err)
}

var errNothing = errors.New("nothing to claim")

func (x *machine) claim(process fleet.Process) func() error {
	return func() error {
		if err := x.session.Extend(x.ctx); err != nil { // hands back what a lost reply left
			return err
		}
		c, err := x.session.Claim(x.ctx, bmdb.ClaimRequest{Process: process, Limit: 1})
		if err == nil && len(c.Works) == 0 {
			err = errNothing
		}
		if err == nil {
			x.work = c.Works[0]
		}
		return err
	}
}

// steps returns the way, in its order.
func (x *machine) steps() func(yield func(string, func() error) bool) {
	capacity := fleet.CapacityID("c-" + x.id)
	wanted := []bmdb.NewIntent{{
		Capacity: capacity, Machine: x.id, Token: fleet.NewToken(), Install: &fleet.InstallRequest{Image: fleet.Image{URL: "http://x/y"}},
	}}
	active := fleet.Provided{Status: fleet.ProviderStatusActive, Hostname: "h", Capacity: capacity}
	var opened []fleet.Intent
	list := []struct {
		name string
		do   func() error
	}{
		{"start session", func() (err error) {
			x.session, err = x.db.StartSession(x.ctx, bmdb.SessionOptions{Component: "c", Host: "h", Lease: time.Minute})
			return err
		}},
		{"claim provision", x.claim(fleet.ProcessProvision)},
		{"open", func() error { return x.work.Note(x.ctx, bmdb.OpenIntents(0, wanted, &opened)) }},
		{"called", func() error { return x.work.Note(x.ctx, bmdb.IntentCalled(x.id)) }},
		{"provided", func() error {
			return x.work.Note(x.ctx, bmdb.CloseIntentProvided(x.id, fleet.ProviderID(capacity), active))
		}},
		{"hand back", func() error { return x.work.Cancel(x.ctx, "so that the next way finds it") }},
		{"claim agent start", x.claim(fleet.ProcessAgentStart)},
		{"mint", func() error {
			r, err := x.db.Machine(x.ctx, x.id)
			if x.agent.TakeoverGeneration = r.TakeoverGeneration; err != nil || r.TakeoverGeneration > 0 {
				return err // who does work again looks at what was noted
			}
			return x.work.Note(x.ctx, bmdb.MintTakeover(0, &x.agent.TakeoverGeneration))
		}},
		{"started", func() error {
			return x.work.Finish(x.ctx, bmdb.SetAgentStarted(fleet.AgentStarted{
				TakeoverGeneration: x.agent.TakeoverGeneration, PublicKey: x.agent.PublicKey,
			}))
		}},
		{"listener", func() error { return x.db.ListenerAlive(x.ctx, time.Hour, time.Minute) }},
		{"listener full", func() error { return x.db.ListenerFull(x.ctx, time.Minute) }},
		{"spoken", func() error { return x.db.RecordSpoken(x.ctx, x.agent, "b1") }},
		{"hardware", func() error { return x.db.RecordHardware(x.ctx, x.agent, []byte("r"), nil) }},
		{"hand out", x.handOut},
		{"seen", func() error {
			return x.db.FlushSeen(x.ctx, []bmdb.Seen{{Machine: x.id, TakeoverGeneration: x.agent.TakeoverGeneration}})
		}},
		{"report", func() error {
			return x.db.RecordInstallReport(x.ctx, x.agent, fleet.InstallReport{Generation: 1, Attempt: x.order.Attempt, OK: true})
		}},
		{"installed", func() error {
			return errorOf(x.db.RecordInstalled(x.ctx, x.id, 1, x.order.Attempt, x.order.Secret, "b2"))
		}},
		{"quarantine", func() error { return bmdbtest.Quarantine(x.ctx, x.db, "op", x.id, "q") }},
		{"collect", func() error { _, err := x.db.CollectSessions(x.ctx); return err }},
		{"close", func() error { return x.session.Close(x.ctx, "done") }},
	}
	return func(yield func(string, func() error) bool) {
		for _, s := range list {
			if !yield(s.name, s.do) {
				return
			}
		}
	}
}

func (x *machine) handOut() error {
	o, err := x.db.HandOutInstall(x.ctx, x.agent, 0, 0)
	if err != nil {
		return err
	}
	if o == nil {
		return errors.New("nothing was handed out")
	}
	if slices.Contains(x.orders, o.Attempt) {
		x.Fatalf("attempt %d was handed out twice", o.Attempt) // I9
	}
	x.order, x.orders = o, append(x.orders, o.Attempt)
	return nil
}

// arrived compares what there is with a way on which nothing failed.
func (x *machine) arrived() {
	x.Helper()
	r, err := x.db.Machine(x.ctx, x.id)
	x.must(err)
	if r.Installed == nil || r.Quarantine == nil || len(r.Holds) > 0 || r.TakeoverGeneration != 1 || r.Intent != nil {
		x.Fatalf("%s at call %d: the machine is %+v", x.manner, x.n, r)
	}
	rows, err := x.db.History(x.ctx, x.id, 1000)
	x.must(err)
	var events []string
	for _, h := range slices.Backward(rows) {
		// a claim may have to be repeated
		if h.Process != fleet.ProcessAgentStart || h.Event != fleet.EventStarted && h.Event != fleet.EventCancelled {
			events = append(events, string(h.Event))
		}
	}
	got := strings.Join(slices.Compact(events), ", ")
	// an order that was lost is closed as never started
	if want := journey; got != want && !strings.Contains(got, "install failed") {
		x.Fatalf("%s at call %d: history is\n%s\nwant\n%s", x.manner, x.n, got, want)
	}
	once := []string{"intent opened", "takeover", "agent started", "finished", "agent spoke", "hardware reported", "disk written", "installed"}
	for _, event := range once {
		if n := count(events, event); n != 1 {
			x.Fatalf("%s at call %d: %q is %d times in history: %s", x.manner, x.n, event, n, fmt.Sprint(events))
		}
	}
}

func count(events []string, event string) (n int) {
	for _, e := range events {
		if e == event {
			n++
		}
	}
	return n
}

// journey is what history has of a way on which nothing failed.
const journey = "intent opened, asked the provider, created, provider status, takeover, agent started, finished, agent spoke, " +
	"hardware reported, install handed out, disk written, installed, quarantined"

// errorOf leaves out when the system is to call again.
func errorOf(_ time.Duration, err error) error { return err }
