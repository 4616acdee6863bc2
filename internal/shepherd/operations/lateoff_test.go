package operations_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// repaired starts a herd of one machine, whose operations are carried out and that recovery
// repairs. When it is over, the machine must be off, with no other lever pulled than that.
func repaired(t *testing.T, run func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID)) {
	t.Helper()
	underRecovery(t, func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
		t.Helper()
		run(t, herd, id)
		if got := levers(herd); got != "power-off" {
			t.Errorf("pulled: %s", got)
		}
		if state, why := herd.State(id); state != fleet.StateOff || !strings.Contains(why, "by the power-off that alice asked for, which had come to nothing") {
			t.Errorf("the machine is %s: %s", state, why)
		}
	})
}

// underRecovery starts a herd of one machine, whose operations are carried out and that recovery
// repairs.
func underRecovery(t *testing.T, run func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 1, operations.Options{}, func(p *fleet.Policy) { p.SuspectShare = 0 }, nil)
		rec, err := recoverer.New(herd.DB, []recoverer.Source{{Name: herd.Name, Provider: herd.Fake}}, recoverer.DefaultConfig(), recoverer.Options{})
		check(t, err)
		up, err := updater.New(herd.DB, []updater.Source{{Name: herd.Name, Provider: herd.Fake, Config: updater.DefaultConfig()}}, updater.Options{})
		check(t, err)
		id := herd.Machines()[0]
		defer herd.Start(handler, rec, up)()
		time.Sleep(5 * time.Minute)
		run(t, herd, id)
	})
}

// TestAPowerOffThatWasRefusedIsNoReason: the provider has refused to switch the machine off, and
// later it loses its power.
func TestAPowerOffThatWasRefusedIsNoReason(t *testing.T) {
	underRecovery(t, func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
		t.Helper()
		asked := false
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulling && !asked {
				asked = true
				return fleet.Errorf(fleet.KindForbidden, "not with this token")
			}
			return nil
		}
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "alice", id, fleet.OperationPowerOff, "hands inside")
		check(t, err)
		time.Sleep(10 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Agent = false })
		herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool { e.Status = fleet.ProviderStatusOff; return true })
		time.Sleep(3 * time.Hour)
		if got := levers(herd); !strings.Contains(got, "power-cycle") {
			t.Errorf("pulled: %q", got)
		}
	})
}

// TestAPowerOffWhoseReplyIsLostIsNoTrouble: the provider switches the machine off, its reply is
// lost, and it cannot be asked until the operation is given up.
func TestAPowerOffWhoseReplyIsLostIsNoTrouble(t *testing.T) {
	repaired(t, func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
		t.Helper()
		var since time.Time
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			switch {
			case at == shepherdtest.Pulled && since.IsZero():
				since = time.Now()
				return fleet.Errorf(fleet.KindTimeout, "no answer")
			case !since.IsZero() && time.Since(since) < 100*time.Minute:
				return fleet.Errorf(fleet.KindTemporary, "out of order")
			}
			return nil
		}
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "alice", id, fleet.OperationPowerOff, "hands inside")
		check(t, err)
		time.Sleep(time.Second)
		herd.Change(id, func(h *shepherdtest.Host) { h.Agent = false })
		time.Sleep(6 * time.Hour)
		if got := ended(t, herd, id); !strings.Contains(got, "may have done it all the same") {
			t.Errorf("it ended with %q", got)
		}
	})
}

// TestAHostThatShutsDownSlowlyStaysOff: the host needs longer to shut down than
// policy.operation_timeout.
func TestAHostThatShutsDownSlowlyStaysOff(t *testing.T) {
	repaired(t, func(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) {
		t.Helper()
		set := func(s fleet.ProviderStatus) {
			herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool { e.Status = s; return true })
		}
		once := false
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulled && !once {
				once = true
				set(fleet.ProviderStatusActive)
				time.AfterFunc(16*time.Minute, func() {
					set(fleet.ProviderStatusOff)
					herd.Change(id, func(h *shepherdtest.Host) { h.Agent = false })
				})
			}
			return nil
		}
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "alice", id, fleet.OperationPowerOff, "hands inside")
		check(t, err)
		time.Sleep(3 * time.Hour)
	})
}
