package operations_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// afterADoubtfulReboot is a herd of one machine, whose reboot was called without a reply, and was
// withdrawn. It may still come. Then run begins, and something else was asked for.
func afterADoubtfulReboot(t *testing.T, then fleet.Operation, run func(*testing.T, *shepherdtest.Herd, shepherd.Handler, fleet.MachineID)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 1, operations.Options{}, nil, nil)
		id := herd.Machines()[0]
		defer herd.Start()()
		time.Sleep(5 * time.Minute)
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReboot, "new firmware")
		check(t, err)
		answered(t, herd, handler, fleet.Errorf(fleet.KindTimeout, "no answer"))
		check(t, bmdbtest.Withdraw(t.Context(), herd.DB, "ada", id, "not today"))
		_, err = bmdbtest.Operate(t.Context(), herd.DB, "ada", id, then, "today after all")
		check(t, err)
		run(t, herd, handler, id)
	})
}

// stopped works on an operation until the call is to be sent, and is stopped then.
func stopped(t *testing.T, herd *shepherdtest.Herd, handler shepherd.Handler) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
		if at != shepherdtest.Pulling {
			return nil
		}
		stop()
		return provider.BeforeSending(fleet.ContextError(ctx))
	}
	task := claim(t, herd, handler)
	task.Act(ctx)
	check(t, task.Commit(ctx))
	herd.Fake.Hook = nil
}

// answered works on an operation whose call the provider answers with that error.
func answered(t *testing.T, herd *shepherdtest.Herd, handler shepherd.Handler, err error) {
	t.Helper()
	replies(herd, shepherdtest.Pulling, err)
	task := claim(t, herd, handler)
	task.Act(t.Context())
	check(t, task.Commit(t.Context()))
	herd.Fake.Hook = nil
}

// throttled works on an operation whose call the provider refuses for the moment.
func throttled(t *testing.T, herd *shepherdtest.Herd, handler shepherd.Handler) {
	t.Helper()
	answered(t, herd, handler, fleet.Errorf(fleet.KindThrottled, "slowly"))
}

// TestARestartOutlastsWhatHadNoEffect: an operation of which nothing was sent, or that had no
// effect, says nothing of a restart before it whose reply was lost. No install is handed out while
// that one may still cut it.
func TestARestartOutlastsWhatHadNoEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then fleet.Operation
		work func(*testing.T, *shepherdtest.Herd, shepherd.Handler)
	}{
		"a reboot that is stopped before the call":      {fleet.OperationReboot, stopped},
		"a reboot that is throttled":                    {fleet.OperationReboot, throttled},
		"a power-off that is throttled":                 {fleet.OperationPowerOff, throttled},
		"a reboot that is withdrawn before it is begun": {fleet.OperationReboot, func(*testing.T, *shepherdtest.Herd, shepherd.Handler) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			afterADoubtfulReboot(t, c.then, func(t *testing.T, herd *shepherdtest.Herd, handler shepherd.Handler, id fleet.MachineID) {
				t.Helper()
				c.work(t, herd, handler)
				check(t, bmdbtest.Withdraw(t.Context(), herd.DB, "ada", id, "not today either"))
				installWaits(t, herd, id, true)
				time.Sleep(fleet.DefaultPolicy().OperationTimeout)
				installWaits(t, herd, id, false)
			})
		})
	}
}

// TestWhatHadNoEffectIsCalledSoon: a restart before it that may still come does not keep an
// operation from being called of which nothing was sent, or that was throttled.
func TestWhatHadNoEffectIsCalledSoon(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func(*testing.T, *shepherdtest.Herd, shepherd.Handler){
		"stopped before the call": stopped, "throttled": throttled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			afterADoubtfulReboot(t, fleet.OperationReboot, func(t *testing.T, herd *shepherdtest.Herd, handler shepherd.Handler, _ fleet.MachineID) {
				t.Helper()
				work(t, herd, handler)
				defer herd.Start(handler)()
				time.Sleep(2 * time.Minute)
				if got := levers(herd); got != "reboot" {
					t.Errorf("pulled %q two minutes later", got)
				}
			})
		})
	}
}

// TestWhatWasRefusedForGoodDoesNotCome: a release that the provider refuses for good holds no
// install up, and nothing that is asked for later and comes to nothing makes it do so.
func TestWhatWasRefusedForGoodDoesNotCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := bench(t, 1, operations.Options{}, nil, nil)
		id := herd.Machines()[0]
		defer herd.Start()()
		time.Sleep(5 * time.Minute)
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationRelease, "sold")
		check(t, err)
		answered(t, herd, handler, fleet.Errorf(fleet.KindConflict, "locked"))
		_, err = bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReboot, "new firmware")
		check(t, err)
		check(t, bmdbtest.Withdraw(t.Context(), herd.DB, "ada", id, "not today"))
		installWaits(t, herd, id, false)
	})
}
