package operations_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestEvidenceBeforeARepeatedReboot: the reply was lost, and the machine came back before the
// attempt is repeated: it is not rebooted again.
func TestEvidenceBeforeARepeatedReboot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 2, operations.Options{}, nil, nil)
		id := herd.Machines()[0]
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		var lost time.Time
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			switch {
			case at == shepherdtest.Pulled:
				lost = time.Now()
				return fleet.Errorf(fleet.KindTimeout, "no answer")
			case at == shepherdtest.Asking && !lost.IsZero() && time.Since(lost) < 15*time.Minute:
				return fleet.Errorf(fleet.KindTemporary, "out of order") // no attempt meanwhile
			}
			return nil
		}
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReboot, "new firmware")
		check(t, err)
		time.Sleep(time.Hour)
		if got := levers(herd); got != "reboot" || !strings.Contains(ended(t, herd, id), "operation done: reboot") {
			t.Errorf("pulled %q; %s", got, ended(t, herd, id))
		}
	})
}

// hung is a provider that does not answer questions.
type hung struct{ *shepherdtest.FakeProvider }

func (hung) Get(ctx context.Context, _ fleet.ProviderID) (provider.Entry, error) {
	<-ctx.Done()
	return provider.Entry{}, fleet.ContextError(ctx)
}

// TestAProviderThatHangsIsLeft: it keeps its slot for half a minute, and the operation goes on.
func TestAProviderThatHangsIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 1, operations.Options{}, nil, func(p *shepherdtest.FakeProvider) provider.Provider { return hung{p} })
		id := herd.Machines()[0]
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReboot, "new firmware")
		check(t, err)
		time.Sleep(31 * time.Second)
		if b := herd.Record(id).Backoffs[fleet.ProcessOperation]; !strings.Contains(b.Cause, "provider metal did not answer within 30s") || levers(herd) != "" {
			t.Errorf("backoff %+v; pulled %q", b, levers(herd))
		}
	})
}

// TestOnItsWayIsNotOff: a power off of a machine that is being switched on is asked for until the
// provider does it, and is done only when the machine is off.
func TestOnItsWayIsNotOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 1, operations.Options{}, nil, nil)
		id := herd.Machines()[0]
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		becomes := func(status fleet.ProviderStatus) {
			herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool {
				e.Status = status
				return true
			})
		}
		var on atomic.Bool
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulling && !on.Load() {
				return fleet.Errorf(fleet.KindConflict, "device is powering_on")
			}
			return nil
		}
		becomes(fleet.ProviderStatusPowering)
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationPowerOff, "a new disk")
		check(t, err)
		time.Sleep(4 * time.Minute)
		if got := ended(t, herd, id); got != "not ended" {
			t.Errorf("while it is switched on: %s", got)
		}
		on.Store(true)
		becomes(fleet.ProviderStatusActive)
		time.Sleep(10 * time.Minute)
		if got := ended(t, herd, id); levers(herd) != "power-off" || got != "operation done: power-off (operation 1): the provider says that it is off" {
			t.Errorf("pulled %q: %s", levers(herd), got)
		}
	})
}
