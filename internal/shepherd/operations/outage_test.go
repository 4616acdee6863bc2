package operations_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// rebooted is a herd of one machine whose reboot was called two minutes ago, which it has not
// survived. The hook is that of the provider. stop ends the operations.
func rebooted(t *testing.T, hook func(shepherdtest.Point, fleet.CapacityID) error) (herd *shepherdtest.Herd, handler shepherd.Handler, stop func()) {
	t.Helper()
	herd, handler = bench(t, 1, operations.Options{}, nil, nil)
	id := herd.Machines()[0]
	herd.Fake.Hook = hook
	restarted := herd.Fake.OnRestart
	herd.Fake.OnRestart = func(pid fleet.ProviderID) {
		restarted(pid)
		herd.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
	}
	stop = herd.Start(handler)
	time.Sleep(5 * time.Minute)
	_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReboot, "new firmware")
	check(t, err)
	time.Sleep(2 * time.Minute)
	return herd, handler, stop
}

// TestARestartHasItsTimeAfterAnOutage: a reboot was accepted, and then for long no agent could be
// heard that would show it: no listener was up, or nothing ran. It fails only when nothing was seen
// in its time after that.
func TestARestartHasItsTimeAfterAnOutage(t *testing.T) {
	t.Parallel()
	const away = 40 * time.Minute
	for name, outage := range map[string]func(herd *shepherdtest.Herd, stop func()){
		"no listener is up": func(herd *shepherdtest.Herd, _ func()) {
			herd.SetDeaf(true)
			time.Sleep(away)
			herd.SetDeaf(false)
		},
		"nothing runs": func(_ *shepherdtest.Herd, stop func()) {
			stop()
			time.Sleep(away)
		},
	} {
		for end, back := range map[string]bool{"done": true, "failed": false} {
			t.Run(name+", "+end, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					herd, handler, stop := rebooted(t, nil)
					id := herd.Machines()[0]
					outage(herd, stop)
					stop()
					defer herd.Start(handler)()
					time.Sleep(5 * time.Minute)
					if got := ended(t, herd, id); got != "not ended" {
						t.Errorf("five minutes after the outage: %s", got)
					}
					_, err := herd.DB.Retry(t.Context(), "ada", id, fleet.ProcessAgentStart)
					check(t, err)
					herd.Change(id, func(h *shepherdtest.Host) { h.Dead = !back })
					time.Sleep(15 * time.Minute)
					if got := ended(t, herd, id); !strings.HasPrefix(got, "operation "+end) {
						t.Errorf("twenty minutes after the outage: %s", got)
					}
				})
			})
		}
	}
}

// TestARestartInDoubtHasItsTimeAfterAnOutage: the reply to a reboot was lost, and nothing ran for
// long. It is not called again before an agent could be heard that shows it.
func TestARestartInDoubtHasItsTimeAfterAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler, stop := rebooted(t, func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulled {
				return fleet.Errorf(fleet.KindTemporary, "the reply is lost")
			}
			return nil
		})
		id := herd.Machines()[0]
		stop()
		time.Sleep(40 * time.Minute)
		defer herd.Start(handler)()
		time.Sleep(10 * time.Minute)
		if got := levers(herd); got != "reboot" || ended(t, herd, id) != "not ended" {
			t.Errorf("ten minutes after the outage %q was pulled: %s", got, ended(t, herd, id))
		}
	})
}

// TestARestartHasNoTimeAfterARestore: a reboot was accepted, and then the database looks restored,
// so that no agent is started which would show it. It fails only when nothing was seen in its time
// after an operator has accepted that (rule 11).
func TestARestartHasNoTimeAfterARestore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine, herd, handler := restorable(t)
		id := herd.Machines()[0]
		restarted := herd.Fake.OnRestart
		herd.Fake.OnRestart = func(pid fleet.ProviderID) {
			restarted(pid)
			herd.Change(id, func(h *shepherdtest.Host) { h.Dead = true })
		}
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationReboot, "new firmware")
		check(t, err)
		time.Sleep(2 * time.Minute)
		if a := herd.Record(id).OperationAttempt; a == nil || a.AcceptedAt == nil {
			t.Fatalf("attempt %+v", a)
		}
		shepherdtest.PutBack(t, engine)
		time.Sleep(time.Hour)
		if got := ended(t, herd, id); got != "not ended" {
			t.Errorf("an hour later: %s", got)
		}
		check(t, herd.DB.AcceptRestore(t.Context(), "ada"))
		_, err = herd.DB.RecomputeAgenda(t.Context(), 100)
		check(t, err)
		time.Sleep(time.Hour)
		if got := ended(t, herd, id); !strings.HasPrefix(got, "operation failed") {
			t.Errorf("an hour after that was accepted: %s", got)
		}
	})
}
