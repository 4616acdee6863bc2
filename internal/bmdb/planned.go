package bmdb

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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
	goesOn := unstopped(r, lifecycle.MayStillCome(r, *t.env, t.Now()))
	planned = PlannedMachine{
		Machine: r.ID, Provider: r.Provider, State: judged.State, InUse: inUse(r), Does: doing(p, r, goesOn) + heldBack(p, judged.State),
		Destroys: destroying(p, r), Marked: marked(r), Unstopped: p.Verb == fleet.VerbBeginMaintenance && openAttempt(r) != nil,
		Overrules: overrules(p, r),
	}
	if r.Provided != nil {
		planned.Name = r.Provided.Hostname
	}
	planned.Name = cmp.Or(planned.Name, string(r.ID))
	planned.Requested, planned.Held = newestGeneration(r), heldGeneration(r)
	if r.Operation != nil {
		planned.Operation, planned.Operating = r.Operation.Number, r.OpenOperation() != nil
	}
	if role := doer(p.Verb); role != "" {
		parts, err := t.attendance(ctx)
		if err != nil {
			return PlannedMachine{}, nil, err
		}
		if slices.Contains(parts.unserved(r.Provider), role) {
			planned.Does += fmt.Sprintf(", when a control plane that has the role %s serves %s", role, r.Provider)
		}
	}
	switch refused = possible(p, r, t.Now()); {
	case refused != nil:
	case p.Verb == fleet.VerbBeginMaintenance:
		refused = t.checkEnd("maintenance", p.Until)
	case p.Verb == fleet.VerbMarkInstalled:
		refused = t.markable(r)
	case p.Verb == fleet.VerbForget:
		var unserved bool
		if unserved, refused, err = t.forgettable(ctx, r); unserved {
			planned.Destroys = fmt.Sprintf("our hold on it: no control plane serves %s, which may have it still; it is not given back, and what runs on it "+
				"goes on, unless another provider lists that host and takes it in anew", r.Provider)
		}
	}
	if err != nil {
		return PlannedMachine{}, nil, err
	}
	if refused != nil {
		planned.Refused = refused.Error()
	}
	return planned, refused, nil
}

// doer is the role that does what the verb asks for; "" where nothing is left to do.
func doer(verb fleet.Verb) fleet.Role {
	if _, is := verb.Operation(); is {
		return fleet.RoleOperations
	}
	switch verb {
	case fleet.VerbReinstall, fleet.VerbUnquarantine, fleet.VerbEndMaintenance: // begins with an agent
		return fleet.RoleInitializer
	}
	return ""
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
	case r.Installed == nil || r.Installed.ErasedAt != nil || a != nil && a.Generation > r.Installed.Generation:
		return ""
	case r.Installed.Attempt == 0:
		return r.Installed.Words()
	}
	return fmt.Sprintf("installed (generation %d)", r.Installed.Generation)
}

