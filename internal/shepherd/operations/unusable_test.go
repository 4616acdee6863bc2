package operations_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestAnEntryThatCannotBeUsedTellsNothing (rule 8): a host whose entry has a fault is given back,
// and what was recorded of it stays. By its address a pass knows the host under another ID.
func TestAnEntryThatCannotBeUsedTellsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clean := &cleaner{errs: []error{fleet.Errorf(fleet.KindTemporary, "line 3: host: address is not one")}}
		herd, handler := bench(t, 1, operations.Options{Cleaner: clean}, nil,
			func(f *shepherdtest.FakeProvider) provider.Provider { return keeper{f} })
		id := herd.Machines()[0]
		stop := herd.Start(handler)
		time.Sleep(5 * time.Minute)
		stop()
		before := herd.Record(id)
		herd.Fake.Change(before.ProviderID, func(e *provider.Entry) bool {
			e.Invalid, e.Address, e.Labels = "line 3: host: address is not one", netip.Addr{}, nil
			e.Location, e.Hostname, e.Status = "elsewhere", "h", fleet.ProviderStatusOff
			return true
		})
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationRelease, "sold")
		check(t, err)
		stop = herd.Start(handler)
		time.Sleep(time.Minute)
		stop()
		if clean.calls == 0 {
			t.Fatal("no attempt was made")
		}
		was, is := *before.Provided, *herd.Record(id).Provided
		if !provider.SameFact(was, is) {
			t.Errorf("recorded was %+v, and is %+v", was, is)
		}
	})
}
