package lifecycle

import (
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// The policy may have a machine replaced that its provider gave up (policy.replace_failed). That
// destroys what runs there, and no person has looked. A provider whose own records are wrong gives
// up machines that run, and many of them at once. So its word alone is not enough:
//
//   - A machine that is heard stays. Its agent is listened to and a watched system is probed as
//     before; the machine is replaced once nothing is heard of it.
//   - Nothing is replaced while recovery is stopped.
//   - Nothing is replaced while most machines of a provider are given up together. Only a count of
//     them tells that, so that is looked at by whoever carries it out, and not before a pass over a
//     long list has had the time to tell all of them.
//
// What the policy has asked for is judged like this until the provider has heard of it, under the
// newest policy. A person may release or replace the machine at any time.

// replaced reports whether the policy gives the machine back, because its provider gave it up. An
// operation that failed leaves it to people, and so does a person who has asked for it to be
// switched off last: a replacement that came to nothing would leave no trace of that.
func (c judgement) replaced() bool {
	p := c.r.Provided
	return c.env.Policy.ReplaceFailed && p != nil && p.Status == fleet.ProviderStatusFailed && c.r.Quarantine == nil &&
		c.inMaintenance() == "" && !c.wantedOff() && c.switchedOff() == "" && slices.Contains(c.r.Levers, fleet.LeverRelease) &&
		(c.policyAsks() || c.r.OpenOperation() == nil && (c.r.Operation == nil || c.r.Operation.At.Before(p.At)))
}

// policyAsks reports whether the policy has asked for what is under way, and the provider has not
// accepted it.
func (c judgement) policyAsks() bool {
	q, a := c.r.OpenOperation(), c.r.CurrentOperationAttempt()
	return q != nil && q.Actor == fleet.ActorPolicy && (a == nil || a.AcceptedAt == nil)
}

// passTells is the time within which a pass records what it has found of all machines of a
// provider: a hundred of them in each transaction. It is too short where the process dies in the
// midst of that, and the next pass comes later.
const passTells = time.Minute

const givenUpReplaced = "the provider gave the machine up, and the policy has it replaced"

// replacement is what the policy does, from an instant on, about a machine for which replaced
// holds.
func (c judgement) replacement(from time.Time) want {
	from = later(from, c.r.Provided.At.Add(passTells))
	w := dueAt(from, givenUpReplaced)
	what, until := c.heardOf()
	switch {
	case what != "" && until.IsZero() && !c.watched():
		return waiting("the provider gave the machine up, and the policy does not have it replaced: %s", what)
	case what != "" && until.IsZero():
		return waiting(givenUpReplaced+" once nothing is heard of it: %s", what)
	case what != "":
		w = c.sayRoom(dueAt(later(from, until), givenUpReplaced+" once nothing is heard of it: %s", what))
		w.deadline = true
	default:
		w.dueAt = later(from, until)
	}
	return c.afterRestore("the release", c.whileStopped(w, givenUpReplaced+" when recovery goes on, which is"))
}

// heardOf says what is heard of a machine that its provider gave up, or may be heard of it yet, and
// until when by time alone; zero: until a probe finds otherwise, or for good where nobody probes
// it. "": nothing, since that instant.
func (c judgement) heardOf() (what string, until time.Time) {
	up, policy := c.r.Installed, c.env.Policy
	switch {
	case c.watched() && !c.unreachable():
		return "its installed system is watched, and is not unreachable", time.Time{}
	case c.watched():
		return "", time.Time{}
	case c.installedCurrent() && up.At.After(c.r.Provided.At):
		return "its installed system has come up since", time.Time{}
	case c.installedCurrent(), c.agent() == nil:
		return "", time.Time{}
	case c.awaitingBoot():
		what, until = "its disk was written, and its installed system may be coming up", c.silentFor(c.r.InstallReport.At, policy.BootTimeout)
	case !c.spoken():
		what, until = "its agent was started, and may speak yet", c.silentFor(c.agent().At, policy.NeverSpokeAfter)
	default:
		what, until = "its agent is heard", c.silentFor(c.r.AgentSeen.LastAt, c.silentAfter())
	}
	if !until.After(c.now) {
		what = ""
	}
	return what, until
}

// Replaces reports whether the policy has a machine replaced that its provider gave up, and why not
// yet, where that is so. Whether the provider has given up too many to be believed is not judged.
func Replaces(r fleet.Record, env fleet.Environment, now time.Time) (wanted bool, notYet string) {
	c := judgement{r: r, env: env, now: now}
	if !c.replaced() {
		return false, ""
	}
	if w := c.replacement(r.Provided.At); w.verdict != Due || w.dueAt.After(now) {
		return true, w.reason
	}
	return true, ""
}

// HeardGivenUp says what is heard of a machine that the policy would have replaced if nothing were,
// because its provider gave it up; "": that is not so.
func HeardGivenUp(r fleet.Record, env fleet.Environment, now time.Time) string {
	return judgement{r: r, env: env, now: now}.heardGivenUp()
}

func (c judgement) heardGivenUp() string {
	if !c.replaced() {
		return ""
	}
	what, _ := c.heardOf()
	return what
}
