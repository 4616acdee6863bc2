package verb

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// CheckEnd fails when the end of what somebody asks for is past.
func CheckEnd(of string, until *time.Time, now time.Time) error {
	if until != nil && !until.After(now) {
		return fleet.Errorf(fleet.KindInvalid, "the end of the %s, %s, is past", of, fleet.Instant(*until))
	}
	return nil
}

// Shortens reports whether what lasts until then would end before what lasts until was. Nil: it has
// no end.
func Shortens(was, until *time.Time) bool { return until != nil && (was == nil || until.Before(*was)) }

// maintainable fails while an operation is under way, and during a maintenance of another person,
// or a longer one of the same: who ends this one would not know of that.
func maintainable(x Case) error {
	r := x.Record
	switch m := r.Maintenance; {
	case !r.InMaintenance():
	case fleet.OfAnother(m.Actor, x.Actor) && (m.Until == nil || m.Until.After(x.Now)):
		by := fleet.ShownActor(m.Actor)
		if m.Until != nil {
			by += " until " + fleet.Instant(*m.Until)
		}
		return fleet.Errorf(fleet.KindConflict, "machine %s is in maintenance already by %s: %s; `ironherd machine maintenance end %s --reason WHY` ends that first",
			r.Name(), by, m.Reason, r.ID)
	case Shortens(m.Until, x.Until):
		return fleet.Errorf(fleet.KindConflict, "machine %s is in maintenance for longer by %s: %s; `ironherd machine maintenance end %s --reason WHY` ends that first",
			r.Name(), fleet.ShownActor(m.Actor), m.Reason, r.ID)
	}
	if open := r.OpenOperation(); open != nil {
		return fleet.Errorf(fleet.KindConflict, "%s, asked for by %s, is under way on machine %s: wait for its end%s", open.Operation, open.Actor, r.Name(), orWithdraw(r))
	}
	return nil
}

// maintained fails unless the machine is in maintenance.
func maintained(r fleet.Record) error {
	if !r.InMaintenance() {
		return fleet.Errorf(fleet.KindConflict, "machine %s is not in maintenance", r.Name())
	}
	return nil
}

// quarantinable fails where another person has quarantined the machine: who ends that for one would
// not know of the other. It fails where the machine is not created yet, too, and says what keeps it
// from being: a quarantine does not.
func quarantinable(r fleet.Record, actor string) error {
	if q := r.Quarantine; q != nil && fleet.OfAnother(q.Actor, actor) {
		return fleet.Errorf(fleet.KindConflict, "machine %s is in quarantine already by %s: %s; `ironherd machine unquarantine %s --reason WHY` ends that first",
			r.Name(), fleet.ShownActor(q.Actor), q.Reason, r.ID)
	}
	i := r.Intent
	if i == nil {
		return nil
	}
	unless := ""
	if i.Calls > i.Rejected {
		unless = fmt.Sprintf(", unless %s creates it for the call that was made already", r.Provider)
	}
	return fleet.Errorf(fleet.KindConflict, "machine %s is not created yet: `ironherd provider pause %s --reason WHY` keeps it from being created%s",
		r.Name(), r.Provider, unless)
}

// quarantined fails unless the machine is in quarantine.
func quarantined(r fleet.Record) error {
	if r.Quarantine == nil {
		return fleet.Errorf(fleet.KindConflict, "machine %s is not in quarantine", r.Name())
	}
	return nil
}

// Forgettable returns why a machine cannot be forgotten: its provider has not said that it is gone,
// and can be asked. Abandoned: nobody can ask it, because no control plane serves it any more.
func Forgettable(r fleet.Record, s Service) (abandoned bool, refused error) {
	switch {
	case r.Gone():
		return false, nil
	case s.Abandoned:
		return true, nil
	case s.MayServe != nil:
		return false, s.MayServe
	}
	return false, mayBeThere(r)
}

// mayBeThere is why a machine is not forgotten that its provider may still have.
func mayBeThere(r fleet.Record) error {
	switch open := r.OpenOperation(); {
	case r.Intent != nil:
		return fleet.Errorf(fleet.KindConflict, "machine %s is not created yet, and provider %s may make it still: it goes by itself when "+
			"capacity %s is refused for good or is not free any more", r.Name(), r.Provider, r.Intent.Capacity)
	case open != nil && open.Operation.GivesBack():
		return fleet.Errorf(fleet.KindConflict, "provider %s has not said that machine %s is gone: its %s is under way",
			r.Provider, r.Name(), open.Operation)
	case slices.Contains(r.Levers, fleet.LeverRelease):
		return fleet.Errorf(fleet.KindConflict, "provider %s has not said that machine %s is gone: `ironherd machine release %s --reason WHY` gives it back",
			r.Provider, r.Name(), r.ID)
	}
	return fleet.Errorf(fleet.KindConflict, "provider %s has not said that machine %s is gone, and cannot be asked to take it back: remove it there",
		r.Provider, r.Name())
}
