package sim_test

import (
	"errors"
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
