package bmdb

import (
	"context"
	"net/netip"
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
	// RefusedHostKey is fleet.HostKeys.Refused.
	RefusedHostKey string
}

// MachineDetails returns them, without first-boot data. KindNotFound.
func (db *DB) MachineDetails(ctx context.Context, machine fleet.MachineID) (MachineDetails, error) {
	return read(ctx, db.view, "machine", func(ctx context.Context, t *transaction) (MachineDetails, error) {
		m, err := t.load(ctx, machine)
		if err != nil {
			return MachineDetails{}, err
		}
		d := MachineDetails{Record: m.facts, Now: t.Now(), State: m.state.state, StateSince: instant(m.state.since)}
		if d.Environment, err = t.environment(ctx); err != nil {
			return d, err
		}
		keys, err := t.hostKeys(ctx, machine)
		if err != nil {
			return d, err
		}
		d.RefusedHostKey = keys.Refused
		if m.facts.Intent != nil {
			p, err := t.loadProvider(ctx, m.facts.Provider)
			if err != nil {
				return d, err
			}
			found, err := t.q.CountProviderDiscrepancies(ctx, statement.CountProviderDiscrepanciesParams{Provider: p.row.Name, MaxRows: CountedAtMost})
			if err != nil {
				return d, err
			}
			d.Environment.Paused, d.Environment.Discrepancies = p.facts.Paused, int(found)
			if failed, is := p.facts.Backoffs[fleet.ProcessProvision]; is {
				d.Environment.PassFailed = &failed
			}
		}
		parts, err := t.attendance(ctx)
		d.Environment.Missing, d.Environment.Unserved = parts.missing(), parts.unserved(m.facts.Provider)
		d.Environment.Abandoned = parts.checkUnserved(m.facts.Provider) == nil
		if err != nil || !d.Environment.Policy.LimitsRecovery() {
			return d, err
		}
		counted, err := t.counted(ctx, m.facts.Provider)
		d.Environment.UnderRecovery = len(counted)
		if there := placeOf(m); there.location != "" {
			d.Environment.UnderRecoveryThere = len(there.among(counted))
		}
		return d, err
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
		address, _ := netip.ParseAddr(p.Address) // invalid while there is none
		penalties[fleet.CapacityID(p.Capacity)] = Penalty{Until: instant(p.Until), Cause: p.Cause, Address: address}
	}
	return penalties, err
}
