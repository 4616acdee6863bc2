package agentapi_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// refusal is all that reaches a caller: the status as it is on the wire, and the keys of the
// metadata.
type refusal struct {
	status string
	keys   string
}

func refusalOf(t *testing.T, call func(opts ...grpc.CallOption) error) refusal {
	t.Helper()
	var header, trailer metadata.MD
	err := call(grpc.Header(&header), grpc.Trailer(&trailer))
	s, _ := status.FromError(err)
	wire, _ := proto.MarshalOptions{Deterministic: true}.Marshal(s.Proto())
	var keys string
	for _, md := range []metadata.MD{header, trailer} {
		for _, k := range []string{"content-type", "grpc-status-details-bin"} {
			if v := md.Get(k); len(v) > 0 {
				keys += k + "=" + v[0] + ";"
			}
		}
		keys += string(rune('0' + md.Len()))
	}
	return refusal{status: string(wire), keys: keys}
}

// TestStrangersGetOneAnswer: whatever is wrong with a caller, the answer has the same bytes.
func TestStrangersGetOneAnswer(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	hosts := h.machines(2, image())
	victim, other := hosts[0], hosts[1]
	own := h.dial(victim.key)
	h.heartbeat(own, victim.beat()) // its identity is remembered now
	_, strange, err := ed25519.GenerateKey(rand.Reader)
	h.must(err)

	beat := func(key ed25519.PrivateKey, change func(*agentv1.HeartbeatRequest)) func(...grpc.CallOption) error {
		client, req := h.dial(key), victim.beat()
		req.HardwareReport = report()
		change(req)
		return func(opts ...grpc.CallOption) error {
			_, err := client.Heartbeat(t.Context(), req, opts...)
			return err
		}
	}
	up := func(req *agentv1.ReportUpRequest) func(...grpc.CallOption) error {
		client := h.dial(nil)
		return func(opts ...grpc.CallOption) error {
			_, err := client.ReportUp(t.Context(), req, opts...)
			return err
		}
	}
	nothing := func(*agentv1.HeartbeatRequest) {}
	want := refusalOf(t, beat(strange, nothing))
	if s := status.Convert(beat(strange, nothing)()); s.Code() != codes.PermissionDenied || s.Message() != "agent not admitted" {
		t.Fatalf("the refusal is %v", s)
	}
	for name, call := range map[string]func(...grpc.CallOption) error{
		"wrong key":                  beat(strange, nothing),
		"no certificate":             beat(nil, nothing),
		"another machine's key":      beat(other.key, nothing),
		"unknown machine":            beat(victim.key, func(r *agentv1.HeartbeatRequest) { r.MachineId = string(fleet.NewMachineID()) }),
		"another machine":            beat(victim.key, func(r *agentv1.HeartbeatRequest) { r.MachineId = string(other.id) }),
		"not a machine ID":           beat(victim.key, func(r *agentv1.HeartbeatRequest) { r.MachineId = "'; DROP TABLE machine" }),
		"no machine ID":              beat(victim.key, func(r *agentv1.HeartbeatRequest) { r.MachineId = "" }),
		"old takeover generation":    beat(victim.key, func(r *agentv1.HeartbeatRequest) { r.TakeoverGeneration-- }),
		"future takeover generation": beat(victim.key, func(r *agentv1.HeartbeatRequest) { r.TakeoverGeneration++ }),
		"bad report besides":         beat(strange, func(r *agentv1.HeartbeatRequest) { r.BootId = "" }),
		"report up, wrong secret": up(&agentv1.ReportUpRequest{
			MachineId: string(victim.id), InstallGeneration: 1, Attempt: 1, Secret: make([]byte, 32), BootId: "b",
		}),
		"report up, unknown machine": up(&agentv1.ReportUpRequest{
			MachineId: string(fleet.NewMachineID()), InstallGeneration: 1, Attempt: 1, Secret: make([]byte, 32), BootId: "b",
		}),
		"report up, bad host key": up(&agentv1.ReportUpRequest{
			MachineId: string(victim.id), InstallGeneration: 1, Attempt: 1, Secret: make([]byte, 32), BootId: "b", HostKeys: []string{"no key"},
		}),
		"report up, too many host keys": up(&agentv1.ReportUpRequest{
			MachineId: string(victim.id), InstallGeneration: 1, Attempt: 1, Secret: make([]byte, 32), BootId: "b", HostKeys: make([]string, 17),
		}),
		"report up, nothing": up(&agentv1.ReportUpRequest{}),
	} {
		if got := refusalOf(t, call); got != want {
			t.Errorf("%s: answered %+v, want %+v", name, got, want)
		}
	}
	if r := h.record(victim); r.Hardware != nil {
		t.Error("a stranger's report was stored")
	}
	h.heartbeat(own, victim.beat()) // and the agent itself is still welcome
}

