package bmdb

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// MachineDetails is a machine with all that its decisions depend on, read in one snapshot:
// lifecycle.Decide(Record, Environment, Now).
type MachineDetails struct {
	Record      fleet.Record
	Environment fleet.Environment
	Now         time.Time
	// State is the one that is stored and filtered by, since StateSince. It may lag behind what
	// lifecycle says by the time that passed since the last write of facts.
	State      fleet.State
	StateSince time.Time
}

// MachineDetails returns them, without first-boot data. KindNotFound.
func (db *DB) MachineDetails(ctx context.Context, machine fleet.MachineID) (MachineDetails, error) {
	return read(ctx, db.view, "machine", func(ctx context.Context, t *transaction) (MachineDetails, error) {
		m, err := t.load(ctx, machine)
		if err != nil {
			return MachineDetails{}, err
		}
		d := MachineDetails{Record: m.record, Now: t.Now(), State: m.state.state, StateSince: instant(m.state.since)}
		if d.Environment, err = t.environment(ctx); err != nil || !limits(d.Environment.Policy, fleet.ProcessRecovery) {
			return d, err
		}
		holders, err := t.limitedHolders(ctx, fleet.ProcessRecovery, m.record.Provider)
		d.Environment.UnderRecovery = len(holders)
		if there := placeOf(m); there.location != "" {
			d.Environment.UnderRecoveryThere = len(there.among(holders))
		}
		return d, err
	})
}

// HeldLane is one lease of a session.
type HeldLane struct {
	Process fleet.Process
	Subject fleet.Subject
	Epoch   fleet.Epoch
	Since   time.Time
}

// HeldLanes lists what a session holds, at most limit of it: providers, then machines, in the order
// of their IDs. It reads all machines.
func (db *DB) HeldLanes(ctx context.Context, session fleet.SessionID, limit int) ([]HeldLane, error) {
	return read(ctx, db.view, "list leases", func(ctx context.Context, t *transaction) (held []HeldLane, err error) {
		providers, err := t.q.ListProviderLanesHeld(ctx, string(session))
		if err != nil {
			return held, err
		}
		for _, r := range providers {
			held = append(held, HeldLane{
				Process: fleet.Process(r.Process), Subject: fleet.Subject{Provider: fleet.ProviderName(r.Provider)},
				Epoch: fleet.Epoch(r.Epoch), Since: instant(r.Since),
			})
		}
		machines, err := t.q.ListMachinesHeld(ctx, statement.ListMachinesHeldParams{Session: string(session), MaxRows: int64(limit)})
		for _, r := range machines {
			held = append(held, HeldLane{
				Process: fleet.Process(r.Process), Subject: fleet.Subject{Machine: fleet.MachineID(r.ID)}, Epoch: fleet.Epoch(r.Epoch),
				Since: instant(r.Since),
			})
		}
		held = held[:min(len(held), limit)]
		return held, err
	})
}

// Penalties returns the capacity of a provider that sits out a penalty.
func (db *DB) Penalties(ctx context.Context, provider fleet.ProviderName) (map[fleet.CapacityID]Penalty, error) {
	return read(ctx, db.view, "list penalties", func(ctx context.Context, t *transaction) (map[fleet.CapacityID]Penalty, error) {
		return t.penalties(ctx, provider)
	})
}

func (t *transaction) penalties(ctx context.Context, provider fleet.ProviderName) (map[fleet.CapacityID]Penalty, error) {
	rows, err := t.q.ListPenalties(ctx, statement.ListPenaltiesParams{Provider: string(provider), Now: micros(t.Now())})
	penalties := make(map[fleet.CapacityID]Penalty, len(rows))
	for _, p := range rows {
		penalties[fleet.CapacityID(p.Capacity)] = Penalty{Until: instant(p.Until), Cause: p.Cause}
	}
	return penalties, err
}
