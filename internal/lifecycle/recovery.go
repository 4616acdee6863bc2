package lifecycle

import (
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// The recovery ladder. A machine is in trouble when its agent never spoke, when it fell silent,
// when an installed system did not come up, or when its host never answered. Then
//
//	agent start ─► reboot ─► power cycle ─► reinstall ─► quarantine
//
// The agent start is no work of recovery: an agent is wanted again from the instant of the trouble
// on, and only when that has failed, or did not help, is there something to recover. If the machine
// is not heard of within policy.recovery_step_timeout, recovery takes the first step that the
// provider has the lever for and the policy a budget, and after each step waits as long again. That
// time counts from when the provider says that the machine is on, or made anew, if that is later. A
// sign of life from after the step ends the trouble. Steps are remembered for
// policy.recovery_memory, so that a machine that fails again and again gets to the end of the
// ladder.
//
// After a restart, only another boot ID or a new takeover is a sign of life. An agent that is heard
// with the same boot ID may be cut yet. When the time of the step is over and it is heard still,
// the machine is well, and was not restarted: no further step is taken against a machine that is
// heard.
//
// Where no step is possible or allowed before the quarantine (a list of hosts has no levers), the
// ladder ends with the agent start. It is tried again and again, so that a host that comes back is
// at work again by itself. So it does while the host answers that start with a refusal of our key,
// or with another host key: a restart changes neither, and may be one of somebody else's system.
//
// An installed system that did not come up, and a host that has never answered, climb the same
// ladder, from the reboot on. The time before the first step is for us: when many of them are found
// together, recovery is stopped before any is restarted. Where it is we who ask, it begins with the
// first of the questions in a row that had no answer, and one at its end has to show that there is
// none still: what we did not ask while we were away shows nothing.
//
// So an agent that speaks has one entry in the agenda that wakes now and then, that of its start;
// and while it installs a system that is seen by SSH, that of the probe.

// restartPause is how long a machine that was restarted has before its agent is started again: a
// minute, and less where a step of the ladder has so little time that the next one would come
// first.
func (c judgement) restartPause() time.Duration {
	return min(time.Minute, c.env.Policy.RecoveryStepTimeout/3)
}

// The kinds of trouble.
const (
	troubleSilent        = "silent"         // the agent was heard, and is not any more
	troubleNeverSpoke    = "never-spoke"    // the agent was started, and not heard yet
	troubleNotBooted     = "not-booted"     // the installed system did not come up
	troubleNeverAnswered = "never-answered" // the host has not answered from the beginning
)

// trouble is why a machine is repaired: at is the instant from which on it counts, which may be to
// come.
type trouble struct {
	at   time.Time
	kind string // one of Troubles
	// step is when recovery may take its first step.
	step time.Time
	// unheard: it is our listener that has heard nothing.
	unheard bool
	// before: it counted before the listener that is up came back.
	before bool
	// agent: an agent was in charge, and may be started again.
	agent  bool
	reason string
}

// trouble returns the trouble that the machine is in, or will be in if nothing is heard of it;
// false for a machine of which nothing is expected.
func (c judgement) trouble() (trouble, bool) {
	t, ok := c.expected()
	if t.unheard {
		t.at = c.withRoom(t.at)
	}
	// also of many that wait for the same room
	t.step = c.anew(t, later(later(t.at, c.activeSince()), c.unansweredSince())).Add(c.env.Policy.RecoveryStepTimeout)
	return t, ok
}

// anew returns from when on a silent machine has the time of a step: from the instant, or from when
// its host ceased to answer whoever wanted to start an agent, where that time was over by then. A
// host that refused us for days is not restarted for one start without an answer.
func (c judgement) anew(t trouble, from time.Time) time.Time {
	since := c.r.Backoffs[fleet.ProcessAgentStart].UnansweredSince
	if t.agent && since.After(from.Add(c.env.Policy.RecoveryStepTimeout)) && !since.After(c.now) {
		return since
	}
	return from
}

// expected returns the trouble that the machine is in, or will be in, if no listener turns agents
// away.
func (c judgement) expected() (trouble, bool) {
	policy := c.env.Policy
	switch {
	case c.unusable() != "" || c.installedCurrent() || c.returning():
		return trouble{}, false
	case c.awaitingBoot() && c.probed():
		at := c.workedOn(c.r.InstallReport.At).Add(policy.BootTimeout)
		return trouble{
			kind: troubleNotBooted, at: at, reason: fmt.Sprintf("the installed system has not answered %s after the install", policy.BootTimeout),
		}, c.foundSilent(at)
	case c.awaitingBoot():
		return trouble{
			kind: troubleNotBooted, at: c.silentSince(c.r.InstallReport.At).Add(policy.BootTimeout), unheard: true,
			before: c.lasted(c.r.InstallReport.At, policy.BootTimeout),
			reason: fmt.Sprintf("the unit of the installed system has not called %s after the install%s", policy.BootTimeout, c.mayLackUnit()),
		}, true
	case c.agent() == nil:
		return c.unanswered()
	case !c.spoken():
		return trouble{
			kind: troubleNeverSpoke, at: c.silentSince(c.agent().At).Add(policy.NeverSpokeAfter), unheard: true, agent: true,
			before: c.lasted(c.agent().At, policy.NeverSpokeAfter),
			reason: fmt.Sprintf("the agent has not spoken %s after its start", policy.NeverSpokeAfter),
		}, true
	}
	return trouble{
		kind: troubleSilent, at: c.silentSince(c.r.AgentSeen.LastAt).Add(c.silentAfter()), unheard: true, agent: true,
		before: c.lasted(c.r.AgentSeen.LastAt, c.silentAfter()),
		reason: fmt.Sprintf("the agent has been silent for %s", c.silentAfter()),
	}, true
}

// unanswered is the trouble of a host where nothing of ours runs, and that has never answered
// whoever wanted to start an agent. A host that answers, and refuses, is not in trouble: a restart
// would change nothing. Nor is one that nothing could be done for: it is tried for ever. An
// installed system is left alone, whether it answers or not.
func (c judgement) unanswered() (trouble, bool) {
	since := c.r.Backoffs[fleet.ProcessAgentStart].UnansweredSince
	if c.mayRun() || since.IsZero() || c.nextRung(nil) == fleet.RungQuarantine {
		return trouble{}, false
	}
	after := c.env.Policy.NeverSpokeAfter
	return trouble{
		kind: troubleNeverAnswered, at: c.silentSince(since).Add(after), before: c.lasted(since, after),
		reason: fmt.Sprintf("the host has not answered for %s", after),
	}, true
}

// foundSince reports whether somebody has asked in the end, and found what a trouble says, where it
// is we who ask. Time in which nobody does shows nothing.
func (c judgement) foundSince(t trouble) bool {
	switch p := c.r.Provided; {
	case t.kind == troubleNeverAnswered && p != nil && p.Status == fleet.ProviderStatusActive:
		return !c.r.Backoffs[fleet.ProcessAgentStart].UnansweredAt.Before(t.at)
	case c.awaitingBoot() && c.probed():
		return c.foundSilent(t.step)
	}
	return true
}

// mayRun reports whether an agent of ours, or what it has installed, may run there. Neither does
// where none ever did. Nor does one where a disk was written last and its system never came up, and
// another install is wanted instead.
func (c judgement) mayRun() bool {
	rep, up := c.r.InstallReport, c.r.Installed
	if rep != nil && rep.OK && (up == nil || rep.At.After(up.At)) && c.agent() == nil {
		return false
	}
	return c.r.AgentStarted != nil || up != nil
}

// Troubles lists why a machine may be repaired.
func Troubles() []string {
	return []string{troubleSilent, troubleNeverSpoke, troubleNotBooted, troubleNeverAnswered}
}

// TroubleOf returns which of Troubles the machine is in; "" when it is in none.
func TroubleOf(r fleet.Record, env fleet.Environment, now time.Time) string {
	t, ok := judgement{r: r, env: env, now: now}.trouble()
	if !ok || t.at.After(now) {
		return ""
	}
	return t.kind
}

// repairing returns the newest step of the ladder while its effect is not seen; nil when there is
// none.
func (c judgement) repairing() *fleet.Repair {
	r := c.r.Repair
	if r == nil || c.unusable() != "" || c.installedCurrent() || c.returning() || c.over(*r) {
		return nil
	}
	if c.agent() == nil && !c.mayRun() && c.r.Backoffs[fleet.ProcessAgentStart].Answered {
		return nil // it answers now
	}
	return r
}

// over reports whether what came after a step shows that the trouble of then is over, whatever the
// trouble is now: a system that came up, an agent that was heard or, after a restart, started in
// another boot, a request for another install than the one that did not come up, and the end of a
// maintenance, which the agent of before has not survived. No request ends a power cycle that has
// left the machine off and is found in time, because nothing else would switch it on.
func (c judgement) over(step fleet.Repair) bool {
	up, s, seen, m := c.r.Installed, c.r.AgentStarted, c.r.AgentSeen, c.r.Maintenance
	rep, wanted := c.r.InstallReport, c.r.InstallRequest
	switch {
	case rep != nil && rep.OK && !c.mayRun() && wanted != nil && wanted.Generation > rep.Generation && wanted.At.After(step.At) && !c.leftOffInTime(step),
		up != nil && up.At.After(step.At),
		seen != nil && !seen.LastAt.Before(step.At) && c.helped(step),
		s != nil && s.At.After(step.At) && (step.BootID == "" || otherBoot(s.BootID, step.BootID)):
		return true
	}
	return step.Rung == fleet.RungAgentStart && m != nil && m.Over && m.Until != nil && m.Until.After(step.At)
}

// helped reports whether an agent that was heard after a step shows that the step had its effect,
// or that it is not needed any more. The agent from before a restart shows neither.
func (c judgement) helped(step fleet.Repair) bool {
	seen := c.r.AgentSeen
	return !step.Rung.Restarts() || step.Refused || c.awaitingBoot() || otherBoot(seen.BootID, step.BootID) || seen.TakeoverGeneration > step.TakeoverGeneration
}

// heardAfter reports whether the agent that is in charge spoke after that instant.
func (c judgement) heardAfter(at time.Time) bool { return c.spoken() && c.r.AgentSeen.LastAt.After(at) }

// recovery decides about the next step of the ladder.
func (c judgement) recovery() want {
	if why := c.leftAlone(); why != "" {
		return notWanted("%s", why)
	}
	if q := c.r.OpenOperation(); q != nil {
		return waiting("%s, asked for by %s, is under way", q.Operation, q.Actor)
	}
	r := c.repairing()
	t, ok := c.trouble()
	if p := c.r.Provided; p != nil && p.Status == fleet.ProviderStatusCreating && (r != nil || ok) {
		// whoever has asked for that
		until := p.At.Add(LongestReinstall)
		if ok {
			until = later(until, t.step)
		}
		return c.stopped(dueAt(until, "%s makes or reinstalls the machine, since %s; if it does so still a day later, and nothing is heard of it: %s",
			c.r.Provider, fleet.Instant(p.At), c.step(fleet.RungQuarantine)), fleet.RungQuarantine)
	}
	if why := c.onlyStarts(); why != "" {
		return notWanted("%s", why)
	}
	switch {
	case r != nil:
		return c.afterStep(*r, t)
	case ok:
		return c.firstStep(t)
	case c.awaitingBoot():
		return waiting("the probes show whether the installed system comes up")
	}
	return notWanted("%s", c.untroubled())
}

// leftAlone says why recovery leaves the machine alone, whatever is heard of it; "": it does not.
func (c judgement) leftAlone() string {
	switch {
	case c.unusable() != "":
		return c.unusable()
	case c.returning():
		return "an installed system that comes back after a reinstall was called off is left alone; " + c.byHand()
	case c.reinstalledElsewhere() != "":
		return c.reinstalledElsewhere() + ", and recovery leaves it alone"
	case c.unreachable():
		return "an installed system that does not answer is left alone; " + c.byHand()
	case c.foundOff():
		return fmt.Sprintf("%s, which recovery leaves alone; %s", c.off(), c.byHand())
	case c.installedCurrent():
		return "a running installed operating system is left alone"
	}
	return ""
}

// afterStep decides about a machine on which a step was taken whose effect is not seen.
func (c judgement) afterStep(step fleet.Repair, t trouble) want {
	rung, timeout := c.nextRung(step.Steps), c.env.Policy.RecoveryStepTimeout
	from := c.anew(t, later(c.effectAt(step), c.unansweredSince()))
	switch {
	case c.untried():
		return waiting("%s; the next start of an agent shows whether the host answers", c.tried(step))
	case c.awaitingBoot() && c.probed() && !c.foundSilent(c.workedOn(from).Add(timeout)):
		return waiting("%s; the probes show whether the installed system comes up", c.tried(step))
	case c.heardAfter(step.At):
		return c.notMoved(step, rung)
	case c.leftOff(step):
		return c.switchedOn(step, from, rung)
	}
	return c.stopped(dueAt(c.silentFor(from, timeout), "%s; without a sign of life %s later: %s", c.tried(step), timeout, c.step(rung)), rung)
}

// firstStep decides about a machine that is in trouble, or will be, and on which no step was taken
// for that.
func (c judgement) firstStep(t trouble) want {
	rung, failed := c.nextRung(c.stepsBefore(t)), c.startFailed()
	switch {
	case !t.step.After(c.now) && !c.foundSince(t):
		return waiting("when %s, and is asked again without an answer: %s", t.reason, c.step(rung))
	case t.agent && !failed && t.at.After(c.now) && !t.before:
		return notWanted("the agent is not silent")
	case t.agent && !failed:
		return waiting("when %s, it is started again first", t.reason)
	case t.agent:
		return c.stopped(dueAt(t.step, "%s, and starting it again fails; without a sign of life at that time: %s", t.reason,
			c.step(rung)), rung)
	}
	// Many that are silent together show that the fault may be ours, before the first is restarted.
	return c.stopped(dueAt(t.step, "when %s, and there is no sign of life within %s more: %s", t.reason, c.env.Policy.RecoveryStepTimeout,
		c.step(rung)), rung)
}

// LongestReinstall is how long a provider may take to make a machine, or to reinstall it. One that
// hangs in it would otherwise be told to nobody, and keep others of its place from recovery.
const LongestReinstall = 24 * time.Hour

// reinstalling reports whether the provider is at work still at the reinstall that the step asked
// for.
func (c judgement) reinstalling(step fleet.Repair) bool {
	p := c.r.Provided
	return step.Rung == fleet.RungReinstall && p != nil && p.Status == fleet.ProviderStatusCreating
}

// effectAt is from when on a step can show its effect: when the call had ended, as far as that was
// recorded. A reinstall takes the provider's time then, and so may a power cycle.
func (c judgement) effectAt(step fleet.Repair) time.Time { return later(step.At, c.activeSince()) }

// onlyStarts says why nothing but starting an agent is tried on a machine that is silent; "": that
// is not so. Whoever holds a host that refuses us may have put another system on it.
func (c judgement) onlyStarts() string {
	t, ok := c.trouble()
	switch {
	case !ok || !t.agent || !c.startFailed():
		return ""
	case c.refusesUs():
		return t.reason + ", and the host does not let us in, which a restart does not change; starting it is tried again and again"
	case c.nextRung(nil) != fleet.RungQuarantine:
		return ""
	}
	return fmt.Sprintf("%s, and starting it again fails; it is tried again and again, because recovery has no step for it; %s", t.reason, c.byHand())
}

// RefusesUs reports whether the host refused us when it answered the start of an agent last, and
// its provider does not say that it is off, or being made anew.
func RefusesUs(r fleet.Record, env fleet.Environment, now time.Time) bool {
	return judgement{r: r, env: env, now: now}.refusesUs()
}

func (c judgement) refusesUs() bool {
	p := c.r.Provided
	return c.r.Backoffs[fleet.ProcessAgentStart].Refused && p != nil && !p.Status.Down() && p.Status != fleet.ProviderStatusCreating &&
		c.agentStart().verdict == Due
}

// OnlyStarts reports whether nothing but starting an agent is tried on a machine that is silent, so
// that it is a person who can get it on.
func OnlyStarts(r fleet.Record, env fleet.Environment, now time.Time) bool {
	return judgement{r: r, env: env, now: now}.onlyStarts() != ""
}

// untried reports whether a host that has never answered is about to be tried after a step. While
// its provider says that it is off, nobody tries it.
func (c judgement) untried() bool {
	p := c.r.Provided
	return c.agent() == nil && !c.mayRun() && c.r.Backoffs[fleet.ProcessAgentStart].UnansweredSince.IsZero() &&
		p != nil && p.Status == fleet.ProviderStatusActive
}

// notMoved decides about a machine that is heard with the boot ID from before a step that restarts
// it. The step ends with its time. If the machine has fallen silent by then, it has as long again
// from its last heartbeat, because it may have been restarted only then.
func (c judgement) notMoved(step fleet.Repair, next fleet.Rung) want {
	done, last, timeout := fleet.Instant(step.At), c.r.AgentSeen.LastAt, c.env.Policy.RecoveryStepTimeout
	if c.now.Before(last.Add(c.heardFor())) {
		return c.stopped(dueAt(c.silentFor(step.At, timeout),
			"%s was tried at %s, and the machine is heard with the same boot ID; if it is so still %s later, it was not restarted", step.Rung, done, timeout), "")
	}
	return c.stopped(dueAt(c.silentFor(later(step.At, last), max(timeout, c.heardFor())),
		"%s was tried at %s, and the machine was heard last at %s; without a sign of life %s later: %s", step.Rung, done, fleet.Instant(last),
		max(timeout, c.heardFor()), c.step(next)), next)
}

// StepOver says that the time of the newest step is over, and that the step has not restarted the
// machine, which is well; "" when that is not so.
func StepOver(r fleet.Record, env fleet.Environment, now time.Time) string {
	c := judgement{r: r, env: env, now: now}
	step := c.repairing()
	if step == nil || c.notRestarted() == "" || now.Before(c.silentFor(step.At, env.Policy.RecoveryStepTimeout)) {
		return ""
	}
	return fmt.Sprintf("the %s of %s had no effect: %s", step.Rung, fleet.Instant(step.At), c.notRestarted())
}

// untroubled says why there is nothing to recover on a machine of which nothing is expected.
func (c judgement) untroubled() string {
	b := c.r.Backoffs[fleet.ProcessAgentStart]
	switch {
	case c.startFailed() && c.mayRun() && c.r.Installed != nil && c.r.Installed.ErasedAt == nil && c.agent() == nil:
		return "an installed system may run there, which recovery leaves alone; " + c.byHand()
	case b.Answered && !c.mayRun():
		return "the host answers, and a restart is not what it needs"
	case !b.UnansweredSince.IsZero() && !c.mayRun():
		return fmt.Sprintf("the host does not answer, and %s cannot restart it, or the policy does not allow it: it is tried again and again", c.r.Provider)
	}
	return "no agent was started"
}

// stopped makes a step wait while recovery is stopped.
func (c judgement) stopped(w want, rung fleet.Rung) want {
	w = c.sayRoom(w)
	w.rung, w.deadline = rung, true
	return c.whileStopped(w, "recovery is")
}

// whileStopped makes what would be done wait while recovery is stopped. Waits begins the reason,
// before "stopped by", where only a person ends that.
func (c judgement) whileStopped(w want, waits string) want {
	h := c.env.RecoveryHold
	switch {
	case h == nil:
	case h.Until == nil:
		return waiting("%s stopped by %s (%s); `ironherd recovery resume` ends that", waits, fleet.ShownActor(h.Actor), h.Reason)
	case h.Until.After(w.dueAt):
		w.dueAt = *h.Until
		// Lists show the reason when the stop is over, too, until the machine is judged again. So it
		// says that somebody stopped recovery, and until when.
		if h.Until.After(c.now) {
			w.reason = fmt.Sprintf("%s; not before %s, because %s stopped recovery until then: %s",
				w.reason, fleet.Instant(*h.Until), fleet.ShownActor(h.Actor), h.Reason)
		}
	}
	return w
}

// Helped reports whether an agent that is heard now ends the trouble that the newest step of the
// ladder was taken for, if there is one.
func Helped(r fleet.Record, seen fleet.AgentSeen) bool {
	r.AgentSeen = &seen
	return r.Repair == nil || judgement{r: r}.helped(*r.Repair)
}

// HeardSinceStep reports whether the agent in charge was heard since the newest step of the ladder,
// whatever that shows.
func HeardSinceStep(r fleet.Record) bool {
	c := judgement{r: r}
	return r.Repair != nil && c.heardAfter(r.Repair.At)
}

// UnderRecovery reports whether the machine counts against the concurrency limit of recovery: a
// step that restarts it was taken, and its effect may still come.
func UnderRecovery(r fleet.Record, env fleet.Environment, now time.Time) bool {
	c := judgement{r: r, env: env, now: now}
	step := c.repairing()
	return step != nil && !step.Refused && (step.Rung.Restarts() || c.startedAfterRestart(*step)) &&
		(c.reinstalling(*step) || now.Before(c.effectAt(*step).Add(env.Policy.RecoveryStepTimeout)))
}

// startedAfterRestart reports whether the step was the start of an agent after a restart by
// recovery. A restart has not helped before that agent is heard.
func (c judgement) startedAfterRestart(step fleet.Repair) bool {
	s := c.r.AgentStarted
	return step.Rung == fleet.RungAgentStart && restarts(step) > 0 && s != nil && s.BootID != step.BootID
}
