package shepherdtest

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Seed registers the provider in the database and creates n machines on its first free
// reservations, as a provisioner would. It returns them in the order of their reservations, which
// is that of their IDs.
func Seed(tb testing.TB, db *bmdb.DB, name fleet.ProviderName, fake *FakeProvider, n int) []fleet.MachineID {
	tb.Helper()
	ctx := tb.Context()
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	check(db.RegisterProvider(ctx, name, fake.Kind(), 0))
	session, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "seed", Host: "test", Lease: 5 * time.Second})
	check(err)
	claim, err := session.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Providers: []fleet.ProviderName{name}, Limit: 1})
	check(err)
	if len(claim.Works) != 1 {
		tb.Fatalf("claimed %d passes", len(claim.Works))
	}
	work := claim.Works[0]
	entries, err := fake.List(ctx)
	check(err)
	var wanted []bmdb.NewIntent
	for _, entry := range entries {
		if entry.Availability == fleet.AvailabilityKnownUnused && len(wanted) < n {
			wanted = append(wanted, bmdb.NewIntent{
				Capacity: entry.Capacity, Machine: fleet.NewMachineID(), Token: fleet.NewToken(), PlannedAt: time.Now(),
			})
		}
	}
	var intents []fleet.Intent
	check(work.Note(ctx, bmdb.OpenIntents(0, wanted, &intents)))
	if len(intents) != n {
		tb.Fatalf("%d of %d intents were opened", len(intents), n)
	}
	now, err := db.Now(ctx)
	check(err)
	var changes []bmdb.Change
	var ids []fleet.MachineID
	for _, intent := range intents {
		device, err := fake.Land(intent.Capacity, intent.Token)
		check(err)
		ids = append(ids, intent.Machine)
		changes = append(changes, bmdb.CloseIntentProvided(intent.Machine, device.ID, device.Provided(nil, now)))
	}
	check(work.Note(ctx, changes...))
	check(work.Finish(ctx))
	check(session.Close(ctx, "seeded"))
	return ids
}
