package lifecycle

import (
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// operation decides about what people asked for, the end of a maintenance, and what the policy has
// done with machines that their provider gave up.
func (c judgement) operation() want {
	q, a, m := c.r.OpenOperation(), c.r.CurrentOperationAttempt(), c.r.Maintenance
	switch {
	case q == nil && m != nil && m.Until != nil && !m.Over:
		return dueAt(*m.Until, "the maintenance by %s ends", m.Actor)
	case q == nil && c.replaced():
		return c.replacement(c.r.Provided.At)
	case q == nil:
		return notWanted("nothing was asked for")
	case (a == nil || a.AcceptedAt == nil) && c.bootsUntil().After(c.now):
		return c.afterRestore(string(q.Operation), dueAt(c.bootsUntil(), "%s was asked for by %s: %s; it waits for the installed system to answer %s, until then at most",
			q.Operation, q.Actor, q.Reason, c.r.InstallRequest.SeenUp.Asks()))
	case a == nil && q.Actor == fleet.ActorPolicy && c.replaced():
		return c.replacement(q.At)
	case a == nil && q.Actor == fleet.ActorPolicy:
		return c.afterRestore(string(q.Operation), dueAt(q.At, "%s was asked for by %s, which does not want it any more", q.Operation, q.Actor))
	case a == nil:
		return c.afterRestore(string(q.Operation), dueAt(q.At, "%s was asked for by %s: %s", q.Operation, q.Actor, q.Reason))
	case a.AcceptedAt == nil:
		return c.afterRestore(string(q.Operation), dueAt(a.At, "attempt %d at %s was begun, and it is not known that %s has accepted it", a.Attempt, q.Operation, c.r.Provider))
	}
	if seen, ok := c.operationEvidence(); ok {
		return dueAt(*a.AcceptedAt, "%s is done: %s", q.Operation, seen)
	}
	next := *a.AcceptedAt
	if a.CheckedAt != nil {
		next = later(next, *a.CheckedAt)
	}
	return dueAt(next.Add(c.env.Policy.UpdateInterval), "%s was accepted at %s; waiting for %s", q.Operation,
		fleet.Instant(*a.AcceptedAt), EvidenceOf(q.Operation))
}

// bootsUntil is until when a system that was installed on the host of a list has to come up, as
// probes show, before that host is given back; zero: the host is not given back, or there is no
// such system. Nothing of ours is on one that has come up. One that boots lets nobody in who knows
// the host only as it was.
func (c judgement) bootsUntil() time.Time {
	if c.givenBack() == "" || c.unusable() != c.givenBack() || !Listed(c.r) || !c.awaitingBoot() || !c.probed() {
		return time.Time{}
	}
	return c.workedOn(c.r.InstallReport.At).Add(c.env.Policy.BootTimeout)
}

// GivenUp reports whether the hardware of the machine is not to be trusted: its provider has given
// it up, or it is in quarantine, by recovery or by a person.
func GivenUp(r fleet.Record) bool {
	return r.Provided != nil && r.Provided.Status == fleet.ProviderStatusFailed || r.Quarantine != nil
}

// QuarantinedByRecovery reports whether the machine is in quarantine because recovery had no other
// step left.
func QuarantinedByRecovery(r fleet.Record) bool {
	return r.Quarantine != nil && r.Repair != nil && r.Repair.Rung == fleet.RungQuarantine
}

// EvidenceOf says in words what shows that an operation had its effect.
func EvidenceOf(o fleet.Operation) string {
	switch o {
	case fleet.OperationReboot, fleet.OperationPowerCycle:
		return "a sign of life with another boot ID"
	case fleet.OperationPowerOn:
		return "the provider to say that it is on"
	case fleet.OperationPowerOff:
		return "the provider to say that it is off"
	case fleet.OperationRelease, fleet.OperationReplace:
	}
	return "the provider to say that it is gone"
}

// OperationEvidence returns what shows that the newest operation, which the provider has accepted,
// had its effect; false while nothing does.
func OperationEvidence(r fleet.Record, env fleet.Environment, now time.Time) (seen string, ok bool) {
	return judgement{r: r, env: env, now: now}.operationEvidence()
}

func (c judgement) operationEvidence() (string, bool) {
	q, a, p := c.r.Operation, c.r.CurrentOperationAttempt(), c.r.Provided
	if q == nil || a == nil || a.AcceptedAt == nil || p == nil {
		return "", false
	}
	switch q.Operation {
	case fleet.OperationPowerOff:
		return "the provider says that it is off", p.Status == fleet.ProviderStatusOff
	case fleet.OperationPowerOn:
		return "the provider says that it is on", p.Status == fleet.ProviderStatusActive
	case fleet.OperationRelease, fleet.OperationReplace:
		return "the provider does not have it any more", p.Status == fleet.ProviderStatusGone
	case fleet.OperationReboot, fleet.OperationPowerCycle:
	}
	s, seen := c.r.AgentStarted, c.r.AgentSeen
	other := func(bootID string, at time.Time) bool { return at.After(a.At) && bootID != "" && bootID != a.BootID }
	switch {
	case s != nil && other(s.BootID, s.At):
		return "an agent was started under another boot ID", true
	case seen != nil && other(seen.BootID, seen.LastAt) && !c.startedInBoot(a.BootID):
		return "the agent came back with another boot ID", true
	case c.installedCurrent():
		return "the provider has accepted it; nothing of ours runs on the installed system", true
	case c.r.Quarantine != nil:
		return "the provider has accepted it; in quarantine no agent is started", true
	}
	return "", false
}

// OperationShows returns until when an operation can show its effect that the provider has accepted
// at an instant; zero: there is no telling. The sign of a restart comes from an agent. So its time
// begins again with the return of a listener, without which nobody was heard.
func OperationShows(q fleet.Operation, at time.Time, env fleet.Environment) time.Time {
	switch lasts := env.Policy.OperationTimeout; {
	case !q.Restarts():
		return at.Add(lasts)
	case env.ListenerUpSince.IsZero() || env.Restored != "":
		return time.Time{}
	default:
		return judgement{env: env}.withRoom(later(at, env.ListenerUpSince).Add(lasts))
	}
}

// SwitchedOff says who switched the machine off; "" when nobody did, or when somebody switched it
// on again. A machine stays switched off that was off when an operation of a person came to nothing
// that took the place of the one before: a release, a replace, switching it on, or off once more.
// So does one that a power-off switches off which was given up before that.
func SwitchedOff(r fleet.Record) string { return judgement{r: r}.switchedOff() }

func (c judgement) switchedOff() string {
	q, a, p := c.r.Operation, c.r.CurrentOperationAttempt(), c.r.Provided
	switch {
	case q == nil:
	case c.switchedOnSince() || c.livedSince():
	case a != nil && a.AcceptedAt != nil && q.Operation == fleet.OperationPowerOff && !c.operationFailed():
		return fmt.Sprintf("switched off by %s: %s", q.Actor, q.Reason)
	case q.Actor == fleet.ActorPolicy || p == nil || !p.Status.Down():
	case c.operationFailed() && (q.Operation.GivesBack() || q.Operation.Switches()) && !p.At.After(c.r.OperationReport.At):
		return fmt.Sprintf("off already when the %s that %s asked for came to nothing", q.Operation, q.Actor)
	case c.offAfterAll():
		return fmt.Sprintf("switched off after all by the %s that %s asked for, which had come to nothing: %s", q.Operation, q.Actor, q.Reason)
	case c.wantedOff() && c.r.OpenOperation() != nil && p.Status == fleet.ProviderStatusOff && !p.At.After(q.At):
		return fmt.Sprintf("off already when %s asked for the %s: %s", q.Actor, q.Operation, q.Reason)
	}
	return ""
}

// offLate is how long after the end of a power-off that failed a machine may go off because of it.
const offLate = time.Hour

// offAfterAll reports whether the machine is off because of a power-off that had come to nothing,
// as far as can be known: its provider may have heard of it, the machine was heard for no long time
// afterwards, and recovery has not restarted it since. A host may shut down slowly. One that was
// not heard when that was asked for must be off soon.
func (c judgement) offAfterAll() bool {
	e, seen, step := c.r.OperationReport, c.r.AgentSeen, c.r.Repair
	if c.r.CurrentOperationAttempt() == nil || !c.wantedOff() || !c.operationFailed() || !c.r.Provided.Status.Down() {
		return false
	}
	late := e.At.Add(offLate)
	heard := seen != nil && seen.LastAt.After(c.r.Operation.At.Add(-c.silentAfter()))
	return (!heard && !c.r.Provided.At.After(late) || heard && !seen.LastAt.After(late)) &&
		(step == nil || !step.Rung.Restarts() || step.Refused || !step.At.After(e.At))
}

// wantedOff reports whether the newest operation is that a person wants the machine switched off,
// whatever came of it, and nobody has switched it on since.
func (c judgement) wantedOff() bool {
	q := c.r.Operation
	return q != nil && q.Operation == fleet.OperationPowerOff && q.Actor != fleet.ActorPolicy && !c.switchedOnSince() && !c.livedSince()
}

// switchedOnSince reports whether the provider has begun to say that the machine is on since the
// newest operation ended. Somebody has switched it on by other means then.
func (c judgement) switchedOnSince() bool {
	p, e := c.r.Provided, c.r.CurrentOperationReport()
	return p != nil && p.Status == fleet.ProviderStatusActive && e != nil && p.At.After(e.At)
}

// offLingers is how long something may be heard of a machine after its provider says that it is
// off, which some say as soon as they have asked the host to shut down.
const offLingers = 5 * time.Minute

// livedSince reports whether the machine has shown a sign of life since the newest operation ended,
// and went off only then. Somebody had switched it on, whatever its provider says now.
func (c judgement) livedSince() bool {
	r, p, e := c.r, c.r.Provided, c.r.CurrentOperationReport()
	if p == nil || e == nil {
		return false
	}
	off := e.At.Add(offLingers)
	// No agent is started on what is switched off.
	return p.At.After(off) &&
		(r.AgentStarted != nil && r.AgentStarted.At.After(e.At) || r.Installed != nil && r.Installed.At.After(off) ||
			r.Probe != nil && r.Probe.AnsweredAt.After(off))
}

// givenBack says who gives the machine back; "" when nobody does.
func (c judgement) givenBack() string {
	q := c.r.OpenOperation()
	if q == nil || !q.Operation.GivesBack() {
		return ""
	}
	return fmt.Sprintf("%s, asked for by %s: %s", q.Operation, q.Actor, q.Reason)
}

func (c judgement) operationFailed() bool {
	e := c.r.CurrentOperationReport()
	return e != nil && !e.OK
}

// inMaintenance says who works on the machine now; "" when nobody does.
func (c judgement) inMaintenance() string {
	m := c.r.Maintenance
	switch {
	case m == nil || m.Over:
		return ""
	case m.Until == nil:
		return fmt.Sprintf("maintenance by %s: %s; `ironherd machine maintenance end %s --reason WHY` ends it", m.Actor, m.Reason, c.r.ID)
	}
	return fmt.Sprintf("maintenance by %s until %s: %s", m.Actor, fleet.Instant(*m.Until), m.Reason)
}

// maintained makes what touches the host wait for the end of the maintenance.
func (c judgement) maintained(w want) want {
	m := c.r.Maintenance
	switch {
	case m == nil || m.Over || w.verdict != Due:
	case m.Until == nil:
		return waiting("%s", c.inMaintenance())
	case m.Until.After(w.dueAt):
		w.dueAt, w.reason = *m.Until, fmt.Sprintf("%s; %s", w.reason, c.inMaintenance())
	}
	return w
}
