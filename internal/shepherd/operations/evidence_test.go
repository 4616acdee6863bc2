package operations_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
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
		_, err := herd.DB.RequestOperation(t.Context(), "ada", id, fleet.OperationReboot, "new firmware")
		check(t, err)
		time.Sleep(time.Hour)
		if got := levers(herd); got != "reboot" || !strings.Contains(ended(t, herd, id), "operation done: reboot") {
			t.Errorf("pulled %q; %s", got, ended(t, herd, id))
		}
	})
}
