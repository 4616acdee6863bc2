package fleetapi

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
)

// TestAJanitorThatFailsIsAConcern: its role is not missing, so nothing else tells that recovery is
// not stopped, or that installs do not run out of time.
func TestAJanitorThatFailsIsAConcern(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, must := openBMDB(t)
		began, failed := time.Now(), []string{"watch-silence"}
		s := New(db, Options{Failing: func(before time.Time) (duties []string, since time.Time, cause string) {
			if !began.Before(before) {
				return nil, time.Time{}, ""
			}
			return failed, began, "no such column"
		}})
		expect := func(want string) {
			t.Helper()
			got := ""
			all, err := s.concerns(t.Context(), bmdb.Summary{}, nil)
			must(err)
			for _, c := range all {
				got += fmt.Sprintf("%s %s %d: %s", c.GetKind(), c.GetSubject(), c.GetCount(), c.GetText())
			}
			if got != want {
				t.Errorf("told is %q, want %q", got, want)
			}
		}
		time.Sleep(14 * time.Minute)
		expect("")
		time.Sleep(4 * time.Hour)
		expect("duty watch-silence 1: the janitor of this control plane has failed at watch-silence for 4 hours: no such column")
		failed = append(failed, "check", "prune-plans")
		expect("duty watch-silence 3: the janitor of this control plane has failed at watch-silence for 4 hours (and at check, prune-plans): no such column")
	})
}
