package lifecycle_test

import (
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestAStartWithoutAListenerIsNoStep: who was silent when a listener went away is listed as silent.
// An agent that is started meanwhile begins no repair: that would bring the restart of the machine
// nearer.
func TestAStartWithoutAListenerIsNoStep(t *testing.T) {
	t.Parallel()
	r, env := record(with(known, allLevers)...), environment()
	if !lifecycle.StartIsStep(r, env, at(41), "boot2") {
		t.Error("while a listener is up, it is none")
	}
	env.ListenedSince, env.ListenedUntil = at(-60), at(40)
	env.ListenerUpSince = fleet.Environment{}.ListenerUpSince
	if state := lifecycle.Decide(r, env, at(41)).State; state != fleet.StateSilent {
		t.Errorf("the machine is %s", state)
	}
	if lifecycle.StartIsStep(r, env, at(41), "boot2") {
		t.Error("it is a step")
	}
}
