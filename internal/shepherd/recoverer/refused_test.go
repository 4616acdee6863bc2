package recoverer_test

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

// TestASpentBudgetIsNoFailure: a machine that waits for the budget of the fleet is none at which
// recovery fails.
func TestASpentBudgetIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 20, func(p *fleet.Policy) { p.SuspectShare, p.RecoveryPerHour = 0, 1 })
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		for _, id := range herd.Machines()[:16] {
			herd.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
		}
		// Whether one is tried between the last restart and the stop of recovery is left to chance, each
		// hour anew.
		waits := 0
		for minute := 0; waits < 10 && minute < 10*60; minute++ {
			time.Sleep(time.Minute)
			for _, id := range herd.Machines()[:16] {
				b, ok := herd.Record(id).Backoffs[fleet.ProcessRecovery]
				if ok && strings.Contains(b.Cause, "recovery_per_hour") {
					if waits++; !b.Since.IsZero() {
						t.Fatalf("recovery has failed there since %s: %s", b.Since, b.Cause)
					}
				}
			}
		}
		if waits == 0 {
			t.Error("none waited for the budget")
		}
	})
}

// TestRefusedSteps: a step that the provider refuses for good restarts nothing: it costs the budget
// of the fleet nothing, and nobody is told that it was done.
func TestRefusedSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 12, func(p *fleet.Policy) { p.RecoveryPerHour = 5 })
		refused, other := herd.Machines()[0], herd.Machines()[1]
		capacity := herd.Record(refused).Provided.Capacity
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		var pulls atomic.Int32
		herd.Fake.Hook = func(at shepherdtest.Point, of fleet.CapacityID) error {
			if at == shepherdtest.Pulling && of == capacity && pulls.Add(1) < 3 {
				return fleet.Errorf(fleet.KindConflict, "the device is locked")
			}
			return nil
		}
		herd.Change(refused, func(h *shepherdtest.Host) { h.Dead = true })
		time.Sleep(40 * time.Minute) // until two steps were refused
		herd.Change(other, func(h *shepherdtest.Host) { h.Dead = true })
		time.Sleep(80 * time.Minute)
		if got := levers(herd, refused); got != "power-cycle" {
			t.Errorf("pulled %q", got)
		}
		if got := levers(herd, other); got != "reboot reboot power-cycle" {
			t.Errorf("pulled %q at the other machine", got)
		}
		rows, err := herd.DB.ProviderHistory(t.Context(), herd.Name, 100, false)
		check(t, err)
		for _, row := range rows {
			if row.Event == fleet.EventPaused {
				t.Errorf("recovery was stopped: %s", row.Detail)
			}
		}
		want := "recovery found no other step after 1 power cycle (metal refused 2 reboots): power-cycle was tried at"
		if q := herd.Record(refused).Quarantine; q == nil || !strings.HasPrefix(q.Reason, want) {
			t.Errorf("quarantine %+v", q)
		}
	})
}

// TestARefusedPowerCycleLeftNothingOff: a machine that is off, and whose power cycle the provider
// refuses for good, was not left off by that. The next step follows in its time, and nobody
// switches the machine on before.
func TestARefusedPowerCycleLeftNothingOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 3, func(p *fleet.Policy) { p.SuspectShare, p.RecoveryReinstalls = 0, 1 })
		id, stepTime := herd.Machines()[0], fleet.DefaultPolicy().RecoveryStepTimeout
		defer herd.Start(handler, updaterOf(t, herd))()
		time.Sleep(5 * time.Minute)
		var refused time.Time
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulling && refused.IsZero() {
				refused = time.Now()
				return fleet.Errorf(fleet.KindConflict, "the device is locked")
			}
			return nil
		}
		herd.Change(id, func(h *shepherdtest.Host) { h.Corrupt, h.Agent = true, false })
		herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool { e.Status = fleet.ProviderStatusOff; return true })
		time.Sleep(3 * time.Hour)
		if got := levers(herd, id); got != "reinstall" {
			t.Fatalf("pulled %q", got)
		}
		if late := herd.Fake.Pulls()[0].At.Sub(refused) - stepTime; late < 0 || late > time.Minute {
			t.Errorf("the reinstall came %s after the time of the step that was refused", late)
		}
	})
}
