package main

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// provider is where all machines are.
const provider = fleet.ProviderName("p")

// startSession starts a session that lasts an hour without being extended.
func startSession(ctx context.Context, db *bmdb.DB, component string) (*bmdb.Session, error) {
	return db.StartSession(ctx, bmdb.SessionOptions{Component: component, Host: "here", Lease: time.Hour})
}

// makeFleet makes machines that the provider has handed over, through the protocol. They are due
// for an agent.
func makeFleet(ctx context.Context, db *bmdb.DB, machines int) error {
	if err := db.RegisterProvider(ctx, provider, "test", 0); err != nil {
		return err
	}
	s, err := startSession(ctx, db, "provisioner")
	if err != nil {
		return err
	}
	c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
	if err != nil {
		return err
	}
	if len(c.Works) != 1 {
		return fmt.Errorf("the provider is not due")
	}
	work := c.Works[0]
	for made := 0; made < machines; {
		var opened []fleet.Intent
		var wanted []bmdb.NewIntent
		for i := range min(100, machines-made) {
			wanted = append(wanted, bmdb.NewIntent{
				Capacity: fleet.CapacityID(fmt.Sprint("c", made+i)), Machine: fleet.NewMachineID(), Token: fleet.NewToken(),
			})
		}
		if err := work.Note(ctx, bmdb.OpenIntents(0, wanted, &opened)); err != nil {
			return err
		}
		var changes []bmdb.Change
		for _, i := range opened {
			changes = append(changes, bmdb.CloseIntentProvided(i.Machine, fleet.ProviderID("id-"+i.Capacity), fleet.Provided{
				Status: fleet.ProviderStatusActive, Hostname: "h-" + string(i.Capacity), Address: netip.MustParseAddr("192.0.2.1"),
				Location: "here", Capacity: i.Capacity,
			}))
		}
		made += len(opened)
		if err := work.Note(ctx, changes...); err != nil {
			return err
		}
	}
	if err := work.Finish(ctx); err != nil {
		return err
	}
	return s.Close(ctx, "done")
}

// each does something with all works at once, as a loop with that many slots does.
func each(works []*bmdb.Work, do func(w *bmdb.Work) error) error {
	var wg sync.WaitGroup
	failed := make(chan error, len(works))
	for _, w := range works {
		wg.Go(func() {
			if err := do(w); err != nil {
				failed <- err
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed // nil when none did
}

// longBackoff outlasts every measurement.
var longBackoff = fleet.Backoff{Initial: 24 * time.Hour, Maximum: 24 * time.Hour}