// doing says what happens to the machine, with what goes on, and what it takes the place of.
func doing(p Plan, r fleet.Record, goesOn string) string {
	does, instead := done(p, r, goesOn)+callsOff(p.Verb, r), "; it takes the place of the %s by %s: %s"
	switch q, m := r.Quarantine, r.Maintenance; {
	case p.Verb == fleet.VerbQuarantine && q != nil && q.Reason != p.Reason:
		does += fmt.Sprintf(instead, "quarantine", fleet.ShownActor(q.Actor), q.Reason)
	case p.Verb == fleet.VerbBeginMaintenance && m != nil && !m.Over && m.Reason != p.Reason:
		does += fmt.Sprintf(instead, "maintenance", fleet.ShownActor(m.Actor), m.Reason)
	}
	return does
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

// done says what the verb itself does to the machine, with what goes on all the same.
func done(p Plan, r fleet.Record, goesOn string) string {
	switch p.Verb {
	case fleet.VerbReboot:
		return fmt.Sprintf("%s reboots it", r.Provider)
	case fleet.VerbPowerOn:
		if off := lifecycle.SwitchedOff(r); off != "" {
			return fmt.Sprintf("%s switches it on, which was %s", r.Provider, off)
		}
		return fmt.Sprintf("%s switches it on", r.Provider)
	case fleet.VerbPowerOff:
		return fmt.Sprintf("%s switches it off", r.Provider)
	case fleet.VerbPowerCycle:
		return fmt.Sprintf("%s switches it off and on", r.Provider)
	case fleet.VerbRelease, fleet.VerbReplace:
		return fmt.Sprintf("it is given back to %s%s", r.Provider, afterGivenBack(p.Verb, r))
	case fleet.VerbWithdraw:
		if open := r.OpenOperation(); open != nil {
			return fmt.Sprintf("the %s that %s asked for is called off%s", open.Operation, open.Actor, afterCallOff(r))
		}
		return "the operation that was asked for is called off"
	case fleet.VerbReinstall:
		if eraseToo(r) != "" && !p.Install.RootDisk.Erase {
			return fmt.Sprintf("what runs on it ends, and %s is installed, unless its disk holds what no install of Ironherd has put there: that needs --erase",
				p.Install.Image.Label())
		}
		return fmt.Sprintf("%s is installed", p.Install.Image.Label())
	case fleet.VerbCancelInstall:
		return "the install is called off"
	case fleet.VerbQuarantine:
		if open := r.OpenOperation(); open != nil && withdrawable(r) == nil {
			return fmt.Sprintf("all work is kept away from it, and the %s that %s asked for is called off%s%s", open.Operation, open.Actor, mayStayOff(r), goesOn)
		}
		return "all work is kept away from it" + goesOn
	case fleet.VerbUnquarantine:
		if q := r.Quarantine; q != nil {
			return fmt.Sprintf("the quarantine by %s ends (%s), and work comes back to it", fleet.ShownActor(q.Actor), q.Reason)
		}
		return "work comes back to it"
	case fleet.VerbBeginMaintenance:
		if p.Until != nil {
			return fmt.Sprintf("nothing touches its host until %s%s", fleet.Instant(*p.Until), goesOn)
		}
		return fmt.Sprintf("nothing touches its host until `ironherd machine maintenance end %s --reason WHY`%s", r.ID, goesOn)
	case fleet.VerbEndMaintenance:
		if m := r.Maintenance; maintained(r) == nil {
			return fmt.Sprintf("the maintenance by %s ends (%s), and its host is looked after again", fleet.ShownActor(m.Actor), m.Reason)
		}
		return "its host is looked after again"
	case fleet.VerbMarkInstalled:
		return "an operating system runs there, and is left alone" + answersRequest(r)
	case fleet.VerbForget:
		const does = "what is known of it is removed here, but for its history"
		if open := r.OpenOperation(); open != nil && open.Operation == fleet.OperationRelease {
			return does + afterGivenBack(fleet.VerbRelease, r)
		}
		return does
	}
	return ""
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
		all = append(all, mayCome+" may still come")
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

// afterGivenBack says what follows where the machine is given back: keepOut, in words.
func afterGivenBack(verb fleet.Verb, r fleet.Record) string {
	known := r.Provided != nil && r.Provided.Capacity != ""
	switch {
	case verb == fleet.VerbRelease && known:
		return fmt.Sprintf("; its capacity %s is not used again until `ironherd provider retry %s --capacity ID --reason WHY`",
			r.Provided.Capacity, r.Provider)
	case verb == fleet.VerbRelease:
		return ""
	case known && givenUp(r):
		return "; its capacity sits out `provisioner.penalty`, and then may be used again"
	case lifecycle.Listed(r):
		return "; the next pass may take the same host in again (quarantine the machine first if it is broken)"
	}
	return "; another one may be created at once, on the same hardware, too (quarantine this one first if it is broken)"
}

// heldBack says for what an install waits that is asked for in that state; "" for nothing.
func heldBack(p Plan, state fleet.State) string {
	switch {
	case p.Verb != fleet.VerbReinstall:
	case state == fleet.StateQuarantined:
		return " when its quarantine ends"
	case state == fleet.StateMaintenance:
		return " when its maintenance ends"
	}
	return ""
}

// destroying says what is lost; "" when nothing is.
func destroying(p Plan, r fleet.Record) string {
	use := inUse(r)
	switch p.Verb {
	case fleet.VerbRelease, fleet.VerbReplace:
		return "the machine is not ours any more, and what is on it is lost"
	case fleet.VerbReinstall:
		return "what is on the disk"
	case fleet.VerbCancelInstall:
		if a := r.InstallAttempt; a != nil && r.InstallRequest != nil && a.Generation == r.InstallRequest.Generation {
			return "what the disk holds is undefined, unless nothing was written yet"
		}
	case fleet.VerbForget:
		if use != "" && lifecycle.Listed(r) {
			return "our hold on it: if a list has its host, under whatever id, the host is taken in anew, and what runs on it ends"
		}
	case fleet.VerbReboot, fleet.VerbPowerOff, fleet.VerbPowerCycle:
		switch {
		case openAttempt(r) != nil:
			return "the install ends half-written"
		case use != "":
			return "the system that runs is interrupted"
		}
	}
	return ""
}

// possible returns why it cannot be done; nil: it can.
func possible(p Plan, r fleet.Record, now time.Time) error {
	if o, is := p.Verb.Operation(); is {
		_, err := askable(r, o)
		return err
	}
	switch p.Verb {
	case fleet.VerbWithdraw:
		return withdrawable(r)
	case fleet.VerbReinstall, fleet.VerbMarkInstalled:
		return kept(r)
	case fleet.VerbCancelInstall:
		return cancellable(r)
	case fleet.VerbQuarantine:
		return quarantinable(r, p.Actor)
	case fleet.VerbUnquarantine:
		return quarantined(r)
	case fleet.VerbBeginMaintenance:
		return maintainable(r, p.Actor, p.Until, now)
	case fleet.VerbEndMaintenance:
		return maintained(r)
	}
	return nil
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
	changed, err := t.applyVerb(ctx, actor, p, m, does, outcome)
	if err != nil {
		return err
	}
	outcome.Outcome = OutcomeDone
	if !changed || p.Verb == fleet.VerbForget {
		return nil
	}
	return t.rewriteSubjects(ctx, []fleet.Subject{{Machine: m.record.ID}})
}

func (t *transaction) applyVerb(ctx context.Context, actor string, p Plan, m *machineRecord, does string, outcome *PlanOutcome) (changed bool, err error) {
	if o, is := p.Verb.Operation(); is {
		outcome.Operation, changed, err = t.wantOperation(ctx, m, actor, o, p.Reason)
		outcome.Detail = fmt.Sprintf("%s is asked for (operation %d)%s", o, outcome.Operation, callsOff(p.Verb, m.record))
		if !changed {
			outcome.Detail = fmt.Sprintf("%s was asked for already (operation %d)", o, outcome.Operation)
		}
		return changed, err
	}
	switch p.Verb {
	case fleet.VerbWithdraw:
		outcome.Detail = does
		return true, t.callOff(ctx, m, actor, p.Reason)
	case fleet.VerbReinstall:
		t.under = fmt.Sprintf("; %s%s", p.Reason, p.mark())
		outcome.Generation, changed, err = t.wantInstall(ctx, m, actor, *p.Install, true)
		outcome.Detail = fmt.Sprintf("install generation %d is wanted", outcome.Generation)
		return changed, err
	case fleet.VerbCancelInstall:
		handedOut, changed, err := t.cancelInstall(ctx, m, actor, p.Reason)
		outcome.Detail = "the install is called off before anything was handed to an agent"
		if handedOut {
			outcome.Detail = "the install is called off; its agent is told with its next heartbeat, and says whether anything was written"
		}
		return changed, err
	case fleet.VerbQuarantine:
		outcome.Detail = "it is in quarantine; " + does
		return true, t.quarantine(ctx, m, actor, p.Reason)
	case fleet.VerbUnquarantine:
		outcome.Detail = does
		return true, t.unquarantine(ctx, m, actor, p.Reason)
	case fleet.VerbBeginMaintenance:
		outcome.Detail = "it is in maintenance; " + does
		return true, t.beginMaintenance(ctx, m, actor, p.Until, p.Reason)
	case fleet.VerbEndMaintenance:
		outcome.Detail = does
		return true, t.endMaintenance(ctx, m, actor, p.Reason)
	case fleet.VerbMarkInstalled:
		outcome.Detail = "it is installed"
		return true, t.markInstalled(ctx, m, actor, p.Reason)
	case fleet.VerbForget:
		outcome.Detail = "it is forgotten"
		return true, t.forget(ctx, m, actor, p.Reason)
	}
	return false, fleet.Errorf(fleet.KindInvalid, "no verb is named %q", p.Verb)
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
