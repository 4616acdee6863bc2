package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// A restart on purpose, by a person or by recovery, takes a provider a while. Until then the agent
// from before is heard, and says nothing of the restart:
//
//	asked for ─► heard with the same boot ID ─► restarted, without an agent ─► another boot ID
//	                                         └► never restarted: its time ends
//
// While a restart may still come, no install is handed out, because it would be cut half-written.
// An agent that falls silent meanwhile is started again soon, because the reason is known.

// restart is one that a person or recovery wants.
type restart struct {
	// begun is from before the call, and at when the provider had accepted it, as far as is known.
	begun, at time.Time
	// within what time from at it is expected.
	within time.Duration
	// bootID is the one from before; empty: nobody knew.
	bootID string
	words  string
	// tried: the provider may have refused it.
	tried bool
}

// restart returns the newest restart on purpose, as far as the provider has accepted that; false:
// there was none.
func (c judgement) restart() (newest restart, ok bool) {
	if a := c.r.CurrentOperationAttempt(); a != nil && a.AcceptedAt != nil && c.r.Operation.Operation.Restarts() {
		newest, ok = c.restartBy(a, fmt.Sprintf("the %s that %s asked for", c.r.Operation.Operation, c.r.Operation.Actor)), true
	}
	if r := c.r.Repair; r != nil && r.Rung.Restarts() && !r.Refused && r.At.After(newest.at) {
		newest = restart{
			begun: r.At, at: r.At, within: c.env.Policy.RecoveryStepTimeout, bootID: r.BootID,
			words: fmt.Sprintf("the %s by recovery", r.Rung), tried: true,
		}
		ok = true
	}
	return newest, ok
}

// restartBy returns the restart that an attempt at an operation brings, or may bring.
func (c judgement) restartBy(a *fleet.OperationAttempt, words string) restart {
	r := restart{begun: a.At, at: a.At, within: c.env.Policy.OperationTimeout, bootID: a.BootID, words: words}
	if a.AcceptedAt != nil {
		r.at = *a.AcceptedAt
	}
	return r
}

// leftOff reports whether a step is a power cycle that its provider did not refuse, and the machine
// is off since, or still.
func (c judgement) leftOff(step fleet.Repair) bool {
	p := c.r.Provided
	return step.Rung == fleet.RungPowerCycle && !step.Refused && p != nil && p.Status == fleet.ProviderStatusOff
}

// switchedOn decides about a machine that a step has left off: without a sign of life since then it
// is switched on, and if that does not help, the next rung follows. Where that waits, the reason
// says that the machine is off, because nobody else switches it on.
func (c judgement) switchedOn(step fleet.Repair, since time.Time, next fleet.Rung) want {
	timeout := c.env.Policy.RecoveryStepTimeout
	w := c.afterRestore("recovery", c.stopped(dueAt(c.silentFor(since, timeout),
		"%s and has left the machine off; without a sign of life %s later it is switched on, and if it stays off: %s",
		c.tried(step), timeout, c.step(next)), next))
	if w.verdict == Waiting {
		w.reason = fmt.Sprintf("%s and has left the machine off; %s", c.tried(step), w.reason)
	}
	return w
}

// leftOffInTime reports whether leftOff was found as soon as it is noticed. Later, somebody else
// may have switched the machine off.
func (c judgement) leftOffInTime(step fleet.Repair) bool {
	return c.leftOff(step) && !c.r.Provided.At.After(step.At.Add(c.env.Policy.RecoveryStepTimeout+c.env.Policy.UpdateSettledInterval))
}

// restartedAt is when the machine was last restarted on purpose; zero: never.
func (c judgement) restartedAt() time.Time {
	r, _ := c.restart()
	return r.at
}

// awaitedRestart returns the newest restart while nothing has shown another boot and it may still
// come; false: none is awaited. An agent that is heard after its time shows that it does not come.
func (c judgement) awaitedRestart() (restart, bool) {
	r, ok := c.restart()
	if !ok || c.bootedSince(r) || c.lastSign().After(r.at.Add(r.within)) {
		return restart{}, false
	}
	return r, true
}

// bootedSince reports whether an agent was started, or heard, under another boot ID since the
// restart was begun. Where nobody knew the one before, any start of an agent since is that.
func (c judgement) bootedSince(r restart) bool {
	s, seen := c.r.AgentStarted, c.r.AgentSeen
	if s != nil && s.At.After(r.begun) && (r.bootID == "" || otherBoot(s.BootID, r.bootID)) {
		return true
	}
	return !c.startedInBoot(r.bootID) && seen != nil && seen.LastAt.After(r.begun) && otherBoot(seen.BootID, r.bootID)
}

// startedInBoot reports whether the newest agent was started in the boot of that ID. When it is
// heard from another boot it has jumped into memory, which says nothing of a restart: no agent
// outlasts one.
func (c judgement) startedInBoot(bootID string) bool {
	s := c.r.AgentStarted
	return s != nil && s.BootID != "" && s.BootID == bootID
}

