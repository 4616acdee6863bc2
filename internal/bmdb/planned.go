package bmdb

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// planned is what the plan does to the machine as it is now, and why it cannot be done; nil: it
// can.
func (t *transaction) planned(ctx context.Context, p Plan, m *machineRecord) (planned PlannedMachine, refused, err error) {
	judged, err := t.judge(ctx, m)
	if err != nil {
		return PlannedMachine{}, nil, err
	}
	r := m.record
	v := verbOf(p.Verb)
	x := target{t: t, plan: p, m: m, r: r, state: judged.State, goesOn: unstopped(r, t.mayCome(r, p.Verb))}
	planned = PlannedMachine{
		Machine: r.ID, Provider: r.Provider, State: judged.State, InUse: inUse(r), Does: v.does(x), Marked: marked(r),
		Unstopped: p.Verb == fleet.VerbBeginMaintenance && openAttempt(r) != nil, Overrules: overrules(p, r),
	}
	if r.Provided != nil {
		planned.Name = r.Provided.Hostname
	}
	planned.Name = cmp.Or(planned.Name, string(r.ID))
	planned.Requested, planned.Held = newestGeneration(r), heldGeneration(r)
	if r.Operation != nil {
		planned.Operation, planned.Operating = r.Operation.Number, r.OpenOperation() != nil
	}
	if v.doer != "" {
		parts, err := t.attendance(ctx)
		if err != nil {
			return PlannedMachine{}, nil, err
		}
		if slices.Contains(parts.unserved(r.Provider), v.doer) {
			planned.Does += fmt.Sprintf(", when a control plane that has the role %s serves %s", v.doer, r.Provider)
		}
	}
	if v.destroys != nil {
		planned.Destroys = v.destroys(r)
	}
	if v.possible != nil {
		refused = v.possible(x)
	}
	if p.Verb == fleet.VerbForget {
		var unserved bool
		if unserved, refused, err = t.forgettable(ctx, r); err != nil {
			return PlannedMachine{}, nil, err
		}
		if unserved {
			planned.Destroys = fmt.Sprintf("our hold on it: no control plane serves %s, which may have it still; it is not given back, and what runs on it "+
				"goes on, unless another provider lists that host and takes it in anew", r.Provider)
		}
	}
	if refused != nil {
		planned.Refused = refused.Error()
	}
	return planned, refused, nil
}

// marked changes with every maintenance, quarantine and cancel.
func marked(r fleet.Record) (sum int64) {
	if r.Maintenance != nil {
		sum += micros(r.Maintenance.At)
	}
	if r.Quarantine != nil {
		sum += micros(r.Quarantine.At)
	}
	if r.InstallCancel != nil {
		sum += micros(r.InstallCancel.At)
	}
	return sum
}

// inUse says what runs on the machine, or is being installed on it.
func inUse(r fleet.Record) string {
	q, a, rep := r.InstallRequest, r.InstallAttempt, r.InstallReport
	open := openAttempt(r)
	switch {
	case open != nil:
		return fmt.Sprintf("installing (generation %d, attempt %d)", open.Generation, open.Attempt)
	case q != nil && rep != nil && rep.OK && rep.Generation == q.Generation && (r.Installed == nil || r.Installed.Generation < q.Generation):
		return fmt.Sprintf("booting what was installed (generation %d)", q.Generation)
	case lifecycle.ReinstalledElsewhere(r):
		return "reinstalled at its provider, for somebody else"
	case r.Installed == nil || r.Installed.ErasedAt != nil || a != nil && a.Generation > r.Installed.Generation:
		return ""
	case r.Installed.Attempt == 0:
		return r.Installed.Words()
	}
	return fmt.Sprintf("installed (generation %d)", r.Installed.Generation)
}

// overrules reports whether the verb undoes what another person has asked for: an operation that is
// under way, or that the machine is switched off. A quarantine may: it is there for what must stop
// at once.
func overrules(p Plan, r fleet.Record) bool {
	switch open := r.OpenOperation(); {
	case callsOff(p.Verb, r) != "", p.Verb == fleet.VerbWithdraw && open != nil:
		return anothers(open.Actor, p.Actor)
	case p.Verb == fleet.VerbPowerOn && lifecycle.SwitchedOff(r) != "":
		return anothers(r.Operation.Actor, p.Actor)
	}
	return false
}

// callsOff says which operation is called off because the verb asks for another; "": none is.
func callsOff(verb fleet.Verb, r fleet.Record) string {
	asked, is := verb.Operation()
	if open := r.OpenOperation(); is && open != nil && open.Operation != asked {
		return fmt.Sprintf(", and the %s that %s asked for is called off%s", open.Operation, open.Actor, unlessCarriedOut(r))
	}
	return ""
}

// mayCome says what the provider may do yet although the verb keeps work away from the machine, and
// what a power cycle by recovery leaves that is cut between off and on; "": nothing.
func (t *transaction) mayCome(r fleet.Record, v fleet.Verb) string {
	what := lifecycle.MayStillCome(r, *t.env, t.Now())
	if what == "" {
		return ""
	}
	what += " may still come"
	r.Quarantine = nil // which ends recovery, and not what it has begun
	if !lifecycle.UnderRecovery(r, *t.env, t.Now()) || r.Repair.Rung != fleet.RungPowerCycle {
		return what
	}
	until := fmt.Sprintf("until `ironherd machine power on %s --reason WHY`", r.ID)
	if v == fleet.VerbBeginMaintenance {
		until = "while the maintenance lasts"
	}
	return fmt.Sprintf("%s; %s may have switched it off already: then it stays off %s", what, r.Provider, until)
}

