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
	command, what := j.operators()
	if role := j.unserved(command, what); role != "" {
		what = lifecycle.NobodyServes(j.record.Provider, role)
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
	if what != "" {
		return &fleetv1.NextStep{Who: whoOperator, What: what, Command: command}
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
func (j judged) unserved(command, what string) fleet.Role {
	d, wanted := j.plan.Next()
	role := j.needed(d)
	switch {
	case j.plan.State == fleet.StateMaintenance && j.record.Maintenance.Until != nil, asksForOperation(command):
		role = fleet.RoleOperations
	case what != "" || !wanted:
		return ""
	}
	if !slices.Contains(j.env.Unserved, role) {
		return ""
	}
	return role
}

// asksForOperation reports whether a command asks for an operation of a machine, which somebody who
// has the role operations carries out.
func asksForOperation(command string) bool {
	return slices.ContainsFunc(fleet.Verbs(), func(v fleet.Verb) bool {
		_, is := v.Operation()
		return is && strings.HasPrefix(command, "ironherd machine "+strings.ReplaceAll(string(v), "-", " ")+" ")
	})
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

// operators returns what a person has to do, where only a person gets the machine on, and the
// command for it; both empty where nobody has to. The first of these that says something counts:
//
//  1. A host shows a key that is not the known one. No work gets past that in any state, and no
//     restart changes it.
//  2. The state of the machine asks for a person.
//  3. The database looks restored. What the state asks for can be asked for before; this then says
//     what it waits for.
func (j judged) operators() (command, what string) {
	if command, what = j.acceptHostKey(); what != "" {
		return command, what
	}
	if command, what = j.inState(); what != "" {
		return command, what
	}
	return j.acceptRestore()
}

// acceptHostKey is operators for a machine whose host has shown a key that is not the known one.
func (j judged) acceptHostKey() (command, what string) {
	then, shown := map[fleet.Process]string{
		fleet.ProcessAgentStart: "an agent is started",
		fleet.ProcessProbe:      "the installed system is asked again",
		fleet.ProcessOperation:  "the host is given back",
	}[j.refusedHostKey()]
	if !shown {
		return "", ""
	}
	return j.command("host-key accept", j.hostKey), "that host key is accepted, if it is the right one, and " + then
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
func (j judged) inState() (command, what string) {
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
		return "ironherd db check", "nothing that is asked for begins before what is recorded can be read: a newer version may have written it"
	case state == fleet.StateFailed:
		return j.whenFailed()
	case state == fleet.StateSilent:
		return j.whenSilent(asked)
	case state == fleet.StateMaintenance && r.Maintenance.Until == nil:
		return j.command("maintenance end"), "the maintenance ends"
	case state == fleet.StateRefused && (!asked || !lifecycle.NotUnderstood(r)):
		return j.whenRefused()
	case asked:
		return "", ""
	case state == fleet.StateQuarantined || state == fleet.StateMissing:
		return j.setAside()
	case state == fleet.StateUnreachable:
		return j.whenUnreachable()
	case state == fleet.StateOff: // where a person has switched it off, nobody has to: see keptOff
		return j.command("power on"), "the machine is switched on"
	}
	return "", ""
}

// whenCreating is operators for a machine that is to be created.
func (j judged) whenCreating() (command, what string) {
	r := j.record
	switch p := j.env.Paused; {
	case r.Intent == nil:
	case p != nil:
		return fmt.Sprintf("ironherd provider resume %s --reason WHY", r.Provider),
			fmt.Sprintf("machines are created at %s again, which %s paused: %s", r.Provider, p.Actor, p.Reason)
	case j.env.Discrepancies > 0:
		return "ironherd discrepancy list", fmt.Sprintf("it says what ends each; then machines are created at %s again", r.Provider)
	}
	return "", ""
}

// whenProvisioning is operators for a machine that its provider makes ready, and that stays off.
func (j judged) whenProvisioning() (command, what string) {
	switch restart := lifecycle.RestartVerb(j.record); {
	case !lifecycle.StaysOff(j.record, j.env, j.now):
		return "", ""
	case restart != "":
		return j.command(restart), "the machine is switched on"
	}
	return "", fmt.Sprintf("%s cannot switch it on: switch it on yourself", j.record.Provider)
}

// letUsIn is operators for a machine whose host refuses us.
func (j judged) letUsIn() (command, what string) {
	return "ironherd machine retry " + string(j.record.ID), "once the host lets the control plane in, an agent is started; why it does not is told at agent-start"
}

// whenFailed is operators for a machine that its provider has given up.
func (j judged) whenFailed() (command, what string) {
	r, d := j.record, j.plan.For(fleet.ProcessOperation)
	hold := j.env.RecoveryHold
	switch released := slices.Contains(r.Levers, fleet.LeverRelease); {
	case lifecycle.HeardGivenUp(r, j.env, j.now) != "":
		return j.command("replace"), fmt.Sprintf("%s gave it up, and it is heard, so a person decides: the machine is given back, and another one may be created", r.Provider)
	case d.Verdict == lifecycle.Waiting && j.env.Restored == "" && hold != nil && hold.Until == nil && r.OpenOperation() == nil:
		return "ironherd recovery resume", fmt.Sprintf("the policy has the machine replaced when recovery goes on, which %s stopped: %s", fleet.ShownActor(hold.Actor), hold.Reason)
	case d.Verdict != lifecycle.NotWanted:
		return "", ""
	case released && r.InMaintenance():
		return j.command("maintenance end"), fmt.Sprintf("the maintenance ends; then `%s` gives the machine back", j.command("replace"))
	case released:
		return j.command("replace"), "the machine is given back, and another one may be created"
	}
	return "", fmt.Sprintf("%s cannot be asked to take the machine back: remove it there", r.Provider)
}

// whenSilent is operators for a silent machine. Recovery gets it on, unless nothing but starting an
// agent is tried, or somebody has stopped recovery.
func (j judged) whenSilent(asked bool) (command, what string) {
	refuses := lifecycle.RefusesUs(j.record, j.env, j.now)
	restart := lifecycle.RestartVerb(j.record)
	switch starts := lifecycle.OnlyStarts(j.record, j.env, j.now); {
	case starts && refuses:
		return j.letUsIn()
	case starts && !asked && restart != "":
		return j.command(restart), "the machine is restarted; an agent is started as soon as it answers"
	case starts && !asked:
		return "", fmt.Sprintf("%s cannot restart it: restart it yourself; an agent is started as soon as it answers", j.record.Provider)
	case j.stopped():
		hold := j.env.RecoveryHold
		return "ironherd recovery resume", fmt.Sprintf("recovery goes on, which %s stopped: %s", fleet.ShownActor(hold.Actor), hold.Reason)
	}
	return "", ""
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
func (j judged) whenRefused() (command, what string) {
	r := j.record
	switch restart := lifecycle.RestartVerb(r); {
	case !lifecycle.NotUnderstood(r):
		return lifecycle.Overwrite(r), "the disk is overwritten" + untilThen(r)
	case lifecycle.MayNotBoot(r):
		return lifecycle.Overwrite(r), "the agent writes the disk if that asks for nothing new; nothing may boot from it, and then no agent is started after a restart" +
			untilThen(r)
	case restart != "":
		return j.command(restart), "the machine is restarted, and another agent is started on it" + untilThen(r)
	}
	return "", fmt.Sprintf("%s cannot restart it: restart it yourself, and another agent is started on it", r.Provider) + untilThen(r)
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
func (j judged) setAside() (command, what string) {
	switch missing := j.plan.State == fleet.StateMissing; {
	case missing && lifecycle.Listed(j.record):
		return "ironherd discrepancy list", fmt.Sprintf("it says what ends that; only where the host is given up, or is to be installed anew, "+
			"`%s` removes the machine here", j.command("forget"))
	case missing:
		return j.command("forget"), "the machine is removed here"
	}
	return j.command("unquarantine"), j.unquarantined()
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
	if slices.Contains(r.Levers, fleet.LeverRelease) && lifecycle.RestartVerb(r) != "" && !r.InMaintenance() {
		what += fmt.Sprintf("; if its hardware is broken, `%s` gives it back instead, and another one may be created", j.command("replace"))
	}
	return what
}

// whenUnreachable is operators for an installed system that does not answer.
func (j judged) whenUnreachable() (command, what string) {
	switch restart := lifecycle.RestartVerb(j.record); {
	case lifecycle.ReinstalledElsewhere(j.record):
		return j.command("mark-installed"), "what runs there now is left alone; " +
			fmt.Sprintf("`ironherd machine install %s --image IMAGE --reinstall --erase --reason WHY` destroys it", j.record.ID)
	case restart == "power on":
		return j.command(restart), "the machine is switched on; nothing is done to it otherwise"
	case restart != "":
		return j.command(restart), "the machine is restarted; nothing is done to it otherwise"
	}
	return "", fmt.Sprintf("%s cannot restart it: restart it yourself", j.record.Provider)
}

// acceptRestore is operators for a machine on which nothing is done because the database looks
// restored or copied. Nothing is to be done on an installed one of which nothing was asked.
func (j judged) acceptRestore() (command, what string) {
	if j.env.Restored == "" || j.plan.State == fleet.StateInstalled && !j.operationWaits() {
		return "", ""
	}
	return "", "what is to be done waits because the database looks restored or copied: " + toAccept
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
