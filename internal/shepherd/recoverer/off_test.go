package recoverer_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// agentFile is an executable of the agent, which is to be made outside of a bubble.
func agentFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	check(t, os.WriteFile(path, []byte("#!agent\n"), 0o600))
	return path
}

// initializerOf starts agents on hosts that do not answer. It tells of each that it dials.
func initializerOf(t *testing.T, herd *shepherdtest.Herd, agent string, dialed func(remote.Target)) shepherd.Handler {
	t.Helper()
	config := initializer.DefaultConfig()
	config.AgentExecutable, config.Endpoint = agent, "192.0.2.9:7443"
	key, _, err := remote.NewKey("test")
	check(t, err)
	starts, err := initializer.New(herd.DB, []initializer.Source{{Name: herd.Name, Provider: herd.Fake}}, config, key, initializer.Options{
		Authority: []byte("a certificate"),
		Dial: func(_ context.Context, target remote.Target) (initializer.Host, error) {
			dialed(target)
			return nil, fleet.Errorf(fleet.KindTemporary, "no answer")
		},
	})
	check(t, err)
	return starts
}

// running has the herd and these handlers run until stop is called. Nobody starts agents besides.
func running(t *testing.T, herd *shepherdtest.Herd, handlers ...shepherd.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { herd.Run(ctx) })
	for _, handler := range handlers {
		all.Go(func() { _ = herd.Loop(ctx, handler) })
	}
	return func() { cancel(); all.Wait() }
}

// TestOffIsAskedForSeldom: a rack without power, while recovery is paused. Its agents are to be
// started again, and its provider says that each machine is off. Asking for them must not use up
// what the provider allows. Once they are on, agents are started at once.
func TestOffIsAskedForSeldom(t *testing.T) {
	t.Parallel()
	const machines = 20
	agent := agentFile(t)
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, machines, nil)
		stop := herd.Start(handler)
		time.Sleep(5 * time.Minute)
		stop()
		var dialed sync.Map // the addresses
		starts := initializerOf(t, herd, agent, func(target remote.Target) { dialed.Store(target.Address, true) })
		check(t, herd.DB.HoldRecovery(t.Context(), "alice", nil, "the power of the site is worked at"))
		say := func(status fleet.ProviderStatus) {
			for _, id := range herd.Machines() {
				herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool { e.Status = status; return true })
			}
		}
		for _, id := range herd.Machines() {
			herd.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
		}
		say(fleet.ProviderStatusOff)
		var asks atomic.Int64
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Asking {
				asks.Add(1)
			}
			return nil
		}
		defer running(t, herd, starts, updaterOf(t, herd))()
		time.Sleep(2 * time.Hour)
		was := asks.Load()
		time.Sleep(time.Hour)
		if n := asks.Load() - was; n == 0 || n > 3*machines {
			t.Errorf("%d machines that are off were asked for %d times in an hour", machines, n)
		}
		say(fleet.ProviderStatusActive)
		dialed.Clear()
		time.Sleep(31 * time.Minute) // the provider's settled machines are read every 30 minutes
		n := 0
		dialed.Range(func(any, any) bool { n++; return true })
		if n < machines {
			t.Errorf("%d machines were switched on, and %d agents were tried to be started", machines, n)
		}
	})
}

// TestOffAfterACycleThatHelped: a machine that was well after a power cycle of ours, and loses its
// power later, is not one that this cycle has left off. It gets steps that are committed.
func TestOffAfterACycleThatHelped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 3, func(p *fleet.Policy) { p.SuspectShare, p.RecoveryReboots, p.RecoveryMemory = 0, 0, time.Hour })
		id := herd.Machines()[0]
		herd.Fake.OnRestart = func(fleet.ProviderID) { herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = false }) }
		defer herd.Start(handler, updaterOf(t, herd))()
		time.Sleep(5 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		time.Sleep(2 * time.Hour)
		if got := levers(herd, id); got != "power-cycle" {
			t.Fatalf("pulled %q", got)
		}
		herd.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
		herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool { e.Status = fleet.ProviderStatusOff; return true })
		time.Sleep(90 * time.Minute)
		if got := levers(herd, id); !strings.HasPrefix(got, "power-cycle power-cycle") {
			t.Errorf("pulled %q", got)
		}
	})
}

// TestAReinstallAskedForHalfWayThroughACycle: a person asks for a reinstall when a power cycle of a
// machine whose system did not come up has switched it off, and voids the rest of the cycle. The
// machine is switched on all the same, and an agent is to be started on it.
func TestAReinstallAskedForHalfWayThroughACycle(t *testing.T) {
	t.Parallel()
	file := agentFile(t)
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 3, func(p *fleet.Policy) { p.SuspectShare, p.RecoveryReboots = 0, 0 })
		id := herd.Machines()[0]
		stop := herd.Start()
		time.Sleep(5 * time.Minute)
		stop()
		image := fleet.Image{URL: "http://192.0.2.1/image", Digest: "sha256:" + strings.Repeat("0", 64), Compression: fleet.CompressionNone}
		want := func(reinstall bool) {
			_, err := herd.DB.RequestInstall(context.WithoutCancel(t.Context()), "ada", id, fleet.InstallRequest{Image: image}, reinstall)
			check(t, err)
		}
		want(false)
		agent, err := herd.DB.Agent(t.Context(), id)
		check(t, err)
		_, err = herd.DB.HandOutInstall(t.Context(), agent, 0, 0)
		check(t, err)
		herd.Change(id, func(h *shepherdtest.Host) { h.Agent = false })
		check(t, herd.DB.RecordInstallReport(t.Context(), agent, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true, Disk: "/dev/sda"}))
		var off, dialed time.Time
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulled && off.IsZero() {
				off = time.Now()
				time.Sleep(time.Second) // a request of the instant of the step ends it in no case
				want(true)
				return fleet.ErrLeaseLost
			}
			return nil
		}
		starts := initializerOf(t, herd, file, func(remote.Target) {
			if dialed.IsZero() {
				dialed = time.Now()
			}
		})
		defer running(t, herd, handler, updaterOf(t, herd), starts)()
		time.Sleep(90 * time.Minute)
		if got := levers(herd, id); got != "power-cycle power-on" {
			t.Fatalf("pulled %q", got)
		}
		// its provider's settled machines are read at that interval
		if late := herd.Fake.Pulls()[1].At.Sub(off); late > fleet.DefaultPolicy().UpdateSettledInterval+time.Minute {
			t.Errorf("the machine was switched on after %s", late)
		}
		if dialed.IsZero() {
			t.Error("nobody has tried to start an agent since")
		}
	})
}
