package operations_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestWhatWasNotDoneHoldsUpNoInstall: a restart that the provider refused for good does not come
// any more, and switching on what is on restarts nothing.
func TestWhatWasNotDoneHoldsUpNoInstall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		operation fleet.Operation
		refusal   error
		ended     string
	}{
		"a reboot that is refused":      {fleet.OperationReboot, fleet.Errorf(fleet.KindConflict, "the device is locked"), "operation failed: reboot (operation 1): the device is locked"},
		"a power cycle that is refused": {fleet.OperationPowerCycle, fleet.Errorf(fleet.KindForbidden, "not with this token"), "operation failed: power-cycle (operation 1): not with this token"},
		"a power-on of what is on":      {fleet.OperationPowerOn, nil, "operation done: power-on (operation 1): the provider says that it is on already"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				herd, handler := bench(t, 1, operations.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, nil, nil)
				id := herd.Machines()[0]
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Pulling {
						return c.refusal
					}
					return nil
				}
				stop := herd.Start(handler)
				time.Sleep(2 * time.Minute)
				_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, c.operation, "it hangs")
				check(t, err)
				time.Sleep(15 * time.Second)
				if got := ended(t, herd, id); got != c.ended {
					t.Errorf("%s, want %s", got, c.ended)
				}
				installWaits(t, herd, id, false)
				stop()
				told := strings.Contains(log.String(), `level=WARN msg="operation has failed" machine=`+string(id)+" operation="+string(c.operation)+" actor=ada reason=")
				if failed := strings.HasPrefix(c.ended, "operation failed"); told != failed {
					t.Errorf("the log tells of a failure: %t, want %t: %s", told, failed, &log)
				}
			})
		})
	}
}

// installWaits asks for an install, and fails unless it waits for a restart, or is due at once.
func installWaits(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID, want bool) {
	t.Helper()
	_, err := herd.DB.RequestInstall(t.Context(), "ada", id, fleet.InstallRequest{Image: fleet.Image{
		URL: "http://192.0.2.1/image", Digest: "sha256:" + strings.Repeat("0", 64), Compression: fleet.CompressionNone,
	}}, false)
	check(t, err)
	d, err := herd.DB.MachineDetails(t.Context(), id)
	check(t, err)
	install := lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessInstall)
	waits := install.Verdict != lifecycle.Due && strings.Contains(install.Reason, "may still come")
	if waits != want || !waits && install.Verdict != lifecycle.Due {
		t.Errorf("an install is %s: %s", install.Verdict, install.Reason)
	}
}

// TestWhatWasAskedForBeforeMayStillCome: a refusal, or that there is nothing to do, says nothing of
// a restart that the provider accepted just before.
func TestWhatWasAskedForBeforeMayStillCome(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]fleet.Operation{"which is refused": fleet.OperationPowerCycle, "of what is on": fleet.OperationPowerOn} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := bench(t, 1, operations.Options{}, nil, nil)
				id, calls := herd.Machines()[0], 0
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at != shepherdtest.Pulling {
						return nil
					}
					if calls++; calls > 1 {
						return fleet.Errorf(fleet.KindConflict, "the device is rebooting")
					}
					return nil
				}
				herd.Fake.RestartLag = -1 // it takes its time
				defer herd.Start(handler)()
				time.Sleep(2 * time.Minute)
				for _, operation := range []fleet.Operation{fleet.OperationReboot, then} {
					_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, operation, "it hangs")
					check(t, err)
					time.Sleep(15 * time.Second)
				}
				if got := ended(t, herd, id); !strings.Contains(got, "(operation 2)") {
					t.Fatal(got)
				}
				installWaits(t, herd, id, true)
			})
		})
	}
}
