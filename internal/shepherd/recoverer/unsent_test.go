package recoverer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestUnsent: a call of which certainly nothing was sent costs a machine no step, however often.
func TestUnsent(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"no connection":   provider.BeforeSending(fleet.Errorf(fleet.KindTemporary, "no route to the provider")),
		"no turn in time": provider.Queued(provider.BeforeSending(fleet.Errorf(fleet.KindTimeout, "the next call may start too late"))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := newHerd(t, 3, nil)
				id := herd.Machines()[0]
				var calls atomic.Int32
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == shepherdtest.Pulling && calls.Add(1) <= 5 {
						return err
					}
					return nil
				}
				defer herd.Start(handler)()
				time.Sleep(5 * time.Minute)
				herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
				time.Sleep(2 * time.Hour)
				if got := levers(herd, id); got != "reboot" {
					t.Errorf("pulled %q", got)
				}
				if state, reason := herd.State(id); state != fleet.StateAvailable {
					t.Errorf("the machine is %s (%s)", state, reason)
				}
				if got := steps(herd.Record(id).Repair); got != "reboot 1" {
					t.Errorf("counted %s", got)
				}
			})
		})
	}
}

// TestStoppedBeforeTheCall: a control plane that stops while a step waits for its turn takes the
// step back, and it has not failed.
func TestStoppedBeforeTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, handler := newHerd(t, 3, nil)
		id := herd.Machines()[0]
		stop := herd.Start()
		defer stop()
		time.Sleep(5 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		task := claim(t, herd, handler)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
			if at == shepherdtest.Pulling {
				cancel()
				return provider.BeforeSending(ctx.Err())
			}
			return nil
		}
		task.Act(ctx)
		if herd.Record(id).Repair == nil {
			t.Fatal("no step was committed")
		}
		check(t, task.Commit(ctx))
		r := herd.Record(id)
		if r.Repair != nil || levers(herd, id) != "" {
			t.Errorf("repair %+v, pulled %q", r.Repair, levers(herd, id))
		}
		if b, failed := r.Backoffs[fleet.ProcessRecovery]; failed {
			t.Errorf("the stop counts as a failure: %+v", b)
		}
	})
}
