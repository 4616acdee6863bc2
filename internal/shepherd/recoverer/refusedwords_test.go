package recoverer_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestARefusedStepIsNoRestart: nobody is told that a machine was restarted, or may still be, by a
// step that its provider has refused for good.
func TestARefusedStepIsNoRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 12, nil)
		id := herd.Machines()[0]
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulling {
				return fleet.Errorf(fleet.KindConflict, "the device is locked")
			}
			return nil
		}
		herd.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
		said := map[string]bool{}
		for range 400 {
			time.Sleep(10 * time.Second)
			d, err := herd.DB.MachineDetails(t.Context(), id)
			check(t, err)
			for _, process := range fleet.MachineProcesses() {
				why := lifecycle.Decide(d.Record, d.Environment, d.Now).For(process).Reason
				if strings.Contains(why, "was restarted") || strings.Contains(why, "may still come") {
					said[string(process)+": "+why] = true
				}
			}
		}
		if len(said) > 0 {
			t.Errorf("every restart was refused, and people are told: %v", said)
		}
	})
}