// unstopped says what goes on although work is kept away from the machine: what the provider was
// asked for, and an install that the agent works at; "": nothing does.
func unstopped(r fleet.Record, mayCome string) string {
	var all []string
	if accepted(r) {
		open := r.OpenOperation()
		all = append(all, fmt.Sprintf("the %s that %s asked for, which %s has accepted, goes on", open.Operation, open.Actor, r.Provider))
	}
	if mayCome != "" {
		all = append(all, mayCome)
	}
	if a := openAttempt(r); a != nil {
		all = append(all, fmt.Sprintf("attempt %d of install generation %d, which was handed out to its agent, goes on, and restarts the machine when it is done; "+
			"`ironherd machine install %s --cancel --reason WHY` ends it", a.Attempt, a.Generation, r.ID))
	}
	if len(all) == 0 {
		return ""
	}
	return ", but " + strings.Join(all, ", and ")
}

// afterRelease says what follows from a release: keepOut, in words.
func afterRelease(r fleet.Record) string {
	if r.Provided == nil || r.Provided.Capacity == "" {
		return ""
	}
	return fmt.Sprintf("; its capacity %s is not used again until `ironherd provider retry %s --capacity ID --reason WHY`",
		r.Provided.Capacity, r.Provider)
}

// afterReplacement says what follows from a replacement: keepOut, in words.
func afterReplacement(r fleet.Record) string {
	switch {
	case r.Provided != nil && r.Provided.Capacity != "" && givenUp(r):
		return "; its capacity sits out `provisioner.penalty`, and then may be used again"
	case lifecycle.Listed(r):
		return "; the next pass may take the same host in again (quarantine the machine first if it is broken)"
	}
	return "; another one may be created at once, on the same hardware, too (quarantine this one first if it is broken)"
}

// unlessCarriedOut says of an operation that is called off that the provider may do it all the
// same, because an attempt was begun; "" when none was.
func unlessCarriedOut(r fleet.Record) string {
	if open, a := r.OpenOperation(), r.OperationAttempt; open != nil && a != nil && a.Number == open.Number {
		return fmt.Sprintf(", unless %s carries out what it may have been asked for already", r.Provider)
	}
	return ""
}

// afterCallOff says what comes after an operation is called off that was begun; "" for nothing.
func afterCallOff(r fleet.Record) string {
	if halfCycled(r) {
		return fmt.Sprintf("; because %s may have switched it off already, it is switched on", r.Provider)
	}
	return unlessCarriedOut(r)
}

// mayStayOff says of an operation that a quarantine calls off what may be left of it; "": nothing.
func mayStayOff(r fleet.Record) string {
	if halfCycled(r) {
		return fmt.Sprintf("; %s may have switched it off already: then it stays off until `ironherd machine power on %s --reason WHY`", r.Provider, r.ID)
	}
	return unlessCarriedOut(r)
}

// kept fails where the machine is not ours any more, or will not be: the provider does not have it,
// or it is being given back.
func kept(r fleet.Record) error {
	switch open := r.OpenOperation(); {
	case r.Provided != nil && r.Provided.Status == fleet.ProviderStatusGone:
		return fleet.Errorf(fleet.KindConflict, "machine %s is gone at %s: %s", r.Name(), r.Provider, lifecycle.EndOfMissing(r))
	case open != nil && open.Operation.GivesBack():
		return fleet.Errorf(fleet.KindConflict, "machine %s is being given back (%s, asked for by %s)", r.Name(), open.Operation, open.Actor)
	}
	return nil
}

// differs says what has changed since the plan was made, so that it is not true any more; "":
// nothing has.
func (planned *PlannedMachine) differs(now PlannedMachine) string {
	switch {
	case planned.State != now.State:
		return fmt.Sprintf("it was %s when the plan was made, and is %s now", planned.State, now.State)
	case planned.InUse != now.InUse:
		return fmt.Sprintf("it was %s when the plan was made, and is %s now", cmp.Or(planned.InUse, "not in use"), cmp.Or(now.InUse, "not in use"))
	case planned.Requested != now.Requested:
		return fmt.Sprintf("install generation %d was asked for since the plan was made", now.Requested)
	case planned.Held != now.Held:
		return fmt.Sprintf("a disk was found to hold install generation %d since the plan was made", now.Held)
	case planned.Operation != now.Operation:
		return fmt.Sprintf("operation %d was asked for since the plan was made", now.Operation)
	case planned.Operating != now.Operating:
		return fmt.Sprintf("operation %d has ended since the plan was made", now.Operation)
	case planned.Marked != now.Marked:
		return "a quarantine, a maintenance or an install was begun or called off since the plan was made"
	}
	return ""
}

// apply does to a locked machine what planned has just found possible, and what it said happens.
func (t *transaction) apply(ctx context.Context, actor string, p Plan, m *machineRecord, does string, outcome *PlanOutcome) error {
	t.under = p.mark()
	outcome.Outcome, outcome.Detail = OutcomeDone, does
	changed, err := verbOf(p.Verb).apply(ctx, target{t: t, plan: p, m: m, r: m.record}, actor, outcome)
	if err != nil || !changed || p.Verb == fleet.VerbForget {
		return err
	}
	return t.rewriteSubjects(ctx, []fleet.Subject{{Machine: m.record.ID}})
}

// number fills in the numbers of what was asked for under the plan before: those that follow what
// it was made for. The machine may have newer ones by now.
func (o *PlanOutcome) number(p Plan, planned *PlannedMachine) {
	if _, is := p.Verb.Operation(); is {
		o.Operation = planned.Operation + 1
	}
	if p.Verb == fleet.VerbReinstall {
		o.Generation = max(planned.Requested, planned.Held) + 1
	}
}
