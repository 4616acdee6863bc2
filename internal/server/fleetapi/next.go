package fleetapi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Who acts next on a machine.
const (
	whoOperator = "operator"
	whoProvider = "provider"
	whoAgent    = "agent"
	whoWe       = "ironherd"
	whoNobody   = "nobody"
)

// nextStep says who acts next on the machine, by when, and what a person would type.
func (j judged) nextStep() *fleetv1.NextStep {
	next := j.operators()
	if role := j.unserved(next); role != "" {
		what := lifecycle.NobodyServes(j.record.Provider, role)
		if j.env.Abandoned {
			what = lifecycle.NobodyServes(j.record.Provider)
		}
		what += ": start the control plane that has it in its configuration, or put it back there"
		if j.env.Abandoned {
			what += fmt.Sprintf("; where it is given up for good, `ironherd machine forget %s --reason WHY` removes the machine here", j.record.ID)
		}
		return &fleetv1.NextStep{Who: whoOperator, What: what}
	}
	if j.keptOff() {
		return &fleetv1.NextStep{Who: whoNobody, What: fmt.Sprintf("it stays off until `%s`", j.command("power on"))}
	}
	if next.what != "" {
		return &fleetv1.NextStep{Who: whoOperator, What: next.what, Command: next.command}
	}
	r := j.record
	if j.plan.State == fleet.StateMaintenance && r.Maintenance.Until != nil {
		if slices.Contains(j.env.Missing, fleet.RoleOperations) {
			return &fleetv1.NextStep{Who: whoOperator, What: nobodyHas(fleet.RoleOperations, "")}
		}
		return &fleetv1.NextStep{Who: whoWe, By: stamp(*r.Maintenance.Until), What: "the maintenance ends"}
	}
	d, wanted := j.plan.Next()
	if again := j.plan.For(fleet.ProcessRecovery); d.Verdict == lifecycle.Waiting && j.plan.State == fleet.StateSilent && again.Verdict.Scheduled() {
		d = again // what is waited for is overdue
		d.Deadline = false
	}
	role, waits := j.needed(d), d.Verdict != lifecycle.Running || !d.DueAt.After(j.now)
	switch {
	case !wanted:
		return &fleetv1.NextStep{Who: whoNobody, What: "nothing is wanted of this machine"}
	case d.Deadline && d.Verdict == lifecycle.Later:
		return &fleetv1.NextStep{Who: whoNobody, What: fmt.Sprintf("nothing is to be done now; %s, at %s at the earliest", d.Reason, clock(d.DueAt, j.now))}
	case waits && role == fleet.RoleAgentAPI && j.turnedAway():
		return &fleetv1.NextStep{Who: whoOperator, What: turnedAway(j.env, j.now) + ": `ironherd status` says what ends that, or that no listener is up"}
	case waits && slices.Contains(j.env.Missing, role):
		return &fleetv1.NextStep{Who: whoOperator, What: nobodyHas(role, "")}
	case d.Verdict == lifecycle.Waiting:
		return &fleetv1.NextStep{Who: j.waitedFor(d), What: d.Reason}
	case d.Process == fleet.ProcessInstall && r.InstallAttempt != nil && d.Verdict != lifecycle.Running:
		return &fleetv1.NextStep{Who: whoAgent, By: stamp(d.DueAt), What: d.Reason}
	}
	return &fleetv1.NextStep{Who: whoWe, By: stamp(d.DueAt), What: fmt.Sprintf("%s: %s", d.Process, d.Reason)}
}

// turnedAway reports whether agents get through to no listener, though one has said lately that it
// runs.
func (j judged) turnedAway() bool {
	return j.env.ListenerUpSince.IsZero() && j.now.Before(j.env.ListenerFullUntil)
}