// otherBoot reports whether a boot ID is known to be another one than that before.
func otherBoot(bootID, before string) bool { return bootID != "" && before != "" && bootID != before }

// lastSign is when the agent in charge was last heard, or was started; zero: there is none.
func (c judgement) lastSign() time.Time {
	s := c.agent()
	switch {
	case s == nil:
		return time.Time{}
	case c.spoken():
		return later(s.At, c.r.AgentSeen.LastAt)
	}
	return s.At
}

// heardFor is how long after its last heartbeat an agent still counts as heard.
func (c judgement) heardFor() time.Duration {
	return max(c.restartPause(), 3*c.env.PromisedInterval)
}

// Speaks reports whether the agent in charge was heard so lately that it runs.
func Speaks(r fleet.Record, env fleet.Environment, now time.Time) bool {
	c := judgement{r: r, env: env, now: now}
	return c.spoken() && now.Before(r.AgentSeen.LastAt.Add(c.heardFor()))
}

// agentAfterRestart is when an agent is started on a machine of which a restart is awaited: soon
// after the restart, but not while the one before is heard.
func (c judgement) agentAfterRestart(r restart) want {
	sign := c.lastSign()
	if !sign.After(r.at) {
		what := "the machine was restarted"
		if r.tried {
			what = r.words + " was tried"
		}
		return dueAt(r.at.Add(c.restartPause()), "%s: the agent is started again", what)
	}
	again := dueAt(sign.Add(c.heardFor()), "%s may still come: the agent speaks with the same boot ID, and is started again when it falls silent", r.words)
	again.deadline = true
	return again
}

// installAfterRestart makes an install wait while a restart may cut it.
func (c judgement) installAfterRestart(w want) want {
	if q := c.r.OpenOperation(); q != nil && (q.Operation.Restarts() || q.Operation == fleet.OperationPowerOff) {
		return waiting("%s, asked for by %s, is under way: an install would be cut", q.Operation, q.Actor)
	}
	r, ok := c.lateRestart()
	if !ok || c.provenBoot(r) {
		return w
	}
	if end := r.at.Add(r.within); !c.lastSign().After(end) && end.After(w.dueAt) {
		return dueAt(end, "%s may still come: an install would be cut", r.words)
	}
	return w
}

// earlierAttempt returns the newest attempt at an operation, if that was asked for before the
// newest one, at which nothing that counts was tried yet; nil: there is none, or it has come. What
// it was at is not recorded any more.
func (c judgement) earlierAttempt() *fleet.OperationAttempt {
	a, rep := c.r.OperationAttempt, c.r.OperationReport
	if a == nil || c.r.Operation == nil || a.Number >= c.r.Operation.Number {
		return nil
	}
	if rep != nil && rep.Number == a.Number && rep.OK && a.AcceptedAt == nil {
		return nil // what the machine shows has ended it
	}
	return a
}

// lateRestart returns what restart does, or what may have happened since although nobody was told
// so: a restart or a power-off that a person asked for, also if something else was asked for since,
// or the restart by recovery after which the start of an agent was the newest step. When the last
// was is not recorded any more: it was within the time of a step before.
func (c judgement) lateRestart() (restart, bool) {
	newest, ok := c.restart()
	if a := c.earlierAttempt(); a != nil && a.At.After(newest.at) {
		newest, ok = c.restartBy(a, fmt.Sprintf("what was asked for before the %s", c.r.Operation.Operation)), true
	}
	if a := c.r.CurrentOperationAttempt(); a != nil && a.AcceptedAt == nil && a.At.After(newest.at) &&
		(c.r.Operation.Operation.Restarts() || c.r.Operation.Operation == fleet.OperationPowerOff) {
		newest, ok = c.restartBy(a, fmt.Sprintf("the %s that %s asked for", c.r.Operation.Operation, c.r.Operation.Actor)), true
	}
	step, within := c.r.Repair, c.env.Policy.RecoveryStepTimeout
	if step == nil || step.Rung != fleet.RungAgentStart || step.Refused || restarts(*step) == 0 || !step.At.After(newest.at) {
		return newest, ok
	}
	return restart{begun: step.At.Add(-within), at: step.At, within: within, bootID: step.BootID, words: "a restart by recovery"}, true
}

// tried says that a step of recovery was taken, or that the provider has refused it.
func (c judgement) tried(step fleet.Repair) string {
	if step.Refused && step.Rung.Restarts() {
		return fmt.Sprintf("%s refused the %s at %s", c.r.Provider, step.Rung, fleet.Instant(step.At))
	}
	return fmt.Sprintf("%s was tried at %s", step.Rung, fleet.Instant(step.At))
}

// provenBoot reports whether an agent since the restart can only be one of another boot. Where
// nobody knew the boot before, it may as well be of that one, and the restart be late.
func (c judgement) provenBoot(r restart) bool { return r.bootID != "" && c.bootedSince(r) }

