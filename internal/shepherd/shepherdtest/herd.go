package shepherdtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Herd is machines in memory with a database: hosts that run, hang and die, and the agents on them,
// which speak every half minute while a listener is up. Use it in a synctest bubble.
type Herd struct {
	tb   testing.TB
	DB   *bmdb.DB
	Fake *FakeProvider
	// Name of the provider.
	Name fleet.ProviderName
	// Interval from one heartbeat to the next, in half minutes; 0: one. Parallelism of the loops; 0:
	// their default. Set them before Start.
	Interval    time.Duration
	Parallelism int

	mu    sync.Mutex
	hosts map[fleet.MachineID]*Host
	byID  map[fleet.ProviderID]*Host
	deaf  bool
}

// Host is one machine.
type Host struct {
	Machine fleet.MachineID
	ID      fleet.ProviderID
	// Dead: no restart brings it up. Hangs: only a restart does. Corrupt: only a reinstall does.
	Dead, Hangs, Corrupt bool
	// Refuses: it answers, and lets nobody in.
	Refuses bool
	// Agent runs.
	Agent bool
	boots int
	// agent is who the agent is.
	agent bmdb.AgentIdentity
	spoke bool
}

// up reports whether an agent can run there.
func (h *Host) up() bool { return !h.Dead && !h.Hangs && !h.Corrupt }

func (h *Host) bootID() string { return fmt.Sprintf("boot-%d", h.boots) }

const herdInterval = 30 * time.Second

// interval from one heartbeat to the next.
func (h *Herd) interval() time.Duration {
	if h.Interval > 0 {
		return h.Interval
	}
	return herdInterval
}

// NewHerd returns n machines whose agents have been started and speak.
func NewHerd(tb testing.TB, db *bmdb.DB, n int) *Herd {
	tb.Helper()
	h := &Herd{
		tb: tb, DB: db, Fake: NewFakeProvider(n), Name: "metal",
		hosts: make(map[fleet.MachineID]*Host), byID: make(map[fleet.ProviderID]*Host),
	}
	h.Fake.OnRestart = h.restarted
	for _, id := range Seed(tb, db, h.Name, h.Fake, n) {
		record, err := db.Machine(tb.Context(), id)
		h.check(err)
		host := &Host{Machine: id, ID: record.ProviderID, boots: 1}
		h.hosts[id], h.byID[host.ID] = host, host
	}
	h.check(db.SetLevers(tb.Context(), h.Name, []fleet.Lever{fleet.LeverReboot, fleet.LeverPower, fleet.LeverReinstall, fleet.LeverRelease}))
	return h
}

func (h *Herd) check(err error) {
	h.tb.Helper()
	if err != nil {
		h.tb.Fatal(err)
	}
}

// Host returns the host of a machine, to be changed with Change.
func (h *Herd) Host(id fleet.MachineID) Host {
	h.mu.Lock()
	defer h.mu.Unlock()
	return *h.hosts[id]
}

// Change changes a host.
func (h *Herd) Change(id fleet.MachineID, change func(*Host)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.hosts[id])
}

// SetDeaf says whether our own listener is down: no agent is heard.
func (h *Herd) SetDeaf(deaf bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaf = deaf
}

// restarted is what a restart does to a host.
func (h *Herd) restarted(id fleet.ProviderID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	host, ok := h.byID[id]
	if !ok {
		return
	}
	host.boots++
	host.Agent, host.Hangs = false, false
	if entry, there := h.Fake.device(id); there && entry.Status == fleet.ProviderStatusCreating {
		host.Corrupt = false // it was reinstalled
	}
}

// Run keeps the agents speaking, the listener alive and sessions collected until ctx ends.
func (h *Herd) Run(ctx context.Context) {
	for n := 0; ; n++ {
		h.mu.Lock()
		deaf := h.deaf
		h.mu.Unlock()
		if !deaf {
			err := h.DB.ListenerAlive(ctx, herdInterval, h.interval())
			if err == nil && n%int(h.interval()/herdInterval) == 0 {
				h.speak(ctx)
			}
		}
		_, _ = h.DB.CollectSessions(ctx)
		_, _ = h.DB.WatchSilence(ctx)
		_, _ = h.DB.RecomputeAgenda(ctx, 500)
		select {
		case <-time.After(herdInterval):
		case <-ctx.Done():
			return
		}
	}
}

// speak is one heartbeat of every agent.
func (h *Herd) speak(ctx context.Context) {
	var seen []bmdb.Seen
	h.mu.Lock()
	var news []*Host
	for _, host := range h.hosts {
		if !host.Agent || !host.up() {
			continue
		}
		if !host.spoke {
			news = append(news, host)
			continue
		}
		seen = append(seen, bmdb.Seen{Machine: host.Machine, TakeoverGeneration: host.agent.TakeoverGeneration})
	}
	h.mu.Unlock()
	for _, host := range news {
		h.mu.Lock()
		agent, boot := host.agent, host.bootID()
		h.mu.Unlock()
		if h.DB.RecordSpoken(ctx, agent, boot) == nil {
			_ = h.DB.RecordHardware(ctx, agent, []byte("report"), nil)
			h.mu.Lock()
			host.spoke = true
			h.mu.Unlock()
		}
	}
	_ = h.DB.FlushSeen(ctx, seen)
}

