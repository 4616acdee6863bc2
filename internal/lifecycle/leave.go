package lifecycle

import (
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// An agent leaves a machine in two cases: a reinstall was called off before anything was written,
// so that the machine is to be what it was; and a host of a list is given back.
//
//	called off, disk untouched ─┐   in memory: told, it restarts ─┐
//	                            ├─►                               ├─► taken off over SSH
//	host of a list given back  ─┘   in place ─────────────────────┘
//
// Only an agent in memory needs the order (Leaves): a system in memory has no SSH server. What
// follows is the same in both: whoever reaches the host over SSH stops the agent, if one runs, and
// removes its files. For a host that is given back that is the operation. For a machine whose
// reinstall was called off it is the process agent-start, and that the installed system lets us in
// is the evidence that it is up again. Until then the machine is returning, and no step of recovery
// is taken: its disk holds a system that somebody wants.
//
// The order is nothing but a conclusion from facts that are durable already. So it is repeated as
// long as they say so, and an answer that was lost, or a crash of either side, leaves nothing to be
// mended: the agent hears it again, or the machine has been restarted.

// intact reports whether the disk certainly holds what it held when the installed system came up,
// or the first agent. A report says of all attempts since then whether one may have written.
func (c judgement) intact() bool {
	a, rep, up := c.r.InstallAttempt, c.r.InstallReport, c.r.Installed
	switch {
	case up != nil && up.ErasedAt != nil:
		return false
	case a == nil || up != nil && up.Follows(a.Generation, a.Attempt):
		return true
	}
	return rep != nil && rep.Generation == a.Generation && rep.Attempt == a.Attempt && rep.Untouched()
}

// keptByCancel reports whether a reinstall was called off before anything was written.
func (c judgement) keptByCancel() bool {
	up := c.r.Installed
	return up != nil && c.calledOff() && up.Generation < c.r.InstallRequest.Generation && c.intact()
}

// takenSince reports whether an agent was started since the installed system was last seen to come
// up.
func (c judgement) takenSince() bool {
	s, up := c.r.AgentStarted, c.r.Installed
	return s != nil && up != nil && s.At.After(up.At)
}

// returning reports whether the installed system of before a reinstall is to come back.
func (c judgement) returning() bool { return c.keptByCancel() && c.takenSince() }

// Returning reports whether a machine is to be what it was before a reinstall that was called off
// when its agent had been started: the agent is taken off it.
func Returning(r fleet.Record) bool { return judgement{r: r}.returning() }

// inMemory reports whether the agent was heard from another boot than the one that it was started
// in: no agent outlasts a restart but one that jumped into memory.
func (c judgement) inMemory() bool {
	return c.spoken() && c.r.AgentStarted.BootID != "" && c.r.AgentSeen.BootID != c.r.AgentStarted.BootID
}

// InPlace reports whether the agent of a machine was last heard from the system that it was started
// in. Neither this nor InMemory is true before it is heard.
func InPlace(r fleet.Record) bool {
	c := judgement{r: r}
	return c.spoken() && c.startedInBoot(r.AgentSeen.BootID)
}

// InMemory reports whether the agent of a machine was last heard from memory, for which the system
// that it was started in has ended.
func InMemory(r fleet.Record) bool { return judgement{r: r}.inMemory() }

// takeOff decides when the agent is taken off a machine that returns. As long as it speaks from
// memory nobody answers there.
func (c judgement) takeOff() want {
	at := c.r.InstallCancel.At
	if rep := c.r.InstallReport; rep != nil && rep.Generation > c.r.Installed.Generation {
		at = later(at, rep.At)
	}
	if restarted := c.restartedAt(); !restarted.IsZero() {
		at = later(at, restarted.Add(c.restartPause()))
	}
	if gone := c.memoryGoneAt(); gone.After(at) {
		return dueAt(gone, "the agent is taken off the machine when the agent in memory has gone")
	}
	return dueAt(at, "the agent is taken off the machine")
}

// memoryGoneAt is when the agent in memory may have restarted the machine, if it is not heard
// again; zero: it is not in memory.
func (c judgement) memoryGoneAt() time.Time {
	if !c.inMemory() {
		return time.Time{}
	}
	return c.r.AgentSeen.LastAt.Add(c.restartPause())
}

// returns says what happens to a machine that returns, and what a person can do.
func (c judgement) returns() string {
	next := c.free().decideAgentStart().Reason
	if c.env.Restored == "" && c.inMemory() && c.restartedAt().Before(c.r.AgentSeen.LastAt) && len(c.r.Backoffs[fleet.ProcessAgentStart].Cause) == 0 {
		next = "the agent in memory is told to restart the machine into it"
	}
	return fmt.Sprintf("the install was called off before anything was written, and install generation %d comes back: %s; if it stays away, %s",
		c.r.Installed.Generation, next, c.byHand())
}

// Leaves says why the agent in memory is to restart the machine into the system on its disk; "":
// it is not to. Who asks has made sure that the agent is the one in charge.
func Leaves(r fleet.Record, env fleet.Environment, now time.Time) string {
	c := judgement{r: r, env: env, now: now}
	switch q := r.OpenOperation(); {
	case env.Restored != "" || r.Unreadable != "" || c.attemptOpen():
		return ""
	case q != nil && q.Operation.GivesBack() && Listed(r) && c.r.CurrentOperationAttempt() != nil:
		return c.givenBack()
	case c.returning() && c.unusable() == "" && c.inMaintenance() == "":
		off := r.InstallCancel
		return fmt.Sprintf("install generation %d was called off by %s: %s", off.Generation, off.Actor, off.Reason)
	}
	return ""
}
