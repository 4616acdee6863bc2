package recoverer_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// told is what an observer was told, in order.
type told struct {
	mu  sync.Mutex
	all []string
}

func (o *told) RecoveryStep(rung fleet.Rung, result recoverer.Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, string(rung)+" "+string(result))
}

// TestAMachineThatIsSwitchedOnIsNoFailure: what finishes a power cycle is told of the power cycle,
// and not as a failure of the rung that would have been next.
func TestAMachineThatIsSwitchedOnIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, _ := newHerd(t, 3, nil)
		observer := &told{}
		handler, err := recoverer.New(herd.DB, []recoverer.Source{{Name: herd.Name, Provider: herd.Fake}}, recoverer.DefaultConfig(),
			recoverer.Options{Observed: observer.RecoveryStep})
		check(t, err)
		id := herd.Machines()[0]
		stop := herd.Start(handler)
		time.Sleep(5 * time.Minute)
		pulling, pulled := 0, 0
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			switch at {
			case shepherdtest.Pulling:
				if pulling++; pulling == 4 { // the first try to switch it on
					return fleet.Errorf(fleet.KindTemporary, "not now")
				}
			case shepherdtest.Pulled:
				if pulled++; pulled == 3 { // after two reboots
					return fleet.Errorf(fleet.KindTimeout, "no answer")
				}
			}
			return nil
		}
		herd.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
		time.Sleep(3 * time.Hour)
		stop()
		// Not needed is what is decided anew, because the provider says that the machine is off, or on.
		const want = "reboot done, reboot done, power-cycle failed, quarantine not-needed, power-cycle failed, power-cycle switched-on, " +
			"quarantine not-needed, quarantine done"
		if got := strings.Join(observer.all, ", "); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}
