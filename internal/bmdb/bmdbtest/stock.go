package bmdbtest

import (
	"context"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Stock fills a database, through the operations of the protocol, with machines that a provider has
// handed over and that are due for an agent. Nothing is held afterwards.
func Stock(ctx context.Context, db *bmdb.DB, name fleet.ProviderName, machines []fleet.MachineID, install *fleet.InstallRequest) error {
	return StockAt(ctx, db, name, machines, install, func(int) string { return "here" })
}

// StockAt is Stock, with the location of the n-th machine.
func StockAt(
	ctx context.Context, db *bmdb.DB, name fleet.ProviderName, machines []fleet.MachineID, install *fleet.InstallRequest, location func(n int) string,
) error {
	if err := db.RegisterProvider(ctx, name, "test", 0); err != nil {
		return err
	}
	s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "stock", Host: "host0", PID: 1, Lease: time.Minute})
	if err != nil {
		return err
	}
	c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Providers: []fleet.ProviderName{name}, Limit: 1})
	if err != nil {
		return err
	}
	if len(c.Works) != 1 {
		return fmt.Errorf("provider %s is not due", name)
	}
	n := 0
	for len(machines) > 0 {
		batch := machines[:min(len(machines), 100)]
		machines = machines[len(batch):]
		wanted := make([]bmdb.NewIntent, len(batch))
		for i, id := range batch {
			wanted[i] = bmdb.NewIntent{Capacity: fleet.CapacityID("c-" + id), Machine: id, Token: fleet.NewToken(), Install: install}
		}
		var opened []fleet.Intent
		changes := []bmdb.Change{bmdb.OpenIntents(0, wanted, &opened)}
		for _, i := range wanted {
			provided := providedAs(fleet.ProviderStatusActive, i.Capacity)
			provided.Location = location(n)
			n++
			changes = append(changes, bmdb.CloseIntentProvided(i.Machine, fleet.ProviderID("id-"+i.Capacity), provided))
		}
		if err := c.Works[0].Note(ctx, changes...); err != nil {
			return err
		}
	}
	if err := c.Works[0].Finish(ctx); err != nil {
		return err
	}
	return s.Close(ctx, "stocked")
}

// RecoveryHold returns what stops recovery; nil when nothing does.
func RecoveryHold(ctx context.Context, db *bmdb.DB) (*fleet.RecoveryHold, error) {
	s, err := db.Summary(ctx)
	return s.RecoveryHold, err
}

// Held returns what a session holds, which may have ended.
func Held(ctx context.Context, db *bmdb.DB, session fleet.SessionID) ([]bmdb.HeldLane, error) {
	rows, err := db.Sessions(ctx, true)
	for _, s := range rows {
		if s.ID == session {
			return s.Held, err
		}
	}
	return nil, err
}
