package bmdbtest

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// tb is a test, or one try of a random test.
type tb interface {
	rapid.TB
	Cleanup(f func())
	Context() context.Context
}

// world is one database with what a test needs around it.
type world struct {
	tb
	ctx    context.Context //nolint:containedctx // of the test
	open   func() bmdb.Engine
	shift  *Shift
	faults *Faults
	bounds *Bounds
	db     *bmdb.DB
	// transactions are told here by their kind, where somebody listens.
	transactions chan string
	// after is called once, after the next transaction of that kind.
	after map[string]func()

	mu       sync.Mutex
	happened map[string]int
	// statements counts them by the kind of their transaction.
	statements map[string]int
}

// Transaction implements bmdb.Observer.
func (w *world) Transaction(kind string, _ time.Duration, statements int, _ error) {
	w.mu.Lock()
	if w.statements == nil {
		w.statements = make(map[string]int)
	}
	w.statements[kind] += statements
	w.mu.Unlock()
	if do, ok := w.after[kind]; ok {
		delete(w.after, kind)
		do()
	}
	select {
	case w.transactions <- kind:
	default:
	}
}

// Outcome implements bmdb.Observer.
func (w *world) Outcome(fleet.Process, string, time.Duration) {}

// Happened implements bmdb.Observer.
func (w *world) Happened(what bmdb.Happening, cause string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.happened == nil {
		w.happened = make(map[string]int)
	}
	w.happened[string(what)+": "+cause]++
}

// cost returns how many statements the transactions of a kind run while something is done.
func (w *world) cost(kind string, do func()) int {
	of := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.statements[kind]
	}
	before := of()
	do()
	return of() - before
}

// wantHappenedOnce checks that something has happened once so far.
func (w *world) wantHappenedOnce(what bmdb.Happening, cause string) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.happened[string(what)+": "+cause]; got != 1 {
		w.Fatalf("%s, %s: told %d times, want once; all: %v", what, cause, got, w.happened)
	}
}

const (
	provider = fleet.ProviderName("p1")
	actor    = "op@example"

	// interval is the lease of sessions, and margin how long a busy machine may need between two
	// steps of a test.
	interval = time.Minute
	margin   = 10 * time.Second
)

