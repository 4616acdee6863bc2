package fleetapi

import (
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestLateMachinesAreCountedHoweverManyThereAre: behind a thousand that came later, and all of
// them.
func TestLateMachinesAreCountedHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
		db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
		must(err)
		t.Cleanup(func() { must(db.Close()) })
		session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "tester", Lease: 100 * time.Hour})
		must(err)
		for _, provider := range []fleet.ProviderName{"metal", "rack"} {
			must(db.RegisterProvider(t.Context(), provider, "equinix", 5000))
		}
		claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 2})
		must(err)
		// The IDs come first, so that who is older can be behind who is younger in their order.
		const many = maxRows + 3
		ids := make([]fleet.MachineID, many)
		for i := range ids {
			ids[i] = fleet.NewMachineID()
		}
		open := func(work *bmdb.Work, from, to int) {
			t.Helper()
			intents := make([]bmdb.NewIntent, 0, to-from)
			for i := from; i < to; i++ {
				intents = append(intents, bmdb.NewIntent{Capacity: fleet.CapacityID(fmt.Sprintf("c%d", i)), Machine: ids[i], Token: fleet.NewToken()})
			}
			var opened []fleet.Intent
			must(work.Note(t.Context(), bmdb.OpenIntents(0, intents, &opened)))
		}
		s := New(db, Options{})
		expect := func(when, want string) {
			t.Helper()
			summary, err := db.Summary(t.Context())
			must(err)
			all, err := s.concerns(t.Context(), summary, providersOf(t, db))
			must(err)
			got := ""
			for _, c := range all {
				if c.GetKind() == string(fleet.ConcernLate) {
					got += fmt.Sprintf("%s %d: %s", c.GetSubject(), c.GetCount(), c.GetText())
				}
			}
			if got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		expect("no machines", "")
		open(claim.Works[0], 0, 1)
		time.Sleep(time.Minute)
		open(claim.Works[0], many-2, many)
		time.Sleep(29 * time.Minute)
		expect("three that have begun", "")
		time.Sleep(30 * time.Minute)
		expect("in their hour", "")
		time.Sleep(time.Minute)
		expect("a minute later", "creating 1: 1 creating for more than an hour, the oldest for 61 minutes")
		time.Sleep(59 * time.Minute)
		open(claim.Works[0], 1, 500)
		open(claim.Works[1], 500, many-2)
		expect("behind a thousand that have begun", "creating 3: 3 creating for more than an hour, the oldest for 2 hours")
		time.Sleep(time.Hour + time.Minute)
		expect("all of them", fmt.Sprintf("creating %d: %d creating for more than an hour, the oldest for 3 hours", many, many))
		for _, id := range []fleet.MachineID{ids[0], ids[many-2], ids[many-1]} {
			must(claim.Works[0].Note(t.Context(), bmdb.CloseIntentRejected(id, "no")))
		}
		expect("without the first three", fmt.Sprintf("creating %d: %d creating for more than an hour, the oldest for 61 minutes", many-3, many-3))
	})
}
