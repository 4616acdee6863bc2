package lifecycle

import (
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// An installed system is asked whether it is up where its install request wants that, and after it
// has come up while it is watched:
//
//	disk written ─► probe every policy.probe_interval ─► answered: installed
//	                                                  └► not within policy.boot_timeout: not-booted
//	watched ─► probe every policy.watch_interval ─► answered
//	                                             └► not for policy.unreachable_after: unreachable
//
//	agent silent in the middle of an install ─► probe by SSH ─► answered: installed
//
// That is for a machine that lost its power after the disk was written and before anybody heard of
// it. Its system runs, and answers with the host key that its install brought, which nobody else
// has. So only SSH is asked: what answers HTTP may be the system that was there before.
//
// The unit of a watched system calls by itself every policy.watch_interval, and each call is an
// answer. A probe of such a system asks nobody: it is made when no call has come for twice the
// interval that its unit was told, and finds that.
//
// A system that boots on the host of a list is asked also while that host is given back: once it is
// up, there is nothing of ours on the host.
//
// A system that is watched, or is to come up, and that its provider gave up, is asked as before
// where the policy has its machine replaced once nothing is heard of it.
//
// Only what probes have found counts, never that time has passed: while nobody probes, no machine
// is repaired and none becomes unreachable. A watched machine is shown as unreachable, and left
// alone.

// probe decides when the installed system is asked next.
func (c judgement) probe() want {
	policy := c.env.Policy
	matters := c.watched() || c.awaitingBoot() && c.probed() // to a replacement by the policy, too
	switch {
	case c.unusable() != "" && c.bootsUntil().IsZero() && (!matters || !c.replaced()):
		return notWanted("%s", c.unusable())
	case c.awaitingBoot() && c.probed():
		return dueAt(c.nextProbe(c.r.InstallReport.At, policy.ProbeInterval), "the installed system is asked by %s whether it is up",
			c.r.InstallRequest.SeenUp.Asks())
	case c.watched():
		return c.sayRoom(dueAt(c.nextLook(), "the installed system is watched by %s", c.r.Installed.SeenUp.Asks()))
	case c.installedCurrent():
		return notWanted("the installed system is not watched")
	case c.returning():
		return notWanted("the installed system is not back yet")
	case c.mayHaveWritten():
		if t, ok := c.trouble(); ok && t.agent {
			w := dueAt(c.nextProbe(t.at, policy.ProbeInterval), "when %s, the system that its install may have left is asked by %s", t.reason,
				c.r.InstallRequest.SeenUp.Asks())
			w.deadline = true
			return w
		}
		return waiting("waiting for the disk to be written")
	case c.calledOff() && !c.attemptOpen():
		return notWanted("the install was called off")
	case c.probed():
		return waiting("waiting for the disk to be written")
	}
	return notWanted("no probe was asked for")
}

// nextProbe is when the next probe is made: the first one at an instant, and the others an interval
// after the one before.
func (c judgement) nextProbe(first time.Time, interval time.Duration) time.Time {
	if p := c.newestProbe(); p != nil {
		return later(first, p.At.Add(interval))
	}
	return first
}

// nextLook is when a watched system is asked next; where its unit calls, when that is found late.
func (c judgement) nextLook() time.Time {
	interval := c.env.Policy.WatchInterval
	if c.r.Installed.SeenUp.By != fleet.SeenByUnit {
		return c.nextProbe(c.r.Installed.At.Add(interval), interval)
	}
	late := c.silentSince(c.lastCall()).Add(2 * c.toldInterval())
	return c.withRoom(c.nextProbe(late, interval))
}

// toldInterval is the longest interval that the unit of a watched system may have been told when it
// last called, or since. Not every call is recorded. A unit calls as its system boots.
func (c judgement) toldInterval() time.Duration {
	longest, told := c.env.Policy.CallInterval(), later(c.lastCall(), c.restartedAt())
	for _, before := range c.env.WatchedBefore {
		if !before.Until.Before(told) {
			longest = max(longest, before.Interval)
		}
	}
	return longest
}

// lastCall is when the unit of a watched system has last called.
func (c judgement) lastCall() time.Time {
	if p := c.newestProbe(); p != nil {
		return later(c.r.Installed.At, p.AnsweredAt)
	}
	return c.r.Installed.At
}

// probed reports whether the install that was asked for last is to be seen by probes.
func (c judgement) probed() bool {
	return c.r.InstallRequest != nil && c.r.InstallRequest.SeenUp.By != fleet.SeenByUnit
}

// mayLackUnit hints that no call may ever come of an install that is to be seen by one; "" where
// nothing speaks for that.
func (c judgement) mayLackUnit() string {
	if q := c.r.InstallRequest; q != nil && q.MayLackUnit() {
		return " (an image with cloud-init may have no such unit)"
	}
	return ""
}

// mayHaveWritten reports whether nobody has heard how the newest attempt at an install ended, and
// its system would prove by SSH that it is the one.
func (c judgement) mayHaveWritten() bool {
	if !c.probed() || c.r.InstallRequest.SeenUp.By != fleet.SeenBySSH || c.calledOff() || c.installedCurrent() {
		return false
	}
	a, rep := c.r.InstallAttempt, c.r.InstallReport
	expired := a != nil && rep != nil && a.Generation == c.r.InstallRequest.Generation && rep.Generation == a.Generation && rep.Attempt == a.Attempt &&
		!rep.OK && rep.Disk == fleet.DiskUnknown
	return c.attemptOpen() || expired
}

// watched reports whether an installed system runs that is asked again and again.
func (c judgement) watched() bool { return c.installedCurrent() && c.r.Installed.SeenUp.Watch }

// newestProbe is what was found of the install that is waited for, or that runs; nil: nothing yet.
func (c judgement) newestProbe() *fleet.Probe {
	p := c.r.Probe
	switch {
	case p == nil:
	case c.awaitingBoot() && p.Generation == c.r.InstallReport.Generation && p.Attempt == c.r.InstallReport.Attempt:
		return p
	case c.mayHaveWritten() && p.Generation == c.r.InstallAttempt.Generation && p.Attempt == c.r.InstallAttempt.Attempt:
		return p
	case c.installedCurrent() && p.Generation == c.r.Installed.Generation && p.Attempt == c.r.Installed.Attempt:
		return p
	}
	return nil
}

// foundSilent reports whether a probe that was made at an instant or later was not answered.
func (c judgement) foundSilent(at time.Time) bool {
	p := c.newestProbe()
	return p != nil && !p.Answered() && !p.At.Before(at)
}

// unansweredSince is when the row of probes began that show that a system does not come up; zero:
// there is none.
func (c judgement) unansweredSince() time.Time {
	if p := c.newestProbe(); p != nil && c.awaitingBoot() && c.probed() {
		return p.UnansweredSince
	}
	return time.Time{}
}

// unreachable reports whether the installed system is watched, and no probe has been answered for
// so long, in which its provider has said that the machine is on.
func (c judgement) unreachable() bool {
	p := c.newestProbe()
	if !c.watched() || p == nil || p.Answered() {
		return false
	}
	since := later(c.workedOn(p.UnansweredSince), c.activeSince())
	return c.foundSilent(since.Add(c.env.Policy.UnreachableAfter))
}

// found says in words what the newest probe has found, and that no other could be made since, where
// that is so; "" before the first.
func (c judgement) found() string {
	newest, unasked := c.newest(), c.unasked()
	if newest != "" && unasked != "" {
		newest += "; "
	}
	return newest + unasked
}

// unasked says since when the installed system cannot be asked, and why; "" where the last probe
// could be made. A unit calls by itself.
func (c judgement) unasked() string {
	b := c.r.Backoffs[fleet.ProcessProbe]
	if b.Since.IsZero() || c.installedCurrent() && c.r.Installed.SeenUp.By == fleet.SeenByUnit {
		return ""
	}
	return fmt.Sprintf("it cannot be asked since %s: %s", fleet.Instant(b.Since), b.Cause)
}

func (c judgement) newest() string {
	p := c.newestProbe()
	switch {
	case p == nil:
		return ""
	case c.awaitingBoot():
		return p.Detail
	case p.Answered() && c.r.Installed.SeenUp.By == fleet.SeenByUnit:
		return "its unit calls"
	case c.r.Installed.SeenUp.By == fleet.SeenByUnit:
		return "its unit has not called since " + fleet.Instant(c.lastCall())
	case p.Answered() && c.unasked() != "":
		return fmt.Sprintf("it last answered %s at %s", c.r.Installed.SeenUp.Asks(), fleet.Instant(p.At))
	case p.Answered():
		return "it answers " + c.r.Installed.SeenUp.Asks()
	}
	return fmt.Sprintf("it has not answered %s since %s: %s", c.r.Installed.SeenUp.Asks(), fleet.Instant(p.UnansweredSince), p.Detail)
}

// Awaited is an install whose system a probe is to show.
type Awaited struct {
	Generation fleet.InstallGeneration
	Attempt    int
	// Unreported: nobody has heard that the disk was written.
	Unreported bool
}

// AwaitedProbe returns which install a probe is to show the system of; false: of none.
func AwaitedProbe(r fleet.Record) (Awaited, bool) {
	switch c := (judgement{r: r}); {
	case c.awaitingBoot() && c.probed():
		return Awaited{Generation: r.InstallReport.Generation, Attempt: r.InstallReport.Attempt}, true
	case c.mayHaveWritten():
		return Awaited{Generation: r.InstallAttempt.Generation, Attempt: r.InstallAttempt.Attempt, Unreported: true}, true
	}
	return Awaited{}, false
}

// OughtToAnswer returns from when on it counts that a system that is to come up does not answer:
// its time to boot is over, and a step of recovery can have had its effect. Zero: no such system is
// known to be on the disk.
func OughtToAnswer(r fleet.Record, env fleet.Environment, now time.Time) time.Time {
	c := judgement{r: r, env: env, now: now}
	if !c.awaitingBoot() {
		return time.Time{}
	}
	if step := c.repairing(); step != nil {
		return c.workedOn(c.effectAt(*step))
	}
	return later(c.workedOn(r.InstallReport.At).Add(env.Policy.BootTimeout), c.activeSince())
}

// HasAgent reports whether an agent was started on the machine, and no install has ended it.
func HasAgent(r fleet.Record) bool { return judgement{r: r}.agent() != nil }

// Watched reports whether an installed system runs that is asked again and again.
func Watched(r fleet.Record) bool { return judgement{r: r}.watched() }

// Unreachable reports whether a watched system counts as unreachable.
func Unreachable(r fleet.Record, env fleet.Environment) bool {
	return judgement{r: r, env: env}.unreachable()
}
