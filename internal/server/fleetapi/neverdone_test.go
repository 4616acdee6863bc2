package fleetapi

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestWhatWasNeverDoneIsDueSinceItIsKnown: it waits like everything else from when it is seen here.
// What was seen before it, and was done since, does not count.
func TestWhatWasNeverDoneIsDueSinceItIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, must := openBMDB(t)
		s := New(db, Options{})
		var back time.Duration // how far the database's clock was set back
		after := func(when string, wait time.Duration, oldest time.Time, want string) {
			t.Helper()
			time.Sleep(wait)
			all, err := s.concerns(t.Context(), bmdb.Summary{
				At: time.Now().Add(-back), Processes: []bmdb.ProcessSummary{{Process: fleet.ProcessProvision, Due: 1, OldestDue: oldest}},
			}, nil)
			must(err)
			got := ""
			for _, c := range all {
				got += c.GetText()
			}
			if got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		never := time.Unix(0, 0)
		const late = "provision is overdue for an hour, 1 is waiting: no loop does it, or it is busy"
		after("a provider is new", 0, never, "")
		after("it waits", time.Hour, never, late)
		after("it had its pass, and the next one is due", time.Minute, time.Now().Add(time.Minute), "")
		after("another one is new", time.Hour, never, "")
		after("that waits", time.Hour, never, late)
		back = 30 * 24 * time.Hour
		after("the clock was set back", time.Minute, never, "")
		after("it waits still", time.Hour, never, late)
	})
}