// keptOff reports whether a person has the machine off, and nothing has been asked for since. That
// is no trouble, as status says, and nobody's turn. One that is off because nothing came of what
// somebody wanted of it is that person's.
func (j judged) keptOff() bool {
	q := j.record.Operation
	return j.plan.State == fleet.StateOff && q != nil && q.Operation == fleet.OperationPowerOff && j.record.OpenOperation() == nil
}

// unserved returns the role without which the machine does not get on, and that nobody has for its
// provider; "" where there is none, or where a person comes first, as operators tells.
func (j judged) unserved(next errand) fleet.Role {
	d, wanted := j.plan.Next()
	role := j.needed(d)
	switch {
	case j.plan.State == fleet.StateMaintenance && j.record.Maintenance.Until != nil, next.operation != "":
		role = fleet.RoleOperations
	case next.what != "" || !wanted:
		return ""
	}
	if !slices.Contains(j.env.Unserved, role) {
		return ""
	}
	return role
}

// needed is the role without which the process does not get on: where it waits for news of the
// provider, the one that brings them.
func (j judged) needed(d lifecycle.Decision) fleet.Role {
	switch {
	case d.Process == "":
		return ""
	case d.Process != fleet.ProcessAgentStart || d.Verdict != lifecycle.Waiting || j.env.Restored != "":
		return d.Process.Role()
	case j.record.Provided == nil:
		return fleet.RoleProvisioner
	}
	return fleet.RoleUpdater
}

// waitedFor is who must act before the process can.
func (j judged) waitedFor(d lifecycle.Decision) string {
	switch d.Process {
	case fleet.ProcessProvision, fleet.ProcessUpdate, fleet.ProcessAgentStart:
		return whoProvider
	case fleet.ProcessInstall:
		return whoAgent
	}
	return whoWe
}

// errand is what a person has to do, where only a person gets a machine on; zero: nobody has to.
type errand struct {
	what string
	// command is for it; "": there is none.
	command string
	// operation is what the command asks for, which somebody with the role operations carries out.
	operation fleet.Operation
}

// ask is the errand to ask for an operation of the machine.
func (j judged) ask(operation fleet.Operation, what string) errand {
	return errand{what, j.command(operation.Command()), operation}
}

// operators returns what a person has to do. The first of these that says something counts:
//
//  1. A host shows a key that is not the known one. No work gets past that in any state, and no
//     restart changes it.
//  2. The state of the machine asks for a person.
//  3. The database looks restored. What the state asks for can be asked for before; this then says
//     what it waits for.
func (j judged) operators() errand {
	if key := j.acceptHostKey(); key.what != "" {
		return key
	}
	if state := j.inState(); state.what != "" {
		return state
	}
	return j.acceptRestore()
}

// acceptHostKey is operators for a machine whose host has shown a key that is not the known one.
func (j judged) acceptHostKey() errand {
	then, shown := map[fleet.Process]string{
		fleet.ProcessAgentStart: "an agent is started",
		fleet.ProcessProbe:      "the installed system is asked again",
		fleet.ProcessOperation:  "the host is given back",
	}[j.refusedHostKey()]
	if !shown {
		return errand{}
	}
	return errand{command: j.command("host-key accept", j.hostKey), what: "that host key is accepted, if it is the right one, and " + then}
}

// refusedHostKey returns the process that would get on if the host had not shown a key that is not
// the known one; "" where none would. Recovery, where it is to act, acts without a person.
func (j judged) refusedHostKey() fleet.Process {
	scheduled := func(process fleet.Process) bool { return j.plan.For(process).Verdict.Scheduled() }
	// The host may have failed in another way since it showed that key: the cause of the last failure
	// then does not name its fingerprint.
	named := func(cause string) bool { return j.hostKey != "" && strings.Contains(cause, j.hostKey) }
	switch r := j.record; {
	case scheduled(fleet.ProcessRecovery):
	case scheduled(fleet.ProcessAgentStart) && named(r.Backoffs[fleet.ProcessAgentStart].Cause):
		return fleet.ProcessAgentStart
	case scheduled(fleet.ProcessProbe) && r.Probe != nil && !r.Probe.Answered() && named(r.Probe.Detail):
		return fleet.ProcessProbe
	case scheduled(fleet.ProcessOperation) && named(r.Backoffs[fleet.ProcessOperation].Cause):
		return fleet.ProcessOperation
	}
	return ""
}

