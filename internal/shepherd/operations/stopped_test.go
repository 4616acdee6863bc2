package operations_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestStoppedBeforeTheCall: a control plane that stops before anything of a call was sent takes the
// attempt back, and nothing has failed. A call that may have been heard stays in doubt.
func TestStoppedBeforeTheCall(t *testing.T) {
	t.Parallel()
	unsent := func(ctx context.Context) error { return provider.BeforeSending(fleet.ContextError(ctx)) }
	for name, c := range map[string]struct {
		ask fleet.Operation
		// before is how the first call fails; nil: the stopped one is the first.
		before error
		// stopped is how the call fails that the stop ends.
		stopped func(context.Context) error
		attempt int
		waits   bool
	}{
		"reboot":         {ask: fleet.OperationReboot, stopped: unsent},
		"power cycle":    {ask: fleet.OperationPowerCycle, stopped: unsent},
		"power off":      {ask: fleet.OperationPowerOff, stopped: unsent},
		"reply not read": {ask: fleet.OperationReboot, stopped: fleet.ContextError, attempt: 1, waits: true},
		"after one in doubt": {
			ask: fleet.OperationReboot, before: fleet.Errorf(fleet.KindTemporary, "Bad Gateway"), stopped: unsent, attempt: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				herd, handler := bench(t, 1, operations.Options{}, nil, nil)
				id := herd.Machines()[0]
				defer herd.Start()()
				time.Sleep(5 * time.Minute)
				_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, c.ask, "new firmware")
				check(t, err)
				if c.before != nil {
					replies(herd, shepherdtest.Pulling, c.before)
					task := claim(t, herd, handler)
					task.Act(t.Context())
					check(t, task.Commit(t.Context()))
					time.Sleep(fleet.DefaultPolicy().OperationTimeout)
				}
				failures := herd.Record(id).Backoffs[fleet.ProcessOperation].Failures
				task := claim(t, herd, handler)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at != shepherdtest.Pulling {
						return nil
					}
					stop()
					return c.stopped(ctx)
				}
				task.Act(ctx)
				if a := herd.Record(id).OperationAttempt; a == nil || a.AcceptedAt != nil {
					t.Fatalf("attempt %+v", a)
				}
				check(t, task.Commit(ctx))
				attempt := 0
				r := herd.Record(id)
				if r.OperationAttempt != nil {
					attempt = r.OperationAttempt.Attempt
				}
				if attempt != c.attempt || r.OpenOperation() == nil {
					t.Errorf("attempt %d, want %d; the operation is %+v", attempt, c.attempt, r.OpenOperation())
				}
				if is := r.Backoffs[fleet.ProcessOperation].Failures; is != failures {
					t.Errorf("the stop counts as a failure: %d, before %d", is, failures)
				}
				herd.Fake.Hook = nil
				defer herd.Start(handler)()
				time.Sleep(time.Minute)
				if waits := levers(herd) == ""; waits != c.waits {
					t.Errorf("a minute after the next start, %q was pulled", levers(herd))
				}
			})
		})
	}
}

// TestLooksRestoredBeforeTheCall: the evidence that the database was restored turns up, as in a
// failover, when an operation is under way that was not begun. It waits, and nothing has failed
// (rule 11).
func TestLooksRestoredBeforeTheCall(t *testing.T) {
	t.Parallel()
	for _, ask := range []fleet.Operation{fleet.OperationReboot, fleet.OperationPowerOff, fleet.OperationRelease} {
		t.Run(string(ask), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine, herd, handler := restorable(t)
				id := herd.Machines()[0]
				_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, ask, "new firmware")
				check(t, err)
				task := claim(t, herd, handler)
				shepherdtest.PutBack(t, engine)
				task.Act(t.Context())
				check(t, task.Commit(t.Context()))
				r := herd.Record(id)
				if got := levers(herd); got != "" || r.OperationAttempt != nil || r.OpenOperation() == nil || !r.Backoffs[fleet.ProcessOperation].Since.IsZero() {
					t.Errorf("%q was pulled, the attempt is %+v, the operation %+v, backoffs %+v", got, r.OperationAttempt, r.OpenOperation(), r.Backoffs)
				}
				defer herd.Start(handler)()
				time.Sleep(time.Hour)
				if got := levers(herd); got != "" {
					t.Errorf("%q was pulled in a database that looks restored", got)
				}
				check(t, herd.DB.AcceptRestore(t.Context(), "ada"))
				_, err = herd.DB.RecomputeAgenda(t.Context(), 100)
				check(t, err)
				time.Sleep(time.Minute)
				if levers(herd) == "" {
					t.Error("it does not go on")
				}
			})
		})
	}
}

// restorable is a bench of one machine, with the engine of its database, which can be put back.
func restorable(t *testing.T) (*sqlite.Engine, *shepherdtest.Herd, shepherd.Handler) {
	t.Helper()
	engine := shepherdtest.OpenEngine(t)
	herd := shepherdtest.NewHerd(t, shepherdtest.OpenDB(t, engine, bmdb.Options{}), 1)
	sources := []operations.Source{{Name: herd.Name, Provider: herd.Fake}}
	handler, err := operations.New(herd.DB, sources, operations.DefaultConfig(), operations.Options{})
	check(t, err)
	return engine, herd, handler
}

