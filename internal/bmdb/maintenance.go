package bmdb

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// MaintenanceOver records that the time of a maintenance is over. What failed before it counts no
// more, as where a person ends it (endMaintenance).
func MaintenanceOver() Change {
	return Change{apply: func(ctx context.Context, t *transaction, c *commit) error {
		m, machine := c.machine.facts.Maintenance, c.work.Subject.Machine
		if m == nil || m.Over || m.Until == nil || m.Until.After(t.Now()) {
			return fleet.Errorf(fleet.KindConflict, "the maintenance of machine %s does not end now", machine)
		}
		c.addHistory(t, machine, fleet.EventMaintenanceEnded, "its time is over")
		t.forgetFailures(c.machine.facts)
		return t.q.EndMaintenance(ctx, statement.EndMaintenanceParams{Until: micros(*m.Until), Machine: string(machine)})
	}}
}

// beginMaintenance keeps everything away from the host of a machine, where that is possible, until
// then or until endMaintenance, and voids whatever is being done to it (rule 8).
func (t *transaction) beginMaintenance(ctx context.Context, m *machineRecord, actor string, until *time.Time, reason string) error {
	err := t.q.PutMaintenance(ctx, statement.PutMaintenanceParams{
		Machine: string(m.facts.ID), At: micros(t.Now()), Until: microsPointer(until), Actor: actor, Reason: reason,
	})
	if err != nil {
		return err
	}
	t.revoke(m, actor, "maintenance: "+reason)
	detail := reason
	if until != nil {
		detail += "; until " + fleet.Instant(*until)
	}
	t.addEvent(fleet.Subject{Machine: m.facts.ID}, actor, "", fleet.EventMaintenanceBegun, detail)
	return nil
}

// endMaintenance ends the one that is under way. Agents are started, and recovery works, as if
// nothing had failed before. But the steps of the ladder that were taken count on, so that a
// machine that is maintained again and again, and fails in between, still gets to the end of it.
func (t *transaction) endMaintenance(ctx context.Context, m *machineRecord, actor string, reason string) error {
	t.addEvent(fleet.Subject{Machine: m.facts.ID}, actor, "", fleet.EventMaintenanceEnded, reason)
	t.forgetFailures(m.facts)
	return t.q.EndMaintenance(ctx, statement.EndMaintenanceParams{Until: micros(t.Now()), Machine: string(m.facts.ID)})
}

// excuseSilence makes the silence of a machine count from now on. It records a maintenance that has
// ended now, because silence before the end of a maintenance does not count. While a maintenance is
// under way it does nothing: the end of that one will do the same.
func (t *transaction) excuseSilence(ctx context.Context, r fleet.Record, actor, reason string) error {
	if r.InMaintenance() {
		return nil
	}
	machine, now := string(r.ID), t.Now()
	err := t.q.PutMaintenance(ctx, statement.PutMaintenanceParams{Machine: machine, At: micros(now), Until: micros(now), Actor: actor, Reason: reason})
	if err != nil {
		return err
	}
	return t.q.EndMaintenance(ctx, statement.EndMaintenanceParams{Until: micros(now), Machine: machine})
}