// inState is operators by the state of the machine. An operation that was asked for comes first in
// the states after the case asked; those before it are told all the same, or look at it themselves.
func (j judged) inState() errand {
	r := j.record
	asked := r.OpenOperation() != nil
	switch state := j.plan.State; {
	case state == fleet.StateCreating:
		return j.whenCreating()
	case state == fleet.StateProvisioning:
		return j.whenProvisioning()
	case state == fleet.StateProvided && lifecycle.RefusesUs(r, j.env, j.now):
		return j.letUsIn()
	case state == fleet.StateUnreadable:
		return errand{command: "ironherd db check", what: "nothing that is asked for begins before what is recorded can be read: a newer version may have written it"}
	case state == fleet.StateFailed:
		return j.whenFailed()
	case state == fleet.StateSilent:
		return j.whenSilent(asked)
	case state == fleet.StateMaintenance && r.Maintenance.Until == nil:
		return errand{command: j.command("maintenance end"), what: "the maintenance ends"}
	case state == fleet.StateRefused && (!asked || !lifecycle.NotUnderstood(r)):
		return j.whenRefused()
	case asked:
		return errand{}
	case state == fleet.StateQuarantined || state == fleet.StateMissing:
		return j.setAside()
	case state == fleet.StateUnreachable:
		return j.whenUnreachable()
	case state == fleet.StateOff: // where a person has switched it off, nobody has to: see keptOff
		return j.ask(fleet.OperationPowerOn, "the machine is switched on")
	}
	return errand{}
}

// whenCreating is operators for a machine that is to be created.
func (j judged) whenCreating() errand {
	r := j.record
	switch p := j.env.Paused; {
	case r.Intent == nil:
	case p != nil:
		return errand{
			command: fmt.Sprintf("ironherd provider resume %s --reason WHY", r.Provider),
			what:    fmt.Sprintf("machines are created at %s again, which %s paused: %s", r.Provider, p.Actor, p.Reason),
		}
	case j.env.Discrepancies > 0:
		return errand{command: "ironherd discrepancy list", what: fmt.Sprintf("it says what ends each; then machines are created at %s again", r.Provider)}
	}
	return errand{}
}

// whenProvisioning is operators for a machine that its provider makes ready, and that stays off.
func (j judged) whenProvisioning() errand {
	switch restart := lifecycle.RestartOperation(j.record); {
	case !lifecycle.StaysOff(j.record, j.env, j.now):
		return errand{}
	case restart != "":
		return j.ask(restart, "the machine is switched on")
	}
	return errand{what: fmt.Sprintf("%s cannot switch it on: switch it on yourself", j.record.Provider)}
}

// letUsIn is operators for a machine whose host refuses us.
func (j judged) letUsIn() errand {
	return errand{command: "ironherd machine retry " + string(j.record.ID), what: "once the host lets the control plane in, an agent is started; why it does not is told at agent-start"}
}

// whenFailed is operators for a machine that its provider has given up.
func (j judged) whenFailed() errand {
	r, d := j.record, j.plan.For(fleet.ProcessOperation)
	hold := j.env.RecoveryHold
	switch released := slices.Contains(r.Levers, fleet.LeverRelease); {
	case lifecycle.HeardGivenUp(r, j.env, j.now) != "":
		return j.ask(fleet.OperationReplace, fmt.Sprintf("%s gave it up, and it is heard, so a person decides: the machine is given back, and another one may be created", r.Provider))
	case d.Verdict == lifecycle.Waiting && j.env.Restored == "" && hold != nil && hold.Until == nil && r.OpenOperation() == nil:
		return errand{command: "ironherd recovery resume", what: fmt.Sprintf("the policy has the machine replaced when recovery goes on, which %s stopped: %s", fleet.ShownActor(hold.Actor), hold.Reason)}
	case d.Verdict != lifecycle.NotWanted:
		return errand{}
	case released && r.InMaintenance():
		return errand{command: j.command("maintenance end"), what: fmt.Sprintf("the maintenance ends; then `%s` gives the machine back", j.command("replace"))}
	case released:
		return j.ask(fleet.OperationReplace, "the machine is given back, and another one may be created")
	}
	return errand{what: fmt.Sprintf("%s cannot be asked to take the machine back: remove it there", r.Provider)}
}

