package lifecycle

import (
	"fmt"

	"github.com/ironherd/ironherd/internal/fleet"
)

// decideAgentStart decides when an agent is started, or taken off. A start waits for a provider
// that makes the machine anew.
func (c judgement) decideAgentStart() Decision {
	d := c.decideFor(fleet.ProcessAgentStart, c.maintained(c.agentStart()))
	p := c.r.Provided
	if p == nil || p.Status != fleet.ProviderStatusCreating || c.returning() {
		return d
	}
	switch d.Verdict {
	case Due:
		return Decision{Process: d.Process, Verdict: Waiting, Reason: "waiting for the provider: " + detail(p)}
	case Later:
		d.Reason += fmt.Sprintf(", unless %s makes or reinstalls the machine still", c.r.Provider)
	}
	return d
}

// agentStart decides whether an agent is wanted, whatever the provider does to the machine.
func (c judgement) agentStart() want {
	p := c.r.Provided
	why := c.unusable()
	switch {
	case c.r.Quarantine != nil:
		return notWanted("%s", why)
	case p == nil:
		return waiting("waiting for the provider to create the machine")
	case c.installedCurrent():
		return notWanted("an operating system is installed, which needs no agent")
	case c.awaitingBoot():
		return notWanted("the installed system is booting")
	case c.givenBack() != "" || c.switchedOff() != "":
		return notWanted("%s", why)
	case c.returning() && why == "":
		return c.afterRestore("to take the agent off", c.takeOff())
	case c.agent() != nil && why == "":
		return c.afterRestore("the start of an agent", c.agentAgain())
	case c.agent() != nil:
		return notWanted("the agent was started (takeover generation %d)", c.agent().TakeoverGeneration)
	case p.Status == fleet.ProviderStatusFailed || p.Status == fleet.ProviderStatusGone:
		return notWanted("%s", why)
	case c.staysOff():
		return waiting("%s, and nobody has switched it off; %s", c.off(), c.byHand())
	case p.Status != fleet.ProviderStatusActive:
		return waiting("waiting for the provider: %s", detail(p))
	}
	at := p.At
	if p.ActiveAt != nil {
		at = *p.ActiveAt
	}
	// The last agent ended with an install.
	if rep := c.r.InstallReport; c.r.AgentStarted != nil && rep != nil {
		at = later(at, rep.At)
	}
	// It is wanted because the system that runs is to be replaced.
	if request := c.r.InstallRequest; c.r.Installed != nil && request != nil {
		at = later(at, request.At)
	}
	if restarted := c.restartedAt(); !restarted.IsZero() {
		at = later(at, restarted.Add(c.restartPause()))
	}
	return c.afterRestore("the start of an agent", dueAt(at, "the machine needs an agent"))
}

// agentAgain decides about the agent of a machine that has, or had, one. Starting it again is the
// mildest step of recovery.
func (c judgement) agentAgain() want {
	s := c.agent()
	started := notWanted("the agent was started (takeover generation %d)", s.TakeoverGeneration)
	if r, awaited := c.awaitedRestart(); awaited {
		return c.agentAfterRestart(r)
	}
	// The effect of a step is waited for. Where the start of an agent has failed, and provider and
	// policy allow no step at all, there is nothing else than to start it again (onlyStarts).
	if step := c.repairing(); step != nil && (!step.Refused || !step.Rung.Restarts()) && (!c.startFailed() || c.nextRung(nil) != fleet.RungQuarantine) {
		return started
	}
	t, ok := c.trouble()
	if !ok || !t.agent {
		return started
	}
	again := c.sayRoom(dueAt(t.at, "when %s, it is started again", t.reason))
	again.deadline = true
	return again
}

// startFailed reports whether the start of an agent was tried since one succeeded, and failed. That
// a call to the provider has not had its turn yet says nothing of the host.
func (c judgement) startFailed() bool { return !c.r.Backoffs[fleet.ProcessAgentStart].Since.IsZero() }