// Starter is a shepherd.Handler of agent starts, without SSH.
func (h *Herd) Starter() shepherd.Handler { return starter{h} }

type starter struct{ herd *Herd }

// Scope implements shepherd.Handler.
func (s starter) Scope() shepherd.Scope {
	return shepherd.Scope{
		Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{s.herd.Name},
		Backoff: fleet.Backoff{Initial: time.Minute, Exponent: 1.5, Maximum: time.Hour},
	}
}

// Act implements shepherd.Handler.
func (s starter) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	h := s.herd
	h.mu.Lock()
	host := h.hosts[work.Record.ID]
	up, boot := host != nil && host.up(), ""
	refuses := up && host.Refuses
	if up {
		boot = host.bootID()
	}
	h.mu.Unlock()
	entry, there := h.Fake.deviceNow(work.Record.ProviderID)
	if !up || !there || entry.Status != fleet.ProviderStatusActive {
		return shepherd.Fail{Err: fleet.Errorf(fleet.KindTimeout, "the host does not answer"), Answer: fleet.AnswerNone}
	}
	if refuses {
		return shepherd.Fail{Err: fleet.Errorf(fleet.KindUnauthenticated, "the host refuses the key"), Answer: fleet.AnswerRefused}
	}
	var generation fleet.TakeoverGeneration
	if err := work.Note(ctx, bmdb.MintTakeover(0, &generation)); err != nil {
		return shepherd.Fail{Err: err}
	}
	key := []byte("key of " + work.Record.ID)
	h.mu.Lock()
	host.Agent, host.spoke = true, false
	host.agent = bmdb.AgentIdentity{Machine: host.Machine, TakeoverGeneration: generation, PublicKey: key}
	h.mu.Unlock()
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetAgentStarted(fleet.AgentStarted{
		TakeoverGeneration: generation, PublicKey: key, AgentVersion: "test", BootID: boot,
	})}}
}

// Loop runs a handler until ctx ends.
func (h *Herd) Loop(ctx context.Context, handler shepherd.Handler) error {
	config := shepherd.DefaultConfig()
	config.Poll = 10 * time.Second // hours pass in a test
	if h.Parallelism > 0 {
		config.Parallelism = h.Parallelism
	}
	loop, err := shepherd.New(h.DB, handler, config, shepherd.Options{Host: "test", SessionLease: time.Minute})
	if err != nil {
		return err
	}
	return loop.Run(ctx)
}

// Start runs the herd and the handlers, besides the starter of agents. It returns what ends them
// and waits for them, which may be called again.
func (h *Herd) Start(handlers ...shepherd.Handler) (stop func()) {
	ctx, cancel := context.WithCancel(h.tb.Context())
	var running sync.WaitGroup
	running.Go(func() { h.Run(ctx) })
	for _, handler := range append(handlers, h.Starter()) {
		running.Go(func() {
			if err := h.Loop(ctx, handler); err != nil {
				h.tb.Error(err)
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

// Install has a system asked for on a machine and handed to its agent, which speaks and is at it
// until done is called. Then the system comes up at once.
func (h *Herd) Install(id fleet.MachineID) (done func()) {
	h.tb.Helper()
	ctx := context.WithoutCancel(h.tb.Context())
	request := fleet.InstallRequest{Image: fleet.Image{
		URL: "http://192.0.2.1/image", Digest: "sha256:" + strings.Repeat("0", 64), Compression: fleet.CompressionNone,
	}}
	_, err := h.DB.RequestInstall(ctx, "test", id, request, false)
	h.check(err)
	h.mu.Lock()
	agent := h.hosts[id].agent
	h.mu.Unlock()
	order, err := h.DB.HandOutInstall(ctx, agent, 0, 0)
	h.check(err)
	if order == nil {
		h.tb.Fatalf("no install of %s is due", id)
	}
	generation := order.Request.Generation
	return func() {
		h.tb.Helper()
		h.Change(id, func(host *Host) { host.Agent = false })
		h.check(h.DB.RecordInstallReport(ctx, agent, fleet.InstallReport{Generation: generation, Attempt: order.Attempt, OK: true}))
		_, err := h.DB.RecordInstalled(ctx, id, generation, order.Attempt, order.Secret, "installed")
		h.check(err)
	}
}

// Record reads a machine.
func (h *Herd) Record(id fleet.MachineID) fleet.Record {
	h.tb.Helper()
	r, err := h.DB.Machine(context.WithoutCancel(h.tb.Context()), id)
	h.check(err)
	return r
}

// State returns the state of a machine, as it is listed; empty when it is not there any more.
func (h *Herd) State(id fleet.MachineID) (fleet.State, string) {
	h.tb.Helper()
	rows, err := h.DB.ListMachines(context.WithoutCancel(h.tb.Context()), bmdb.MachineFilter{Limit: 100000})
	h.check(err)
	for _, row := range rows {
		if row.ID == id {
			return row.State, row.Reason
		}
	}
	return "", ""
}

// Machines returns the machines in the order of their IDs at the provider.
func (h *Herd) Machines() []fleet.MachineID {
	var all []fleet.MachineID
	for _, device := range h.Fake.Devices() {
		h.mu.Lock()
		if host, ok := h.byID[device.ID]; ok {
			all = append(all, host.Machine)
		}
		h.mu.Unlock()
	}
	return all
}
