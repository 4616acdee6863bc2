package sim_test

import (
	"context"
	"errors"
	"os/exec"
	"sync"
	"testing"

	"github.com/ironherd/ironherd/internal/sim"
)

// A control plane knows one SSH port, whatever the world.
func TestWorldsShareAnSSHPort(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	config := r.config
	config.Dir, config.SSHPort = t.TempDir(), r.world.SSHPort()
	if _, err := sim.Open(t.Context(), config); !errors.Is(err, sim.ErrInUse) {
		t.Fatalf("a second world with the same addresses: %v", err)
	}
	other := newRig(t, func(c *sim.Config) { c.Machines, c.Seed, c.SSHPort = 1, r.config.Seed+1, r.world.SSHPort() })
	address := other.waitState(other.createAll()[0], "active").GetNetworkInfo().PublicIPv4
	if address != "127.21.0.2" {
		t.Errorf("the machine of another seed has address %s", address)
	}
	other.hostKey(address)
}

// TestPortsAreHeldByForks: a machine and a world that restart get their ports back, although
// processes that start at that moment hold them for a while.
func TestPortsAreHeldByForks(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *sim.Config) { c.Machines = 1 })
	id := r.createAll()[0]
	address := r.waitState(id, "active").GetNetworkInfo().PublicIPv4
	ctx, stop := context.WithCancel(t.Context())
	var forks sync.WaitGroup
	defer forks.Wait()
	defer stop()
	for range 2 {
		forks.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "true").Run() // ended by stop, too
			}
		})
	}
	for range 20 {
		r.restart()
		r.dialSoon(address)
	}
}
