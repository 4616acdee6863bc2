package provisioner_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestALoweredLimitHoldsForOpenIntents: creations that the provider has refused so far are not made
// beyond it. Those that may have been made are looked after.
func TestALoweredLimitHoldsForOpenIntents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 30)
		b.config.MaxMachines, b.config.ChunkSize = 30, 30
		b.restart()
		b.fake.Hook = func(point shepherdtest.Point, capacity fleet.CapacityID) error {
			switch {
			case capacity >= "capacity-028" && point == shepherdtest.Sending:
				return errReplyLost
			case capacity < "capacity-028" && point == shepherdtest.Refusing:
				return fleet.Errorf(fleet.KindForbidden, "no more devices are allowed")
			}
			return nil
		}
		b.pass()
		if v := b.view(); len(v.Intents) != 30 {
			t.Fatalf("%d intents are open", len(v.Intents))
		}
		b.fake.Hook = nil
		b.config.MaxMachines = 10
		b.restart()
		b.passes(3)
		b.agree(10)
		for _, n := range []int{0, 1, 2, 3, 4, 5, 6, 7, 28, 29} {
			if _, there := b.fake.On(fleet.CapacityID(fmt.Sprintf("capacity-%03d", n))); !there {
				t.Errorf("nothing was made on capacity %d", n)
			}
		}
		if got := b.result(); !strings.Contains(got, "20 wait because max_machines is reached") {
			t.Errorf("result %q", got)
		}
	})
}
