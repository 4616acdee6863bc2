package verb

import (
	"fmt"
	"slices"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Kept fails where the machine is not ours any more, or will not be: the provider does not have it,
// or it is being given back.
func Kept(r fleet.Record) error {
	switch open := r.OpenOperation(); {
	case r.Gone():
		return fleet.Errorf(fleet.KindConflict, "machine %s is gone at %s: %s", r.Name(), r.Provider, lifecycle.EndOfMissing(r))
	case open != nil && open.Operation.GivesBack():
		return fleet.Errorf(fleet.KindConflict, "machine %s is being given back (%s, asked for by %s)%s", r.Name(), open.Operation, open.Actor, orWithdraw(r))
	}
	return nil
}

// Askable returns the number of the operation that was asked for already, where asking once more
// changes nothing, and fails where the operation makes no sense now. What the policy asked for
// gives way to a person: it ends when the provider does not give the machine up any more.
func Askable(r fleet.Record, o fleet.Operation) (already int64, err error) {
	switch open := r.OpenOperation(); {
	case open == nil || open.Operation != o:
	case open.Actor == fleet.ActorPolicy && !r.OperationAccepted():
		r.Operation = nil
	default:
		return open.Number, nil
	}
	return 0, Operable(r, o)
}

// Operable fails where an operation makes no sense now.
func Operable(r fleet.Record, o fleet.Operation) error {
	if err := Kept(r); err != nil {
		return err
	}
	switch {
	case r.Provided == nil || r.ProviderID == "":
		return fleet.Errorf(fleet.KindConflict, "machine %s is not created yet", r.Name())
	case !slices.Contains(r.Levers, o.Lever()):
		return fleet.Errorf(fleet.KindUnsupported, "provider %s cannot %s", r.Provider, o.Of("machines"))
	case lifecycle.SwitchedOff(r) != "" && (o == fleet.OperationReboot || o == fleet.OperationPowerCycle):
		// A newer operation takes the place of this one, and nothing but it says that the machine is to
		// stay off.
		return fleet.Errorf(fleet.KindConflict, "machine %s was %s: switch it on (`ironherd machine power on %s --reason WHY`)",
			r.Name(), lifecycle.SwitchedOff(r), r.ID)
	case o == fleet.OperationReboot && r.HalfCycled():
		// A provider refuses to reboot what is off, and nothing else would switch the machine on.
		return fleet.Errorf(fleet.KindConflict, "machine %s is being switched off and on, which restarts it, too%s", r.Name(), orWithdraw(r))
	case r.InMaintenance():
		return fleet.Errorf(fleet.KindConflict, "machine %s is in maintenance by %s: end it first (`ironherd machine maintenance end %s --reason WHY`)",
			r.Name(), r.Maintenance.Actor, r.ID)
	}
	return nil
}

// Withdrawable fails unless there is an operation that the provider has not accepted.
func Withdrawable(r fleet.Record) error {
	open := r.OpenOperation()
	switch {
	case open == nil:
		return fleet.Errorf(fleet.KindConflict, "no operation of machine %s is under way", r.Name())
	case r.OperationAccepted():
		return fleet.Errorf(fleet.KindConflict, "%s has accepted the %s of machine %s already", r.Provider, open.Operation, r.Name())
	}
	return nil
}

// orWithdraw says how the operation that is under way is called off; "" where it cannot be.
func orWithdraw(r fleet.Record) string {
	if Withdrawable(r) != nil {
		return ""
	}
	return fmt.Sprintf("; `ironherd machine withdraw %s --reason WHY` calls that off", r.ID)
}

// CountsAsGivenUp reports whether the machine is given up, or was when the policy asked for what is
// under way: it replaces no others.
func CountsAsGivenUp(r fleet.Record) bool {
	open := r.OpenOperation()
	return lifecycle.GivenUp(r) || open != nil && open.Actor == fleet.ActorPolicy
}

// CallsOff says which operation is called off because the verb asks for another; "": none is.
func CallsOff(v fleet.Verb, r fleet.Record) string {
	asked, is := v.Operation()
	if open := r.OpenOperation(); is && open != nil && open.Operation != asked {
		return fmt.Sprintf(", and the %s that %s asked for is called off%s", open.Operation, open.Actor, UnlessCarriedOut(r))
	}
	return ""
}

// UnlessCarriedOut says of an operation that is called off that the provider may do it all the
// same, because an attempt was begun; "" when none was.
func UnlessCarriedOut(r fleet.Record) string {
	if r.OpenOperation() != nil && r.CurrentOperationAttempt() != nil {
		return fmt.Sprintf(", unless %s carries out what it may have been asked for already", r.Provider)
	}
	return ""
}

// afterCallOff says what comes after an operation is called off that was begun; "" for nothing.
func afterCallOff(r fleet.Record) string {
	if r.HalfCycled() {
		return fmt.Sprintf("; because %s may have switched it off already, it is switched on", r.Provider)
	}
	return UnlessCarriedOut(r)
}

// mayStayOff says of an operation that a quarantine calls off what may be left of it; "": nothing.
func mayStayOff(r fleet.Record) string {
	if r.HalfCycled() {
		return fmt.Sprintf("; %s may have switched it off already: then it stays off until `ironherd machine power on %s --reason WHY`", r.Provider, r.ID)
	}
	return UnlessCarriedOut(r)
}

// afterRelease says what follows from a release: that bmdb keeps its capacity out of use.
func afterRelease(r fleet.Record) string {
	if r.Provided == nil || r.Provided.Capacity == "" {
		return ""
	}
	return fmt.Sprintf("; its capacity %s is not used again until `ironherd provider retry %s --capacity ID --reason WHY`",
		r.Provided.Capacity, r.Provider)
}

// afterReplacement says what follows from a replacement: when the same hardware may be used again.
func afterReplacement(r fleet.Record) string {
	switch {
	case r.Provided != nil && r.Provided.Capacity != "" && CountsAsGivenUp(r):
		return "; its capacity sits out `provisioner.penalty`, and then may be used again"
	case lifecycle.Listed(r):
		return "; the next pass may take the same host in again (quarantine the machine first if it is broken)"
	}
	return "; another one may be created at once, on the same hardware, too (quarantine this one first if it is broken)"
}
