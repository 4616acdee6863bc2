package provisioner_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// odd reports whether a reservation is of the site whose creations fail.
func odd(capacity fleet.CapacityID) bool { return (capacity[len(capacity)-1]-'0')%2 == 1 }

// TestOneSiteDoesNotStopTheOthers: creations of every second reservation are never answered, or
// never begun. The others are created all the same, and each of those is tried again and again.
func TestOneSiteDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		chunk  int
		point  shepherdtest.Point
		passes int
	}{
		"never answered":                {8, shepherdtest.Sending, 12},
		"never answered, an odd chunk":  {5, shepherdtest.Sending, 20},
		"never answered, one at a time": {1, shepherdtest.Sending, 90},
		"never begun":                   {8, shepherdtest.Creating, 12},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 40)
				b.config.MaxMachines, b.config.ChunkSize = 0, test.chunk
				b.restart()
				var tries [40]atomic.Int32
				b.fake.Hook = func(point shepherdtest.Point, capacity fleet.CapacityID) error {
					if point != test.point || !odd(capacity) {
						return nil
					}
					tries[10*(capacity[len(capacity)-2]-'0')+capacity[len(capacity)-1]-'0'].Add(1)
					return provider.OfCapacity(fleet.Errorf(fleet.KindTemporary, "the site does not answer"))
				}
				b.passes(test.passes)
				if made := len(b.fake.Devices()); made != 20 {
					t.Errorf("%d devices, want 20: %s", made, b.result())
				}
				var before [len(tries)]int32
				for i := range tries {
					before[i] = tries[i].Load()
				}
				b.passes(20/test.chunk + 1) // nothing else is left to do: each has its turn
				for i := 1; i < len(tries); i += 2 {
					if before[i] == 0 || tries[i].Load() == before[i] {
						t.Errorf("reservation %d was tried %d times, and is not tried again", i, before[i])
					}
				}
				b.fake.Hook = nil
				b.passes(40/test.chunk + 2)
				b.agree(40)
			})
		})
	}
}

// TestOpenIntentsGetTheWholeChunk where max_machines leaves nothing else to do.
func TestOpenIntentsGetTheWholeChunk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 30)
		b.config.MaxMachines, b.config.ChunkSize = 8, 8
		b.restart()
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point == shepherdtest.Sending {
				return errReplyLost
			}
			return nil
		}
		b.pass()
		b.fake.Hook = nil
		b.pass()
		b.agree(8)
	})
}

// TestCapacityThatIsNotFreeYet: the list has as free what is not free for some minutes more. It is
// tried again when the settling time is over, and not a whole penalty later.
func TestCapacityThatIsNotFreeYet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 5)
		start := time.Now()
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point == shepherdtest.Creating && time.Since(start) < 5*time.Minute {
				return provider.OfCapacity(fleet.Errorf(fleet.KindConflict, "not provisionable now"))
			}
			return nil
		}
		b.pass()
		for capacity, penalty := range b.view().Penalties {
			if until := penalty.Until.Sub(start); until > b.config.SettlingTime+time.Minute {
				t.Errorf("%s sits out %s", capacity, until)
			}
		}
		if got := len(b.view().Penalties); got != 5 {
			t.Errorf("%d sit out a penalty: %s", got, b.result())
		}
		for len(b.fake.Devices()) < 5 && time.Since(start) < b.config.Penalty {
			b.pass()
		}
		if took := time.Since(start); took > b.config.SettlingTime+5*time.Minute {
			t.Errorf("all are created after %s: %s", took, b.result())
		}
		b.passes(1)
		b.agree(5)
	})
}

// TestRefusedAfterALostReply: the reply of the first call is lost, and each later one is refused
// for good. The intent is closed after the settling time, and not before.
func TestRefusedAfterALostReply(t *testing.T) {
	t.Parallel()
	for _, kind := range []fleet.Kind{fleet.KindInvalid, fleet.KindNoCapacity, fleet.KindConflict, fleet.KindForbidden} {
		final := kind != fleet.KindForbidden
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				refuse := func(point shepherdtest.Point, _ fleet.CapacityID) error {
					if point == shepherdtest.Refusing {
						return fleet.Errorf(kind, "not this one")
					}
					return nil
				}
				b.fake.Hook = once(shepherdtest.Sending, 1, func(fleet.CapacityID) error { return errReplyLost })
				b.pass()
				intent := b.view().Intents[0]
				b.fake.Hook = refuse
				b.passes(3)
				// Once more a reply is lost: only the last call that has no answer counts.
				b.fake.Hook = once(shepherdtest.Sending, 1, func(fleet.CapacityID) error { return errReplyLost })
				b.pass()
				if open := b.view().Intents; len(open) != 1 || open[0].Machine != intent.Machine || open[0].Calls-open[0].Rejected != 2 {
					t.Fatalf("intents %+v, want one with two calls that were not answered", open)
				}
				called := time.Now()
				b.fake.Hook = refuse
				for len(b.view().Intents) > 0 && time.Since(called) < 2*b.config.SettlingTime {
					b.pass()
					if len(b.view().Intents) == 0 && time.Since(called) < b.config.SettlingTime {
						t.Fatalf("closed %s after the lost reply", time.Since(called))
					}
				}
				view := b.view()
				if (len(view.Intents) == 0) != final || (len(view.Penalties) == 1) != final || len(view.Machines) != 0 {
					t.Fatalf("intents %+v, penalties %+v, machines %+v: %s", view.Intents, view.Penalties, view.Machines, b.result())
				}
				if !final {
					return
				}
				if penalty := view.Penalties["capacity-000"]; !strings.Contains(penalty.Cause, "not this one") {
					t.Errorf("penalty %+v", penalty)
				}
				// The call that was lost has its effect even later.
				b.fake.Hook = nil
				if _, err := b.fake.Land("capacity-000", intent.Token); err != nil {
					t.Fatal(err)
				}
				b.passes(2)
				b.agree(1)
				if got := b.view().Machines[0].ID; got != intent.Machine {
					t.Errorf("adopted as %s, not as %s", got, intent.Machine)
				}
			})
		})
	}
}

// TestRefusedButThere: the machine of the lost reply is in no list of a pass, but it can be found,
// or it cannot be told whether there is one: the intent stays open.
func TestRefusedButThere(t *testing.T) {
	t.Parallel()
	for name, unclear := range map[string]bool{"it is found": false, "it cannot be told": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				b.fake.Hook = once(shepherdtest.Sending, 1, func(fleet.CapacityID) error { return errReplyLost })
				b.pass()
				intent, asked := b.view().Intents[0], 0
				b.fake.Hook = func(point shepherdtest.Point, capacity fleet.CapacityID) error {
					switch {
					case point == shepherdtest.Refusing:
						return fleet.Errorf(fleet.KindConflict, "not this one")
					case point != shepherdtest.Finding:
						return nil
					}
					asked++
					if unclear {
						return fleet.Errorf(fleet.KindTemporary, "no list")
					}
					_, err := b.fake.Land(capacity, intent.Token)
					return err
				}
				for start := time.Now(); asked == 0 && time.Since(start) < 2*b.config.SettlingTime; {
					b.pass()
				}
				if view := b.view(); len(view.Intents) != 1 || len(view.Penalties) != 0 || asked != 1 {
					t.Errorf("intents %+v, penalties %+v; %d were looked for", view.Intents, view.Penalties, asked)
				}
				b.fake.Hook = nil
				b.passes(2)
				b.agree(1)
			})
		})
	}
}