func newWorld(t tb, open func() bmdb.Engine) *world {
	t.Helper()
	w := &world{tb: t, ctx: t.Context(), open: open, transactions: make(chan string)}
	w.bounds = &Bounds{Engine: open()}
	w.faults = &Faults{Engine: w.bounds}
	w.shift = &Shift{Engine: w.faults}
	if err := w.shift.Migrate(w.ctx); err != nil {
		t.Fatal(err)
	}
	db, err := bmdb.Open(w.ctx, w.shift, bmdb.Options{Observer: w})
	if err != nil {
		t.Fatal(err)
	}
	w.db = db
	t.Cleanup(func() {
		w.faults.Clear()
		w.sound()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	w.must(db.RegisterProvider(w.ctx, provider, "test", 0))
	return w
}

// sound checks, at the end of every test, that the database is as the protocol wants it.
func (w *world) sound() {
	w.Helper()
	findings, err := w.db.Check(context.WithoutCancel(w.ctx))
	if err != nil {
		w.Error(err)
	}
	for _, f := range findings {
		w.Errorf("the database is not sound: %s %s: %s", f.Invariant, f.Subject, f.Detail)
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) wantKind(err error, want fleet.Kind) {
	w.Helper()
	if got := fleet.KindOf(err); err == nil || got != want {
		w.Fatalf("got error %v (%s), want one of kind %s", err, got, want)
	}
}

func (w *world) now() time.Time {
	w.Helper()
	now, err := w.db.Now(w.ctx)
	w.must(err)
	return now
}

// session starts a session that ends with the test.
func (w *world) session(component string) *bmdb.Session {
	w.Helper()
	return w.sessionFor(component, interval)
}

func (w *world) sessionFor(component string, lasts time.Duration) *bmdb.Session {
	w.Helper()
	s, err := w.db.StartSession(w.ctx, bmdb.SessionOptions{Component: component, Host: "host1", PID: 1, Lease: lasts})
	w.must(err)
	w.Cleanup(func() { _ = s.Close(context.WithoutCancel(w.ctx), "test over") })
	return s
}

// claim returns what can be claimed.
func (w *world) claim(s *bmdb.Session, process fleet.Process, limit int) []*bmdb.Work {
	w.Helper()
	c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: process, Providers: []fleet.ProviderName{provider}, Limit: limit})
	w.must(err)
	return c.Works
}

// claimOne returns the one work that can be claimed.
func (w *world) claimOne(s *bmdb.Session, process fleet.Process) *bmdb.Work {
	w.Helper()
	works := w.claim(s, process, 1)
	if len(works) != 1 {
		w.Fatalf("claimed %d works of %s, want one", len(works), process)
	}
	return works[0]
}

// provisioning runs fn with the provision work of the provider, which is due again afterwards.
func (w *world) provisioning(fn func(work *bmdb.Work)) {
	w.Helper()
	s := w.session("provisioner")
	work := w.claimOne(s, fleet.ProcessProvision)
	fn(work)
	w.must(work.Cancel(w.ctx, "test"))
	w.must(s.Close(w.ctx, "done"))
}

// image is an operating system that can be asked for.
var image = fleet.Image{
	URL: "http://127.0.0.1/image", Digest: "sha256:" + "0000000000000000000000000000000000000000000000000000000000000000",
	Compression: fleet.CompressionNone,
}

func providedAs(status fleet.ProviderStatus, capacity fleet.CapacityID) fleet.Provided {
	return fleet.Provided{
		Status: status, Hostname: "host-" + string(capacity), Address: netip.MustParseAddr("192.0.2.1"), Location: "here", Capacity: capacity,
	}
}

// intents returns n new ones on capacities of that name and a number.
func newIntents(capacities ...fleet.CapacityID) []bmdb.NewIntent {
	list := make([]bmdb.NewIntent, len(capacities))
	for i, c := range capacities {
		list[i] = bmdb.NewIntent{Capacity: c, Machine: fleet.NewMachineID(), Token: fleet.NewToken()}
	}
	return list
}

// machines makes machines that the provider has handed over, one per capacity.
func (w *world) machines(install *fleet.InstallRequest, capacities ...fleet.CapacityID) []fleet.MachineID {
	w.Helper()
	var ids []fleet.MachineID
	w.provisioning(func(work *bmdb.Work) {
		wanted := newIntents(capacities...)
		for i := range wanted {
			wanted[i].Install = install
		}
		var opened []fleet.Intent
		w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
		for _, i := range opened {
			w.must(work.Note(w.ctx, bmdb.IntentCalled(i.Machine)))
			w.must(work.Note(w.ctx, bmdb.CloseIntentProvided(i.Machine, fleet.ProviderID("id-"+i.Capacity),
				providedAs(fleet.ProviderStatusActive, i.Capacity))))
			ids = append(ids, i.Machine)
		}
	})
	if len(ids) != len(capacities) {
		w.Fatalf("made %d machines, want %d", len(ids), len(capacities))
	}
	return ids
}

// machine makes one.
func (w *world) machine(capacity fleet.CapacityID) fleet.MachineID {
	w.Helper()
	return w.machines(nil, capacity)[0]
}

// wantsInstall makes one that is to be installed.
func (w *world) wantsInstall(capacity fleet.CapacityID) fleet.MachineID {
	w.Helper()
	return w.machines(&fleet.InstallRequest{Actor: actor, Image: image, FirstBootData: []byte("hello")}, capacity)[0]
}

// startAgent takes the machine over and returns the agent in charge.
func (w *world) startAgent(machine fleet.MachineID) bmdb.AgentIdentity {
	w.Helper()
	return w.startAgentAs(machine, "boot1")
}

// startAgentAs is startAgent on a host with that boot ID.
func (w *world) startAgentAs(machine fleet.MachineID, bootID string) bmdb.AgentIdentity {
	w.Helper()
	s := w.session("initializer")
	works := w.claim(s, fleet.ProcessAgentStart, 100)
	i := slices.IndexFunc(works, func(work *bmdb.Work) bool { return work.Subject.Machine == machine })
	if i < 0 {
		w.Fatalf("machine %s is not due for an agent", machine)
	}
	a := bmdb.AgentIdentity{Machine: machine, PublicKey: []byte("key of " + machine)}
	w.must(works[i].Note(w.ctx, bmdb.MintTakeover(0, &a.TakeoverGeneration)))
	w.must(works[i].Finish(w.ctx, bmdb.SetAgentStarted(fleet.AgentStarted{
		TakeoverGeneration: a.TakeoverGeneration, PublicKey: a.PublicKey, AgentVersion: "1.2.3", BootID: bootID,
	})))
	for j, work := range works {
		if j != i {
			w.must(work.Cancel(w.ctx, "not this one"))
		}
	}
	w.must(s.Close(w.ctx, "done"))
	return a
}

// ready makes a machine whose agent speaks and has reported.
func (w *world) ready(capacity fleet.CapacityID, install bool) bmdb.AgentIdentity {
	w.Helper()
	id := fleet.MachineID("")
	if install {
		id = w.wantsInstall(capacity)
	} else {
		id = w.machine(capacity)
	}
	a := w.startAgent(id)
	w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
	w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
	w.must(w.db.RecordHardware(w.ctx, a, []byte("report"), nil))
	return a
}

func (w *world) record(machine fleet.MachineID) fleet.Record {
	w.Helper()
	r, err := w.db.Machine(w.ctx, machine)
	w.must(err)
	return r
}

// state returns the state beside the agenda.
func (w *world) state(machine fleet.MachineID) fleet.State {
	w.Helper()
	page, err := w.db.ListMachines(w.ctx, bmdb.MachineFilter{Limit: 1000})
	w.must(err)
	for _, m := range page {
		if m.ID == machine {
			return m.State
		}
	}
	w.Fatalf("machine %s is not listed", machine)
	return ""
}

// events returns the events of the machine's history, oldest first.
func (w *world) events(machine fleet.MachineID) []string {
	w.Helper()
	rows, err := w.db.History(w.ctx, machine, 1000)
	w.must(err)
	events := make([]string, len(rows))
	for i, r := range rows {
		events[len(rows)-1-i] = string(r.Event)
	}
	return events
}

// wantDetail demands that the newest event of a kind says so.
func (w *world) wantDetail(rows []bmdb.HistoryRow, event fleet.Event, want string) {
	w.Helper()
	for _, row := range rows {
		if row.Event == event {
			if row.Detail != want {
				w.Errorf("%s: %q, want %q", event, row.Detail, want)
			}
			return
		}
	}
	w.Errorf("history lacks %q", event)
}

func (w *world) wantEvents(machine fleet.MachineID, want ...string) {
	w.Helper()
	got := w.events(machine)
	for _, event := range want {
		i := slices.Index(got, event)
		if i < 0 {
			w.Fatalf("history %q lacks %q (in this order)", w.events(machine), event)
		}
		got = got[i+1:]
	}
}