// whenSilent is operators for a silent machine. Recovery gets it on, unless nothing but starting an
// agent is tried, or somebody has stopped recovery.
func (j judged) whenSilent(asked bool) errand {
	refuses := lifecycle.RefusesUs(j.record, j.env, j.now)
	restart := lifecycle.RestartOperation(j.record)
	switch starts := lifecycle.OnlyStarts(j.record, j.env, j.now); {
	case starts && refuses:
		return j.letUsIn()
	case starts && !asked && restart != "":
		return j.ask(restart, "the machine is restarted; an agent is started as soon as it answers")
	case starts && !asked:
		return errand{what: fmt.Sprintf("%s cannot restart it: restart it yourself; an agent is started as soon as it answers", j.record.Provider)}
	case j.stopped():
		hold := j.env.RecoveryHold
		return errand{command: "ironherd recovery resume", what: fmt.Sprintf("recovery goes on, which %s stopped: %s", fleet.ShownActor(hold.Actor), hold.Reason)}
	}
	return errand{}
}

// stopped reports whether recovery would take its next step on the machine in time, had nobody
// stopped it without an end.
func (j judged) stopped() bool {
	env := j.env
	if h := env.RecoveryHold; h == nil || h.Until != nil {
		return false
	}
	env.RecoveryHold = nil
	return lifecycle.Decide(j.record, env, j.now).For(fleet.ProcessRecovery).Verdict.Scheduled()
}

// whenRefused is operators for a machine whose agent has refused an install.
func (j judged) whenRefused() errand {
	r := j.record
	switch restart := lifecycle.RestartOperation(r); {
	case !lifecycle.NotUnderstood(r):
		return errand{command: lifecycle.Overwrite(r), what: "the disk is overwritten" + untilThen(r)}
	case lifecycle.MayNotBoot(r):
		return errand{command: lifecycle.Overwrite(r), what: "the agent writes the disk if that asks for nothing new; nothing may boot from it, and then no agent is started after a restart" +
			untilThen(r)}
	case restart != "":
		return j.ask(restart, "the machine is restarted, and another agent is started on it"+untilThen(r))
	}
	return errand{what: fmt.Sprintf("%s cannot restart it: restart it yourself, and another agent is started on it", r.Provider) + untilThen(r)}
}

// untilThen says what runs on a machine whose agent has refused an install; "" where that is not
// known. An agent in place looks at the disks before it jumps into memory for an install.
func untilThen(r fleet.Record) string {
	switch {
	case lifecycle.InMemory(r):
		return "; until then the agent waits in memory, and the system on the disk does not run"
	case lifecycle.InPlace(r):
		return "; until then the system that the agent was started in goes on running"
	}
	return ""
}

// setAside is operators for a machine that is in quarantine, or that its provider does not have any
// more.
func (j judged) setAside() errand {
	switch missing := j.plan.State == fleet.StateMissing; {
	case missing && lifecycle.Listed(j.record):
		return errand{command: "ironherd discrepancy list", what: fmt.Sprintf("it says what ends that; only where the host is given up, or is to be installed anew, "+
			"`%s` removes the machine here", j.command("forget"))}
	case missing:
		return errand{command: j.command("forget"), what: "the machine is removed here"}
	}
	return errand{command: j.command("unquarantine"), what: j.unquarantined()}
}