// MayStillCome names what the provider was asked to do to the machine, and may do yet although
// nobody waits for it: a step of recovery, or an operation that was called off; "": nothing.
func MayStillCome(r fleet.Record, env fleet.Environment, now time.Time) string {
	r.Quarantine = nil // which ends recovery, and not what it has begun
	c := judgement{r: r, env: env, now: now}
	if UnderRecovery(r, env, now) {
		if r.Repair.Rung.Restarts() {
			return fmt.Sprintf("the %s by recovery", r.Repair.Rung)
		}
		return "a restart by recovery"
	}
	if a := c.earlierAttempt(); a != nil && a.AcceptedAt == nil && now.Before(a.At.Add(env.Policy.OperationTimeout)) &&
		!c.provenBoot(restart{begun: a.At, bootID: a.BootID}) {
		return fmt.Sprintf("what was asked for before the %s", r.Operation.Operation)
	}
	a, q := c.r.CurrentOperationAttempt(), r.Operation
	switch rep := r.CurrentOperationReport(); {
	case a == nil || a.AcceptedAt != nil || rep == nil || rep.OK:
	case !now.Before(a.At.Add(env.Policy.OperationTimeout)):
	case q.Operation.Restarts() && c.provenBoot(restart{begun: a.At, bootID: a.BootID}):
	default:
		return fmt.Sprintf("the %s that %s asked for", q.Operation, q.Actor)
	}
	return ""
}

// HeardSince reports whether an agent that is to stay was heard after that instant.
func HeardSince(r fleet.Record, at time.Time) bool {
	c := judgement{r: r}
	return c.heardAfter(at) && !c.returning()
}

// NotRestarted says that a machine runs on although the provider has accepted its restart: its
// agent is heard, with the boot ID from before; "" when that is not so.
func NotRestarted(r fleet.Record, env fleet.Environment, now time.Time) string {
	return judgement{r: r, env: env, now: now}.notRestarted()
}

func (c judgement) notRestarted() string {
	r, ok := c.restart()
	if !ok || c.bootedSince(r) || !c.heardAfter(r.at) || !c.now.Before(c.r.AgentSeen.LastAt.Add(c.heardFor())) {
		return ""
	}
	return fmt.Sprintf("the machine was not restarted: its agent is heard, last at %s, with the same boot ID", fleet.Instant(c.r.AgentSeen.LastAt))
}

// BootID returns the newest boot ID of the machine that is known; empty: none is.
func BootID(r fleet.Record) string { return judgement{r: r}.bootID() }

// bootID returns the newest boot ID that is known; empty: none is.
func (c judgement) bootID() string {
	s, seen := c.r.AgentStarted, c.r.AgentSeen
	switch {
	case c.r.Installed != nil && (s == nil || c.r.Installed.At.After(s.At)):
		return c.r.Installed.BootID
	case seen != nil && (s == nil || seen.TakeoverGeneration >= s.TakeoverGeneration):
		return seen.BootID
	case s != nil:
		return s.BootID
	}
	return ""
}

// StepEnds returns when the time is over in which the newest step of the ladder can show its
// effect. False: that has not begun, because the provider is at work still at the reinstall that
// the step asked for.
func StepEnds(r fleet.Record, env fleet.Environment) (at time.Time, begun bool) {
	c := judgement{r: r, env: env}
	return c.effectAt(*r.Repair).Add(env.Policy.RecoveryStepTimeout), !c.reinstalling(*r.Repair)
}

// Repairing reports whether a step of the ladder was taken whose effect is not seen.
func Repairing(r fleet.Record, env fleet.Environment, now time.Time) bool {
	return judgement{r: r, env: env, now: now}.repairing() != nil
}

// byHand says how a person restarts the machine.
func (c judgement) byHand() string {
	if restart := RestartOperation(c.r); restart != "" {
		return fmt.Sprintf("a person can restart the machine (`ironherd machine %s %s --reason WHY`)", restart.Command(), c.r.ID)
	}
	return fmt.Sprintf("%s cannot restart it: restart it yourself", c.r.Provider)
}

// RestartOperation is what restarts the machine through its provider: a reboot or a power cycle, or
// power on where it is off; "" where the provider can do none of them.
func RestartOperation(r fleet.Record) fleet.Operation {
	off := r.Provided != nil && r.Provided.Status.Down()
	switch {
	case off && slices.Contains(r.Levers, fleet.LeverPower):
		return fleet.OperationPowerOn
	case off:
		return ""
	case slices.Contains(r.Levers, fleet.LeverReboot):
		return fleet.OperationReboot
	case slices.Contains(r.Levers, fleet.LeverPower):
		return fleet.OperationPowerCycle
	}
	return ""
}

// StartIsStep reports whether an agent that is started now, under that boot ID, is a step of the
// ladder. One that is started before a restart has come takes nothing from that restart's time.
func StartIsStep(r fleet.Record, env fleet.Environment, now time.Time, bootID string) bool {
	c := judgement{r: r, env: env, now: now}
	step := c.repairing()
	if step != nil && step.Rung.Restarts() && !step.Refused && step.BootID != "" && step.BootID == bootID {
		return false
	}
	t, ok := c.expected()
	return step != nil || ok && c.counts(t)
}
