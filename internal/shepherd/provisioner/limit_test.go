package provisioner_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
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

// TestALoweredLimitHoldsForUnansweredCalls: no more requests are made for what is beyond it, also
// where the last one had no answer. What was made all the same is taken in, and the rest ends once
// it is settled. The oldest have the places that there are.
func TestALoweredLimitHoldsForUnansweredCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 80)
		limit := func(n int) { b.config.MaxMachines = n; b.restart() }
		b.config.ChunkSize = 80
		limit(80)
		b.fake.Hook = func(point shepherdtest.Point, capacity fleet.CapacityID) error {
			if point == shepherdtest.Sending && capacity >= "capacity-060" {
				return errReplyLost
			}
			return nil
		}
		b.pass()
		b.fake.Hook = nil
		has := func(machines, intents int) {
			t.Helper()
			v := b.view()
			if len(v.Machines) != machines || len(b.fake.Devices()) != machines || len(v.Intents) != intents {
				t.Fatalf("%d machines, %d devices and %d intents, want %d, as many, and %d: %s",
					len(v.Machines), len(b.fake.Devices()), len(v.Intents), machines, intents, b.result())
			}
		}
		has(60, 20)
		limit(60)
		b.passes(3)
		has(60, 20)
		if got := b.result(); !strings.Contains(got, "60 used, 20 free, 20 wait because max_machines is reached") {
			t.Errorf("result %q", got)
		}
		limit(65)
		b.passes(3)
		has(65, 15)
		for n := range 65 {
			if _, there := b.fake.On(fleet.CapacityID(fmt.Sprintf("capacity-%03d", n))); !there {
				t.Errorf("nothing was made on capacity %d", n)
			}
		}
		intents := b.view().Intents
		if _, err := b.fake.Land(intents[0].Capacity, intents[0].Token); err != nil { // late
			t.Fatal(err)
		}
		b.pass()
		has(66, 14)
		time.Sleep(b.config.SettlingTime)
		b.reopen()
		b.passes(2)
		b.agree(66)
		if v := b.view(); len(v.Penalties) != 0 {
			t.Errorf("penalties %v", v.Penalties)
		}
		limit(80)
		b.passes(2)
		b.agree(80)
	})
}

// TestNoCapacityKeepsAPlaceForEver: capacity on which nothing can be made gives way to other
// capacity, where max_machines has no room for both.
func TestNoCapacityKeepsAPlaceForEver(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		point shepherdtest.Point
		// begun is how often a request is made, before none can be made any more.
		begun int32
		// tries is the fewest that each piece of capacity gets.
		tries int32
	}{
		"never answered":           {shepherdtest.Sending, 1000, 10},
		"never begun":              {shepherdtest.Creating, 0, 2},
		"answered, then not begun": {shepherdtest.Sending, 3, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 6)
				b.config.MaxMachines, b.config.ChunkSize = 3, 3
				b.restart()
				var tries [3]atomic.Int32
				b.fake.Hook = func(point shepherdtest.Point, capacity fleet.CapacityID) error {
					if capacity == "" || capacity >= "capacity-003" {
						return nil
					}
					n := &tries[capacity[len(capacity)-1]-'0']
					if point != test.point && (point != shepherdtest.Creating || n.Load() < test.begun) {
						return nil
					}
					n.Add(1)
					return provider.OfCapacity(fleet.Errorf(fleet.KindTemporary, "the site does not answer"))
				}
				b.pass()
				began := time.Now()
				for len(b.fake.Devices()) == 0 && time.Since(began) < 2*time.Hour {
					b.pass()
				}
				if waited := time.Since(began); waited < b.config.SettlingTime {
					t.Errorf("given up after %s", waited)
				}
				b.passes(3)
				b.agree(3)
				for i := range tries {
					if n := tries[i].Load(); n < test.tries {
						t.Errorf("capacity %d gave way after %d tries", i, n)
					}
				}
				if v := b.view(); len(v.Penalties) != 3 || len(v.Intents) != 0 {
					t.Errorf("penalties %v, intents %v: %s", v.Penalties, v.Intents, b.result())
				}
			})
		})
	}
}

// TestNothingElseToTry: where no other capacity waits for its place, each is tried on.
func TestNothingElseToTry(t *testing.T) {
	t.Parallel()
	for _, point := range []shepherdtest.Point{shepherdtest.Sending, shepherdtest.Creating} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 3)
			b.config.MaxMachines, b.config.ChunkSize = 3, 3
			b.restart()
			b.fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
				if at != point {
					return nil
				}
				return provider.OfCapacity(fleet.Errorf(fleet.KindTemporary, "the site does not answer"))
			}
			b.passes(40)
			if v := b.view(); len(v.Penalties) != 0 || len(v.Intents) != 3 {
				t.Errorf("penalties %v, intents %v: %s", v.Penalties, v.Intents, b.result())
			}
			b.fake.Hook = nil
			b.passes(2)
			b.agree(3)
		})
	}
}