// TestSupersededAgentIsRefused is rule 7: it takes a machine over anew while the old agent still
// speaks.
func TestSupersededAgentIsRefused(t *testing.T) {
	t.Parallel()
	h := newFixture(t, impatient)
	old := h.machines(1, nil)[0]
	oldClient := h.dial(old.key)
	h.heartbeat(oldClient, old.beat())
	current := h.takeoverAgain(old)

	// The old agent's identity is still remembered, but nothing that it reports is accepted.
	req := old.beat()
	req.HardwareReport = report()
	if _, err := oldClient.Heartbeat(t.Context(), req); status.Code(err) != codes.PermissionDenied {
		t.Errorf("its report: %v", err)
	}
	if r := h.record(old); r.Hardware != nil || r.AgentSeen.TakeoverGeneration != old.generation {
		t.Error("it was recorded")
	}
	h.heartbeat(h.dial(current.key), current.beat())
	if _, err := oldClient.Heartbeat(t.Context(), old.beat()); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a mere heartbeat: %v", err)
	}
}

// TestMemoryOfIdentitiesEnds shows that a superseded agent is noticed even when nothing else speaks
// for its machine.
func TestMemoryOfIdentitiesEnds(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, p *fleet.Policy) {
		impatient(c, p)
		c.Recheck = 1
	})
	old := h.machines(1, nil)[0]
	client := h.dial(old.key)
	h.heartbeat(client, old.beat())
	h.takeoverAgain(old)
	if _, err := client.Heartbeat(t.Context(), old.beat()); status.Code(err) != codes.PermissionDenied {
		t.Errorf("got %v", err)
	}
	if n := h.api.Agents(); n != 0 {
		t.Errorf("%d agents are remembered", n)
	}
}

// impatient has every agent taken for silent at once.
func impatient(_ *agentapi.Config, p *fleet.Policy) {
	p.HeartbeatInterval, p.NeverSpokeAfter, p.SilentAfter = time.Microsecond, time.Microsecond, 3*time.Microsecond
}

// takeoverAgain puts another agent in charge, because the first one is silent.
func (h *fixture) takeoverAgain(m *host) *host {
	h.t.Helper()
	s := h.session()
	works := h.claim(s, fleet.ProcessAgentStart)
	if len(works) != 1 || works[0].Subject.Machine != m.id {
		h.t.Fatalf("an agent is wanted for %d machines", len(works))
	}
	next := h.takeover(works[0])
	h.must(s.Close(h.t.Context(), "done"))
	return next
}

// outage is an engine that calls of agents cannot reach while it is away. The server's own loops
// can. Its writes fail with an error of their own while there is one.
type outage struct {
	bmdb.Engine
	away atomic.Bool
	fail atomic.Pointer[error]
}

// refuses tells by the peer whether a context is that of a call.
func (o *outage) refuses(ctx context.Context) bool {
	_, call := peer.FromContext(ctx)
	return call && o.away.Load()
}

func (o *outage) Update(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	if o.refuses(ctx) {
		return fleet.Errorf(fleet.KindTemporary, "the database server cannot be reached")
	}
	if err := o.fail.Load(); err != nil {
		return *err
	}
	return o.Engine.Update(ctx, fn)
}

