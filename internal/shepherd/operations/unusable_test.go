package operations_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
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

// TestAnOperationTakesNoNewAddressOfAHost (rule 8): the host at that address may be another one,
// whose IDs somebody has changed. The operation waits until a pass has recorded the address.
func TestAnOperationTakesNoNewAddressOfAHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clean := &cleaner{}
		herd, handler := bench(t, 1, operations.Options{Cleaner: clean}, nil,
			func(f *shepherdtest.FakeProvider) provider.Provider { return keeper{f} })
		id := herd.Machines()[0]
		stop := herd.Start(handler)
		time.Sleep(5 * time.Minute)
		stop()
		before := herd.Record(id)
		herd.Fake.Change(before.ProviderID, func(e *provider.Entry) bool {
			e.Address = netip.MustParseAddr("192.0.2.99")
			return true
		})
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationRelease, "sold")
		check(t, err)
		stop = herd.Start(handler)
		time.Sleep(time.Minute)
		stop()
		is := herd.Record(id)
		if clean.calls > 0 || !provider.SameFact(*before.Provided, *is.Provided) || is.OperationAttempt != nil {
			t.Fatalf("%d attempts, recorded is %+v", clean.calls, is.Provided)
		}
		cause := is.Backoffs[fleet.ProcessOperation].Cause
		if want := "the list gives it the address 192.0.2.99, and that is not recorded yet; if it stays so, `ironherd provider show "; !strings.Contains(cause, want) {
			t.Errorf("it waits because of %q, want %q", cause, want)
		}
		updates, err := updater.New(herd.DB, []updater.Source{{Name: herd.Name, Provider: keeper{herd.Fake}, Config: updater.DefaultConfig()}}, updater.Options{})
		check(t, err)
		defer herd.Start(handler, updates)()
		time.Sleep(40 * time.Minute)
		if state, _ := herd.State(id); clean.calls != 1 || state != "" {
			t.Errorf("%d attempts, and the machine is %q", clean.calls, state)
		}
	})
}
