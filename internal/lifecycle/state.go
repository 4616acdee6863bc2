package lifecycle

import (
	"fmt"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// free is the same machine while nobody works on it. Who works on it is no part of its state,
// because it changes with every claim; the lanes tell it.
func (c judgement) free() judgement {
	c.r.Holds = nil
	return c
}

// state computes the state that people are shown, and why it is that one.
func (c judgement) state() (fleet.State, string) {
	r := c.r
	switch {
	case r.Quarantine != nil:
		return fleet.StateQuarantined, r.Quarantine.Reason
	case r.Unreadable != "":
		return fleet.StateUnreadable, r.Unreadable
	case r.Provided == nil:
		return fleet.StateCreating, c.creating()
	case r.Provided.Status == fleet.ProviderStatusFailed:
		return fleet.StateFailed, c.unusable()
	case r.Provided.Status == fleet.ProviderStatusGone:
		return fleet.StateMissing, c.unusable()
	case r.Provided.Status == fleet.ProviderStatusDeleting:
		// Its agent and its system do not matter any more.
		return fleet.StateProvisioning, c.unusable()
	case c.givenBack() != "":
		return fleet.StateReleasing, c.givenBack()
	case c.inMaintenance() != "":
		return fleet.StateMaintenance, c.inMaintenance()
	case c.switchedOff() != "":
		return fleet.StateOff, c.switchedOff()
	case c.reinstalledElsewhere() != "":
		return fleet.StateUnreachable, fmt.Sprintf("%s; %s", r.Installed.Words(), c.reinstalledElsewhere())
	case c.foundOff():
		return fleet.StateUnreachable, fmt.Sprintf("%s; %s, and nobody has switched it off", r.Installed.Words(), c.off())
	case c.unreachable():
		return fleet.StateUnreachable, fmt.Sprintf("%s; %s", r.Installed.Words(), c.found())
	case c.installedCurrent() && c.watched() && c.found() != "":
		return fleet.StateInstalled, fmt.Sprintf("%s; %s", r.Installed.Words(), c.found())
	case c.installedCurrent():
		return fleet.StateInstalled, r.Installed.Words()
	case c.returning():
		return fleet.StateReturning, c.returns()
	case c.repairing() != nil && !c.heardAfter(r.Repair.At):
		return fleet.StateSilent, c.recovery().reason
	case c.silent():
		t, _ := c.trouble()
		return fleet.StateSilent, t.reason
	case c.installRefused():
		return fleet.StateRefused, c.install().reason
	case c.needsErase(), c.notUnderstood():
		return fleet.StateRefused, c.refusal()
	case c.awaitingBoot() && c.probed():
		return fleet.StateBooting, strings.TrimSuffix("waiting for the installed system to answer "+r.InstallRequest.SeenUp.Asks()+": "+c.found(), ": ")
	case c.awaitingBoot():
		return fleet.StateBooting, "waiting for the unit of the installed system to call" + c.mayLackUnit()
	case c.agent() == nil && r.Provided.Status != fleet.ProviderStatusActive:
		return fleet.StateProvisioning, detail(r.Provided)
	case c.agent() == nil:
		return fleet.StateProvided, c.free().decideFor(fleet.ProcessAgentStart, c.agentStart()).Reason
	case !c.spoken():
		return fleet.StateStarted, "waiting for a heartbeat"
	case c.excused():
		return fleet.StateStarted, "waiting for a heartbeat: " + c.unheard()
	case r.InstallRequest != nil && (!c.calledOff() || c.attemptOpen()):
		return fleet.StateInstalling, c.free().decideFor(fleet.ProcessInstall, c.install()).Reason
	case r.Hardware == nil:
		return fleet.StateStarted, "waiting for the hardware report"
	}
	restart, awaited := c.awaitedRestart()
	switch {
	case c.calledOff() && !c.intact():
		return fleet.StateAvailable, "the agent speaks; an install was called off after it was handed out, so what the disk holds is undefined"
	case awaited && c.heardAfter(restart.at):
		return fleet.StateAvailable, "the agent speaks, with the boot ID from before: " + restart.words + " may still come"
	case c.calledOff() && c.handedOut():
		return fleet.StateAvailable, "the agent speaks; the install was called off before anything was written"
	}
	return fleet.StateAvailable, "the agent speaks; nothing was asked for"
}

// creating says why the machine is not created yet. It is the same at any time, because nobody
// judges the machine again while it waits for its turn.
func (c judgement) creating() string {
	i := c.r.Intent
	if i == nil || i.Calls > 0 || c.env.Paused != nil || c.nothingCreated() != "" {
		return c.provision().Reason
	}
	return fmt.Sprintf("waiting to be created: planned at %s for about %s", c.r.Provider, fleet.Instant(i.PlannedAt))
}

// reinstalledElsewhere says that an installed system was to run on a machine that its provider has
// been seen to reinstall, though nothing here asked for it; "" where that is not so.
func (c judgement) reinstalledElsewhere() string {
	up := c.r.Installed
	if !c.installedCurrent() || up.ErasedAt == nil {
		return ""
	}
	return fmt.Sprintf("%s was seen to reinstall its own operating system at %s, and nothing is recorded here that asked for it", c.r.Provider, fleet.Instant(*up.ErasedAt))
}

// ReinstalledElsewhere reports whether a machine on which an installed system was to run was
// reinstalled by its provider for somebody else.
func ReinstalledElsewhere(r fleet.Record) bool { return judgement{r: r}.reinstalledElsewhere() != "" }

// foundOff reports whether an installed system is to run on a machine of which its provider says
// that it is off, and nothing is under way that switches it off or on.
func (c judgement) foundOff() bool {
	p := c.r.Provided
	return c.installedCurrent() && p != nil && p.Status.Down() && c.unusable() == "" && c.r.OpenOperation() == nil
}

// StaysOff reports whether a machine without an agent is off for longer than it takes to come on,
// and nobody is there who switches it on.
func StaysOff(r fleet.Record, env fleet.Environment, now time.Time) bool {
	return judgement{r: r, env: env, now: now}.staysOff()
}

func (c judgement) staysOff() bool {
	p := c.r.Provided
	return p != nil && p.Status.Down() && c.now.Sub(p.At) >= OffSettles && c.unusable() == "" && c.r.OpenOperation() == nil &&
		c.agent() == nil && !c.installedCurrent() && !c.awaitingBoot() && c.repairing() == nil
}

// off says that the provider says that the machine is not on.
func (c judgement) off() string {
	is := "off"
	if c.r.Provided.Status == fleet.ProviderStatusPowering {
		is = "on its way on or off"
	}
	return fmt.Sprintf("%s says that it is %s (since %s)", c.r.Provider, is, fleet.Instant(c.r.Provided.At))
}

func detail(p *fleet.Provided) string {
	if p.Detail == "" {
		return string(p.Status)
	}
	return p.Detail
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func failures(n int) string {
	if n == 1 {
		return "a failure"
	}
	return fmt.Sprintf("%d failures", n)
}

func requests(n int) string {
	if n == 1 {
		return "a request"
	}
	return fmt.Sprintf("%d requests", n)
}