func (o *outage) View(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	if o.refuses(ctx) {
		return fleet.Errorf(fleet.KindTemporary, "the database server cannot be reached")
	}
	return o.Engine.View(ctx, fn)
}

// TestAnOutageIsLoggedSparsely: while the database is away, every call of every agent fails, and
// the log says so without a line for each.
func TestAnOutageIsLoggedSparsely(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	h.must(h.stop())
	engine := &outage{Engine: sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard})}
	db, err := bmdb.Open(t.Context(), engine, bmdb.Options{Logger: discard})
	h.must(err)
	t.Cleanup(func() { h.must(db.Close()) })
	log := &lines{}
	h.api = agentapi.New(db, h.config, agentapi.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Certificates: h.certificates})
	h.start()
	client := h.dial(nil)
	up := &agentv1.ReportUpRequest{MachineId: "00000000-0000-4000-8000-000000000001", InstallGeneration: 1, Attempt: 1, Secret: make([]byte, 32), BootId: "b"}
	if _, err := client.ReportUp(t.Context(), up); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	engine.away.Store(true)
	defer engine.away.Store(false)
	const calls = 100
	for range calls {
		if _, err := client.ReportUp(t.Context(), up); status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
	}
	if n := log.with("cannot serve an agent"); n < 10 || n > calls/2 {
		t.Errorf("%d lines about %d calls", n, calls)
	}
}

// slow is an engine whose reads wait while it is held, and are counted.
type slow struct {
	bmdb.Engine
	held  atomic.Pointer[chan struct{}]
	reads atomic.Int32 // that wait
	most  atomic.Int32
}

func (e *slow) View(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	if held := e.held.Load(); held != nil {
		for n, most := e.reads.Add(1), e.most.Load(); n > most && !e.most.CompareAndSwap(most, n); {
			most = e.most.Load()
		}
		<-*held
		e.reads.Add(-1)
	}
	return e.Engine.View(ctx, fn)
}

// TestStrangersReadLittleAtATime: however many call, few of them ask the database at the same time.
// An agent that is known does not wait for them.
func TestStrangersReadLittleAtATime(t *testing.T) {
	t.Parallel()
	engine := &slow{Engine: sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard})}
	h := newFixtureOn(t, engine, func(c *agentapi.Config, _ *fleet.Policy) { c.Recheck = time.Hour })
	m := h.machines(1, nil)[0]
	agent := h.dial(m.key)
	h.known(agent, m)
	const each = 30
	all := make([]func(ctx context.Context) error, 0, 2*each)
	for range each {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		h.must(err)
		client := h.dial(key)
		up := &agentv1.ReportUpRequest{
			MachineId: string(fleet.NewMachineID()), InstallGeneration: 1, Attempt: 1, Secret: make([]byte, 32), BootId: "b",
		}
		all = append(all,
			func(ctx context.Context) error { _, err := client.Heartbeat(ctx, m.beat()); return err },
			func(ctx context.Context) error { _, err := client.ReportUp(ctx, up); return err })
	}
	ask := func(patience time.Duration, want codes.Code) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var calls sync.WaitGroup
		for _, call := range all {
			calls.Go(func() {
				if err := call(ctx); status.Code(err) != want {
					t.Errorf("a stranger: %v, want %s", err, want)
				}
			})
		}
		calls.Wait()
	}
	ask(time.Minute, codes.PermissionDenied)
	held := make(chan struct{})
	engine.held.Store(&held)
	// On a busy host it takes a while until all get there.
	for tries := 0; tries == 0 || engine.most.Load() < 16 && tries < 5; tries++ {
		ask(10*time.Second, codes.DeadlineExceeded)
	}
	h.heartbeat(agent, m.beat())
	engine.held.Store(nil)
	close(held)
	ask(time.Minute, codes.PermissionDenied)
	// Eight of each, and what the server itself reads.
	if most := engine.most.Load(); most < 16 || most > 16+3 {
		t.Errorf("%d strangers read at a time", most)
	}
}
