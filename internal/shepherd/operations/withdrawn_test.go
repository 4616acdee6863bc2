package operations_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestAWithdrawnRestartMayStillCome: the provider may have heard the call, so no install is handed
// out while it may still cut it.
func TestAWithdrawnRestartMayStillCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 1, operations.Options{}, nil, nil)
		id := herd.Machines()[0]
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulling { // heard; the machine goes down in a minute
				return fleet.Errorf(fleet.KindTimeout, "no answer")
			}
			return nil
		}
		defer herd.Start(handler)()
		time.Sleep(2 * time.Minute)
		_, err := herd.DB.RequestOperation(t.Context(), "ada", id, fleet.OperationReboot, "new firmware")
		check(t, err)
		time.Sleep(15 * time.Second)
		if a := herd.Record(id).OperationAttempt; a == nil || a.AcceptedAt != nil {
			t.Fatalf("attempt %+v", a)
		}
		check(t, herd.DB.WithdrawOperation(t.Context(), "ada", id, "not today"))
		_, err = herd.DB.RequestInstall(t.Context(), "ada", id, fleet.InstallRequest{Image: fleet.Image{
			URL: "http://192.0.2.1/image", Digest: "sha256:" + strings.Repeat("0", 64), Compression: fleet.CompressionNone,
		}}, false)
		check(t, err)
		d, err := herd.DB.MachineDetails(t.Context(), id)
		check(t, err)
		if install := lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessInstall); install.Verdict == lifecycle.Due {
			t.Errorf("20 s after a reboot was called whose reply was lost, an install is %s: %s", install.Verdict, install.Reason)
		}
	})
}
