package operations_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
)

// TestPolicy: what the policy asks for: machines that the provider gave up are replaced, and their
// capacity waits; a maintenance ends when its time is over.
func TestPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 8, operations.Options{}, func(p *fleet.Policy) { p.ReplaceFailed = true }, nil)
		all := herd.Machines()
		defer herd.Start(handler)()
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", all[3], fleet.OperationPowerOff, "hands are inside")
		check(t, err)
		time.Sleep(5 * time.Minute)
		until := time.Now().Add(30 * time.Minute)
		check(t, bmdbtest.BeginMaintenance(t.Context(), herd.DB, "ada", all[1], &until, "a new fan"))
		fact := *herd.Record(all[0]).Provided
		fact.Status, fact.Detail = fleet.ProviderStatusFailed, "broken"
		herd.Change(all[2], silent)
		for _, broken := range []fleet.MachineID{all[0], all[3]} {
			herd.Fake.Change(herd.Host(broken).ID, func(e *provider.Entry) bool {
				e.Status, e.Detail = fact.Status, fact.Detail
				return true
			})
			herd.Change(broken, silent)
		}
		// What is recorded of the third machine is older than its repair at the provider. Nothing is
		// heard of it either.
		set(t, herd, bmdb.SetProvided(all[0], herd.Host(all[0]).ID, fact), bmdb.SetProvided(all[2], herd.Host(all[2]).ID, fact),
			bmdb.SetProvided(all[3], herd.Host(all[3]).ID, fact))
		time.Sleep(25 * time.Minute)
		if state, _ := herd.State(all[0]); state != "" || levers(herd) != "power-off release" {
			t.Errorf("the machine is %q, pulled %q", state, levers(herd))
		}
		if state, _ := herd.State(all[2]); state == "" || state == fleet.StateFailed || herd.Record(all[2]).Operation != nil {
			t.Errorf("the machine that was repaired is %q: %+v", state, herd.Record(all[2]).Operation)
		}
		if state, _ := herd.State(all[3]); state != fleet.StateFailed || herd.Record(all[3]).Operation.Operation != fleet.OperationPowerOff {
			t.Errorf("the machine that ada switched off is %q", state)
		}
		penalties, err := herd.DB.Penalties(t.Context(), herd.Name)
		check(t, err)
		if p := penalties[fact.Capacity]; p.ForEver() || time.Until(p.Until) > time.Hour || p.Until.Before(time.Now()) {
			t.Errorf("penalties %v", penalties)
		}
		if m := herd.Record(all[1]).Maintenance; m == nil || m.Over {
			t.Errorf("maintenance %+v", m)
		}
		time.Sleep(15 * time.Minute)
		if m := herd.Record(all[1]).Maintenance; m == nil || !m.Over {
			t.Errorf("maintenance %+v", m)
		}
	})
}
