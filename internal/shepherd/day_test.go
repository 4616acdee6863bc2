package shepherd_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/janitor"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

const dayHeartbeat = 30 * time.Second

// fleetOfADay is how large the fleet of TestADay is: small under the race detector.
func fleetOfADay() (machines, installs, silent int) {
	if raceDetector {
		return 50, 10, 5
	}
	return 1000, 200, 5
}

// TestADay runs the control plane for a day. 1,000 machines are created, get their agents and send
// heartbeats (below the gRPC layer), and some of them get an operating system. Some hosts and calls
// fail, a few agents die, the provider fails for an hour, and the control plane is restarted once.
// At the end every machine must be in the state that was asked for.
func TestADay(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	synctest.Test(t, func(t *testing.T) {
		d := newDay(t)
		d.startControlPlane()
		go d.heartbeats(t.Context())

		d.sleep(4 * time.Hour)
		d.wantStates("noon", map[fleet.State]int{fleet.StateAvailable: d.machines})
		d.requestInstalls()
		d.sleep(2 * time.Hour)
		d.stopControlPlane() // for a moment
		d.startControlPlane()
		d.outage(time.Hour)
		d.killAgents()
		d.sleep(24*time.Hour - time.Since(d.start))

		d.wantStates("evening", map[fleet.State]int{
			fleet.StateAvailable: d.machines - d.installs - d.silent, fleet.StateInstalled: d.installs, fleet.StateSilent: d.silent,
		})
		d.wantNoOrphans()
		d.stopControlPlane()
		d.verify()
	})
	machines, _, _ := fleetOfADay()
	t.Logf("a day of %d machines took %s", machines, time.Since(begin).Round(10*time.Millisecond))
}

// day is the world of TestADay.
type day struct {
	t *testing.T

	machines, installs, silent int

	start time.Time
	db    *bmdb.DB
	fake  *shepherdtest.FakeProvider
	stop  []func()

	mu     sync.Mutex
	random *rand.Rand
	agents map[fleet.MachineID]*agent
	broken bool
}

// agent is what runs on a machine.
type agent struct {
	identity bmdb.AgentIdentity
	spoken   bool
	dead     bool
	// wanted: an install was asked for.
	wanted     bool
	generation fleet.InstallGeneration
	attempt    int
	order      *bmdb.InstallOrder
	// doneAt is when the install under way ends.
	doneAt time.Time
}

func newDay(t *testing.T) *day {
	t.Helper()
	machines, installs, silent := fleetOfADay()
	d := &day{
		t: t, machines: machines, installs: installs, silent: silent,
		start: time.Now(), fake: shepherdtest.NewFakeProvider(machines), random: rand.New(rand.NewPCG(7, 7)),
		agents: make(map[fleet.MachineID]*agent),
	}
	d.db, _ = open(t)
	policy := fleet.DefaultPolicy()
	policy.ProvisionInterval = 10 * time.Minute // a pass lists the whole provider
	_, err := d.db.SetPolicy(t.Context(), policy)
	d.check(err)
	d.check(d.db.RegisterProvider(t.Context(), source, "fake", 0))
	d.fake.Provisioning = 5 * time.Minute
	d.fake.Hook = d.disturb
	return d
}

func (d *day) check(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *day) sleep(duration time.Duration) {
	time.Sleep(duration)
	synctest.Wait()
}

func (d *day) chance(percent int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(100) < percent
}

// disturb is the provider's hook: it loses some replies, refuses some creations, and fails for an
// hour.
func (d *day) disturb(point shepherdtest.Point, _ fleet.CapacityID) error {
	d.mu.Lock()
	broken := d.broken
	d.mu.Unlock()
	switch {
	case broken:
		return fleet.Errorf(fleet.KindTemporary, "the provider is out of order")
	case point == shepherdtest.Sent && d.chance(5):
		return fleet.Errorf(fleet.KindTimeout, "no answer")
	case point == shepherdtest.Refusing && d.chance(3):
		return fleet.Errorf(fleet.KindNoCapacity, "not today")
	}
	return nil
}

func (d *day) outage(duration time.Duration) {
	d.mu.Lock()
	d.broken = true
	d.mu.Unlock()
	d.sleep(duration)
	d.mu.Lock()
	d.broken = false
	d.mu.Unlock()
}

// startControlPlane runs every loop and the janitor, as one process.
func (d *day) startControlPlane() {
	d.t.Helper()
	config := provisioner.DefaultConfig()
	config.MaxMachines, config.ChunkSize, config.CreateRate = 0, 100, fleet.Rate{Every: 500 * time.Millisecond, Burst: 1}
	creator, err := provisioner.New(d.db, []provisioner.Source{{Name: source, Provider: d.fake, Config: config}}, provisioner.Options{})
	d.check(err)
	// Polls are rare, because wake-ups and due times suffice.
	loops, options := shepherd.DefaultConfig(), shepherd.Options{SessionLease: 2 * time.Minute}
	loops.Poll = time.Minute
	for _, h := range []shepherd.Handler{creator, updaterOf(d.t, d.db, d.fake), handler(d.startAgent)} {
		d.stop = append(d.stop, run(d.t, d.db, h, loops, options))
	}
	janitorConfig := janitor.DefaultConfig()
	janitorConfig.Interval, janitorConfig.CheckInterval = time.Minute, time.Hour
	j, err := janitor.New(d.db, janitorConfig, janitor.Options{})
	d.check(err)
	ctx, cancel := context.WithCancel(d.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = j.Run(ctx) }()
	d.stop = append(d.stop, func() { cancel(); <-ended })
}

func (d *day) stopControlPlane() {
	for _, stop := range d.stop {
		stop()
	}
	d.stop = nil
}

