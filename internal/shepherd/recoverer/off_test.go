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
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestOffIsAskedForSeldom: a rack without power, while recovery is paused. Its agents are to be
// started again, and its provider says that each machine is off. Asking for them must not use up
// what the provider allows. Once they are on, agents are started at once.
func TestOffIsAskedForSeldom(t *testing.T) {
	t.Parallel()
	const machines = 20
	agent := filepath.Join(t.TempDir(), "agent")
	check(t, os.WriteFile(agent, []byte("#!agent\n"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, machines, nil)
		stop := herd.Start(handler)
		time.Sleep(5 * time.Minute)
		stop()
		config := initializer.DefaultConfig()
		config.AgentExecutable, config.Endpoint = agent, "192.0.2.9:7443"
		key, _, err := remote.NewKey("test")
		check(t, err)
		var dialed sync.Map // the addresses
		starts, err := initializer.New(herd.DB, []initializer.Source{{Name: herd.Name, Provider: herd.Fake}}, config, key, initializer.Options{
			Authority: []byte("a certificate"),
			Dial: func(_ context.Context, target remote.Target) (initializer.Host, error) {
				dialed.Store(target.Address, true)
				return nil, fleet.Errorf(fleet.KindTemporary, "no answer")
			},
		})
		check(t, err)
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
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		for _, run := range []func(){
			func() { herd.Run(ctx) }, func() { _ = herd.Loop(ctx, starts) }, func() { _ = herd.Loop(ctx, updaterOf(t, herd)) },
		} {
			go func() { run(); done <- struct{}{} }()
		}
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
		cancel()
		for range 3 {
			<-done
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
