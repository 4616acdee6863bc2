package janitor_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/shepherd/janitor"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestDutiesThatFailForLongAreKnown: which, since when and why, until each was done again.
func TestDutiesThatFailForLongAreKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := &away{Engine: shepherdtest.OpenEngine(t)}
		db := shepherdtest.OpenDB(t, engine, bmdb.Options{})
		j, stop := run(t, db, janitor.DefaultConfig(), janitor.Options{})
		defer stop()
		expect := func(when string, since time.Time, why string, want ...janitor.Duty) {
			t.Helper()
			synctest.Wait()
			got, began, cause := j.Failing(time.Now().Add(-5 * time.Minute))
			var duties []string
			for _, duty := range want {
				duties = append(duties, string(duty))
			}
			if !slices.Equal(got, duties) || began.Sub(since).Abs() > 2*time.Second || cause != why {
				t.Errorf("%s: failing are %q since %s: %q", when, got, began, cause)
			}
		}
		time.Sleep(20 * time.Minute)
		expect("all is well", time.Time{}, "")
		engine.gone.Store(true)
		began := time.Now()
		time.Sleep(4 * time.Minute)
		expect("not for long", time.Time{}, "")
		time.Sleep(3 * time.Minute)
		expect("for minutes", began, "list overdue sessions: overdue sessions: the database is away",
			janitor.DutyCollect, janitor.DutyRecompute, janitor.DutyExpire, janitor.DutySilence, janitor.DutyCheck)
		engine.gone.Store(false)
		time.Sleep(3 * time.Second)
		expect("the check was not done again yet", began.Add(time.Minute), "check: the database is away", janitor.DutyCheck)
		time.Sleep(time.Minute)
		expect("all is well again", time.Time{}, "")
	})
}

// TestADutyThatFailedOnceDoesNotFailForLong: it is done again soon, however seldom it is done.
func TestADutyThatFailedOnceDoesNotFailForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := &away{Engine: shepherdtest.OpenEngine(t)}
		db := shepherdtest.OpenDB(t, engine, bmdb.Options{})
		config := janitor.DefaultConfig()
		config.PruneInterval = time.Hour
		j, stop := run(t, db, config, janitor.Options{})
		defer stop()
		time.Sleep(59*time.Minute + 55*time.Second)
		engine.gone.Store(true)
		time.Sleep(10 * time.Second)
		engine.gone.Store(false)
		time.Sleep(5 * time.Minute)
		if duties, since, cause := j.Failing(time.Now()); len(duties) > 0 {
			t.Errorf("failing are %q since %s: %s", duties, since, cause)
		}
	})
}