// startAgent is the act of agent start, without a host: one in twenty fails.
func (d *day) startAgent(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	var generation fleet.TakeoverGeneration
	if err := work.Note(ctx, bmdb.MintTakeover(0, &generation)); err != nil {
		return shepherd.Fail{Err: err}
	}
	time.Sleep(3 * time.Second)
	if d.chance(5) || d.lost(work.Record.ID) {
		return shepherd.Fail{Err: errors.New("the host does not answer")}
	}
	key := make([]byte, 32)
	copy(key, work.Record.ID)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.agents[work.Record.ID] = &agent{identity: bmdb.AgentIdentity{
		Machine: work.Record.ID, TakeoverGeneration: generation, PublicKey: key,
	}}
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetAgentStarted(fleet.AgentStarted{
		TakeoverGeneration: generation, PublicKey: key, AgentVersion: "v1", BootID: "boot-1",
	})}}
}

// lost says whether the host of a machine that had an agent has died.
func (d *day) lost(machine fleet.MachineID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.agents[machine]
	return a != nil && a.dead
}

// heartbeats stands in for the agent API and all agents. It writes repeated heartbeats in one
// batch, and facts at once.
func (d *day) heartbeats(ctx context.Context) {
	ticker := time.NewTicker(dayHeartbeat)
	defer ticker.Stop()
	for ctx.Err() == nil {
		d.check(d.db.ListenerAlive(ctx, 2*dayHeartbeat, dayHeartbeat))
		d.mu.Lock()
		var seen []bmdb.Seen
		var special []*agent
		for _, a := range d.agents {
			switch {
			case a.dead:
			case !a.spoken, a.wanted:
				special = append(special, a)
				fallthrough
			default:
				seen = append(seen, bmdb.Seen{Machine: a.identity.Machine, TakeoverGeneration: a.identity.TakeoverGeneration})
			}
		}
		d.mu.Unlock()
		d.check(d.db.FlushSeen(ctx, seen))
		for _, a := range special {
			d.special(ctx, a)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// special is a heartbeat that is more than a repetition.
func (d *day) special(ctx context.Context, a *agent) {
	if !a.spoken {
		err := d.db.RecordSpoken(ctx, a.identity, "boot-1")
		if fleet.KindOf(err) == fleet.KindForbidden {
			return // its start is not committed yet, or it was superseded
		}
		d.check(err)
		d.check(d.db.RecordHardware(ctx, a.identity, []byte("hardware of "+a.identity.Machine), nil))
		a.spoken = true
		return
	}
	if a.order == nil {
		order, err := d.db.HandOutInstall(ctx, a.identity, a.generation, a.attempt)
		d.check(err)
		if order != nil {
			a.order, a.generation, a.attempt, a.doneAt = order, order.Request.Generation, order.Attempt, time.Now().Add(4*time.Minute)
		}
		return
	}
	if time.Now().Before(a.doneAt) {
		return
	}
	ok := !d.chance(10)
	report := fleet.InstallReport{Generation: a.generation, Attempt: a.attempt, OK: ok, Duration: 4 * time.Minute}
	if !ok {
		report.Error = "the image server closed the connection"
	}
	d.check(d.db.RecordInstallReport(ctx, a.identity, report))
	if ok {
		d.check(errorOf(d.db.RecordInstalled(ctx, a.identity.Machine, a.generation, a.attempt, a.order.Secret, "boot-2")))
		a.dead = true // the machine runs its own system now
	}
	a.order = nil
}

// requestInstalls asks for an operating system on some machines.
func (d *day) requestInstalls() {
	d.t.Helper()
	image := fleet.Image{URL: "http://images.example/os.zst", Digest: "sha256:" + strings.Repeat("ab", 32), Compression: fleet.CompressionZstd}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for id, a := range d.agents {
		if n++; n > d.installs {
			break
		}
		_, err := d.db.RequestInstall(d.t.Context(), "operator", id, fleet.InstallRequest{Actor: "operator", Image: image}, false)
		d.check(err)
		a.wanted = true
	}
}

// killAgents kills some agents, with their hosts.
func (d *day) killAgents() {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, a := range d.agents {
		if !a.dead && n < d.silent {
			a.dead = true
			n++
		}
	}
}

func (d *day) wantStates(when string, want map[fleet.State]int) {
	d.t.Helper()
	summary, err := d.db.Summary(d.t.Context())
	d.check(err)
	for _, state := range fleet.States() {
		if summary.States[state] != want[state] {
			d.t.Fatalf("%s: %v, want %v", when, summary.States, want)
		}
	}
}

func (d *day) wantNoOrphans() {
	d.t.Helper()
	view, err := d.db.ViewProvider(d.t.Context(), source)
	d.check(err)
	if len(view.Machines) != d.machines || len(d.fake.Devices()) != d.machines || len(view.Intents)+len(view.Discrepancies) > 0 {
		d.t.Errorf("%d machines, %d devices, intents %v, discrepancies %v",
			len(view.Machines), len(d.fake.Devices()), view.Intents, view.Discrepancies)
	}
}

func (d *day) verify() {
	d.t.Helper()
	findings, err := d.db.Check(d.t.Context())
	d.check(err)
	if len(findings) > 0 {
		d.t.Errorf("findings: %v", findings)
	}
	if open := openSessions(d.t, d.db); len(open) > 0 {
		d.t.Errorf("open sessions: %v", open)
	}
	phases, err := d.db.Phases(d.t.Context())
	d.check(err)
	for _, phase := range phases {
		d.t.Logf("%-12s %5d times, p50 %s, p99 %s", phase.Name, phase.Count, phase.P50, phase.P99)
	}
}

// errorOf leaves out when the system is to call again.
func errorOf(_ time.Duration, err error) error { return err }
