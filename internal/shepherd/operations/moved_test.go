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
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestAMachineThatWasMovedIsNotGivenBack: the provider has it elsewhere, where it costs money. Its
// release says so.
func TestAMachineThatWasMovedIsNotGivenBack(t *testing.T) {
	t.Parallel()
	for _, moved := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			herd, handler := bench(t, 1, operations.Options{}, nil, nil)
			id := herd.Machines()[0]
			asked := false
			herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
				err := fleet.Errorf(fleet.KindNotFound, "it is in project B")
				switch {
				case at != shepherdtest.Asking || !asked:
					return nil
				case moved:
					return provider.Moved(err)
				}
				return err
			}
			defer herd.Start(handler)()
			time.Sleep(2 * time.Minute)
			asked = true
			_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationRelease, "the lab is closed")
			check(t, err)
			time.Sleep(15 * time.Second)
			want := "operation done: release (operation 1): the provider does not have it any more"
			if moved {
				want = "operation failed: release (operation 1): the provider does not have the machine any more: " +
					"it is in project B; `ironherd machine forget " + string(id) + " --reason WHY` removes it here"
			}
			if got := ended(t, herd, id); !strings.HasPrefix(got, want) {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}