// TestLooksRestoredAndIsSoAlready: what needs no call is no effect, and ends although the database
// looks restored.
func TestLooksRestoredAndIsSoAlready(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine, herd, handler := restorable(t)
		id := herd.Machines()[0]
		_, err := bmdbtest.Operate(t.Context(), herd.DB, "ada", id, fleet.OperationPowerOff, "new firmware")
		check(t, err)
		task := claim(t, herd, handler)
		herd.Fake.Change(herd.Host(id).ID, func(e *provider.Entry) bool { e.Status = fleet.ProviderStatusOff; return true })
		shepherdtest.PutBack(t, engine)
		task.Act(t.Context())
		check(t, task.Commit(t.Context()))
		r := herd.Record(id)
		if r.OpenOperation() != nil || r.OperationReport == nil || !r.OperationReport.OK || !r.Backoffs[fleet.ProcessOperation].Since.IsZero() {
			t.Errorf("the operation is %+v, its report %+v, backoffs %+v", r.OpenOperation(), r.OperationReport, r.Backoffs)
		}
	})
}

// putsBack has the database look restored when a call begins to wait for its turn.
type putsBack struct {
	paced
	putBack func()
}

func (p putsBack) Reboot(ctx context.Context, id fleet.ProviderID) error {
	p.putBack()
	return p.paced.Reboot(ctx, id)
}

// TestLooksRestoredWhileTheCallWaits is the same of a call that waits for its turn.
func TestLooksRestoredWhileTheCallWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := shepherdtest.OpenEngine(t)
		db := shepherdtest.OpenDB(t, engine, bmdb.Options{})
		herd := shepherdtest.NewHerd(t, db, 1)
		source := operations.Source{Name: herd.Name, Provider: putsBack{newPaced(db, herd.Fake), func() { shepherdtest.PutBack(t, engine) }}}
		handler, err := operations.New(db, []operations.Source{source}, operations.DefaultConfig(), operations.Options{})
		check(t, err)
		id := herd.Machines()[0]
		_, err = bmdbtest.Operate(t.Context(), db, "ada", id, fleet.OperationReboot, "new firmware")
		check(t, err)
		task := claim(t, herd, handler)
		task.Act(t.Context())
		check(t, task.Commit(t.Context()))
		r := herd.Record(id)
		if got := levers(herd); got != "" || r.OperationAttempt != nil || r.OpenOperation() == nil || !r.Backoffs[fleet.ProcessOperation].Since.IsZero() {
			t.Errorf("%q was pulled, the attempt is %+v, the operation %+v, backoffs %+v", got, r.OperationAttempt, r.OpenOperation(), r.Backoffs)
		}
	})
}

// claim claims the operation of a machine that is due, as a control plane does that is about to
// stop.
func claim(t *testing.T, herd *shepherdtest.Herd, handler shepherd.Handler) *shepherd.Task {
	t.Helper()
	loop, err := shepherd.New(herd.DB, handler, shepherd.DefaultConfig(), shepherd.Options{Host: "stops"})
	check(t, err)
	holder, err := loop.Open(t.Context())
	check(t, err)
	tasks, _, err := holder.Claim(t.Context(), 1)
	check(t, err)
	if len(tasks) != 1 {
		t.Fatalf("%d operations are due", len(tasks))
	}
	return tasks[0]
}

// TestARollingRebootGoesOn: the calls that wait for their turn when a control plane stops are made
// by the next one, at once and once each.
func TestARollingRebootGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const machines = 30
		db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})
		herd := shepherdtest.NewHerd(t, db, machines)
		start := func() (stop func()) {
			sources := []operations.Source{{Name: herd.Name, Provider: newPaced(db, herd.Fake), Config: operations.ProviderConfig{Penalty: time.Hour}}}
			handler, err := operations.New(db, sources, operations.DefaultConfig(), operations.Options{})
			check(t, err)
			return herd.Start(handler)
		}
		for _, id := range herd.Machines() {
			_, err := bmdbtest.Operate(t.Context(), db, "ada", id, fleet.OperationReboot, "new kernel")
			check(t, err)
		}
		stop := start()
		time.Sleep(45 * time.Second)
		stop()
		called := len(herd.Fake.Pulls())
		var doubtful []fleet.MachineID
		for _, id := range herd.Machines() {
			r := herd.Record(id)
			if a := r.OperationAttempt; a != nil && a.AcceptedAt == nil && r.OpenOperation() != nil {
				doubtful = append(doubtful, id)
			}
		}
		if called == 0 || called == machines || len(doubtful) > 1 { // one call may be under way
			t.Errorf("%d were called; in doubt are %q", called, doubtful)
		}
		defer start()()
		time.Sleep(5 * time.Minute)
		for _, id := range herd.Machines() {
			if how := ended(t, herd, id); !strings.Contains(how, "done") {
				t.Errorf("5 minutes after the next start: %s", how)
			}
		}
		if pulls := len(herd.Fake.Pulls()); pulls != machines {
			t.Errorf("%d calls for %d machines", pulls, machines)
		}
	})
}
