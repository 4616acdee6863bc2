package telemetry_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/telemetry"
)

// TestWhatWaitsForRoomIsNotOverdue: the policy keeps it waiting, for however long.
func TestWhatWaitsForRoomIsNotOverdue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lease time.Duration
		fails bool
		due   int
	}{"until work has failed": {1000 * time.Hour, true, 1}, "until a session has died": {150 * time.Minute, false, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { waitsForRoom(t, c.lease, c.fails, c.due) })
		})
	}
}

// waitsForRoom has a session of that lease take all the room that recovery has for two hours, and
// then fail or die, after which recovery is due of so many.
func waitsForRoom(t *testing.T, lease time.Duration, fails bool, due int) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}), bmdb.Options{Logger: discard})
	must(err)
	t.Cleanup(func() { must(db.Close()) })
	m := telemetry.New("v1")
	m.Fleet(db, discard)
	must(bmdbtest.Stock(t.Context(), db, "lab", []fleet.MachineID{fleet.NewMachineID(), fleet.NewMachineID()}, nil))
	must(bmdbtest.Silence(t.Context(), db, "lab", 1))
	time.Sleep(time.Second)
	session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "recovery", Lease: lease})
	must(err)
	claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessRecovery, Limit: 2})
	must(err)
	if len(claim.Works) != 1 {
		t.Fatalf("claimed %d", len(claim.Works))
	}
	expect := func(due int, want string) {
		t.Helper()
		time.Sleep(time.Hour)
		text := scrape(t, m)
		for _, line := range []string{fmt.Sprintf(`ironherd_process_due{process="recovery"} %d`, due), `ironherd_process_overdue_seconds{process="recovery"} ` + want} {
			if !strings.Contains(text, line) {
				t.Errorf("there is no %s in %s", line, text)
			}
		}
	}
	expect(1, "0\n")
	expect(1, "0\n")
	if fails {
		must(claim.Works[0].Fail(t.Context(), bmdb.Failure{Cause: "no", Backoff: fleet.Backoff{Initial: 1000 * time.Hour}}))
	}
	expect(due, "360") // an hour, since nothing was seen to be able to start
}
