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
		m, machine := c.machine.record.Maintenance, c.work.Subject.Machine
		if m == nil || m.Over || m.Until == nil || m.Until.After(t.Now()) {
			return fleet.Errorf(fleet.KindConflict, "the maintenance of machine %s does not end now", machine)
		}
		c.record(t, machine, fleet.EventMaintenanceEnded, "its time is over")
		t.forgetFailures(c.machine.record)
		return t.q.EndMaintenance(ctx, statement.EndMaintenanceParams{Until: micros(*m.Until), Machine: string(machine)})
	}}
}

// beginMaintenance keeps everything away from the host of a machine that is maintainable, until
// then or until endMaintenance, and voids whatever is being done to it (rule 8).
func (t *transaction) beginMaintenance(ctx context.Context, m *machineRecord, actor string, until *time.Time, reason string) error {
	err := t.q.PutMaintenance(ctx, statement.PutMaintenanceParams{
		Machine: string(m.record.ID), At: micros(t.Now()), Until: microsPointer(until), Actor: actor, Reason: reason,
	})
	if err != nil {
		return err
	}
	t.revoke(m, actor, "maintenance: "+reason)
	detail := reason
	if until != nil {
		detail += "; until " + fleet.Instant(*until)
	}
	t.recordEvent(fleet.Subject{Machine: m.record.ID}, actor, "", fleet.EventMaintenanceBegun, detail)
	return nil
}

// checkEnd fails when the end of what somebody asks for is past.
func (t *transaction) checkEnd(of string, until *time.Time) error {
	if until != nil && !until.After(t.Now()) {
		return fleet.Errorf(fleet.KindInvalid, "the end of the %s, %s, is past", of, fleet.Instant(*until))
	}
	return nil
}

// shortens reports whether what lasts until then would end before what lasts until was. Nil: it has
// no end.
func shortens(was, until *time.Time) bool { return until != nil && (was == nil || until.Before(*was)) }

// maintainable fails while an operation is under way, and during a maintenance of another person,
// or a longer one of the same: who ends this one would not know of that.
func maintainable(r fleet.Record, actor string, until *time.Time, now time.Time) error {
	switch m := r.Maintenance; {
	case m == nil || m.Over:
	case anothers(m.Actor, actor) && (m.Until == nil || m.Until.After(now)):
		by := fleet.ShownActor(m.Actor)
		if m.Until != nil {
			by += " until " + fleet.Instant(*m.Until)
		}
		return fleet.Errorf(fleet.KindConflict, "machine %s is in maintenance already by %s: %s; `ironherd machine maintenance end %s --reason WHY` ends that first",
			r.Name(), by, m.Reason, r.ID)
	case shortens(m.Until, until):
		return fleet.Errorf(fleet.KindConflict, "machine %s is in maintenance for longer by %s: %s; `ironherd machine maintenance end %s --reason WHY` ends that first",
			r.Name(), fleet.ShownActor(m.Actor), m.Reason, r.ID)
	}
	if open := r.OpenOperation(); open != nil {
		return fleet.Errorf(fleet.KindConflict, "%s, asked for by %s, is under way on machine %s", open.Operation, open.Actor, r.Name())
	}
	return nil
}

// endMaintenance ends the one that is under way. Agents are started, and recovery works, as if
// nothing had failed before. But the steps of the ladder that were taken count on, so that a
// machine that is maintained again and again, and fails in between, still gets to the end of it.
func (t *transaction) endMaintenance(ctx context.Context, m *machineRecord, actor string, reason string) error {
	t.recordEvent(fleet.Subject{Machine: m.record.ID}, actor, "", fleet.EventMaintenanceEnded, reason)
	t.forgetFailures(m.record)
	return t.q.EndMaintenance(ctx, statement.EndMaintenanceParams{Until: micros(t.Now()), Machine: string(m.record.ID)})
}

// excuseSilence makes the silence of a machine count from now on. It records a maintenance that has
// ended now, because silence before the end of a maintenance does not count. While a maintenance is
// under way it does nothing: the end of that one will do the same.
func (t *transaction) excuseSilence(ctx context.Context, r fleet.Record, actor, reason string) error {
	if maintained(r) == nil {
		return nil
	}
	machine, now := string(r.ID), t.Now()
	err := t.q.PutMaintenance(ctx, statement.PutMaintenanceParams{Machine: machine, At: micros(now), Until: micros(now), Actor: actor, Reason: reason})
	if err != nil {
		return err
	}
	return t.q.EndMaintenance(ctx, statement.EndMaintenanceParams{Until: micros(now), Machine: machine})
}

// maintained fails unless the machine is in maintenance.
func maintained(r fleet.Record) error {
	if r.Maintenance == nil || r.Maintenance.Over {
		return fleet.Errorf(fleet.KindConflict, "machine %s is not in maintenance", r.Name())
	}
	return nil
}