// unquarantined says what comes of the end of the quarantine. Where recovery has given the machine
// up, that is the same ladder again; a provider that can restart machines can also take this one
// back. A list of hosts cannot, unless the host answers.
func (j judged) unquarantined() string {
	r := j.record
	if !lifecycle.QuarantinedByRecovery(r) {
		return "work comes back to the machine"
	}
	what := "work comes back to the machine, and recovery begins anew with the steps that it has tried"
	if taken := lifecycle.StepsTaken(r.Repair.Steps); taken != "" {
		what += ": " + taken
	}
	if slices.Contains(r.Levers, fleet.LeverRelease) && lifecycle.RestartOperation(r) != "" && !r.InMaintenance() {
		what += fmt.Sprintf("; if its hardware is broken, `%s` gives it back instead, and another one may be created", j.command("replace"))
	}
	return what
}

// whenUnreachable is operators for an installed system that does not answer.
func (j judged) whenUnreachable() errand {
	switch restart := lifecycle.RestartOperation(j.record); {
	case lifecycle.ReinstalledElsewhere(j.record):
		return errand{command: j.command("mark-installed"), what: "what runs there now is left alone; " +
			fmt.Sprintf("`ironherd machine install %s --image IMAGE --reinstall --erase --reason WHY` destroys it", j.record.ID)}
	case restart == fleet.OperationPowerOn:
		return j.ask(restart, "the machine is switched on; nothing is done to it otherwise")
	case restart != "":
		return j.ask(restart, "the machine is restarted; nothing is done to it otherwise")
	}
	return errand{what: fmt.Sprintf("%s cannot restart it: restart it yourself", j.record.Provider)}
}

// acceptRestore is operators for a machine on which nothing is done because the database looks
// restored or copied. Nothing is to be done on an installed one of which nothing was asked.
func (j judged) acceptRestore() errand {
	if j.env.Restored == "" || j.plan.State == fleet.StateInstalled && !j.operationWaits() {
		return errand{}
	}
	return errand{what: "what is to be done waits because the database looks restored or copied: " + toAccept}
}

// operationWaits reports whether what was asked for has not been accepted by the provider yet, and
// is held back.
func (j judged) operationWaits() bool {
	a := j.record.CurrentOperationAttempt()
	accepted := a != nil && a.AcceptedAt != nil
	return j.plan.For(fleet.ProcessOperation).Verdict == lifecycle.Waiting && !accepted
}

// toAccept is what a person does about a database that looks restored or copied. It is no command
// to be typed at once: what is held back may be wrong by now, and the embedded database is in use.
const toAccept = "look first at what providers and hosts have (ops/database.md in the docs); then, on the control plane's host, and with it stopped where the " +
	"database is the embedded one, `ironherd db accept-restore` accepts it where nothing would go on, and else shows what would, which " +
	"`ironherd db accept-restore --yes` has go on"

// command is what a person types to have that done to the machine.
func (j judged) command(verb string, more ...string) string {
	return fmt.Sprintf("ironherd machine %s %s --reason WHY", verb, strings.Join(append([]string{string(j.record.ID)}, more...), " "))
}

// tell puts a next step into a sentence of its own; "" for one that the summary says already.
func tell(n *fleetv1.NextStep, now time.Time) string {
	switch {
	case n.GetWho() == whoOperator && n.GetCommand() == "":
		return fmt.Sprintf(" It is your turn: %s.", n.GetWhat())
	case n.GetWho() == whoOperator:
		return fmt.Sprintf(" It is your turn: `%s` (%s).", n.GetCommand(), n.GetWhat())
	case n.GetWho() == whoNobody || n.GetBy() == nil:
		return ""
	case n.GetBy().AsTime().After(now) && n.GetWho() == whoAgent:
		return fmt.Sprintf(" Its agent acts next, by %s.", clock(n.GetBy().AsTime(), now))
	}
	return ""
}
