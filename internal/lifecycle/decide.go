package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Rules is the number of what Decide does. It is raised with each change by which the same facts
// get another state or other instants: then the machines that were judged before are judged again.
const Rules = 20

// Decide judges one machine. See the package comment for what it promises.
func Decide(r fleet.Record, env fleet.Environment, now time.Time) Plan {
	c := judgement{r: r, env: env, now: now}
	plan := Plan{Decisions: []Decision{
		c.provision(),
		c.decideAgentStart(),
		c.decideFor(fleet.ProcessInstall, c.maintained(c.install())),
		c.decideFor(fleet.ProcessOperation, c.operation()),
		c.limited(c.decideFor(fleet.ProcessRecovery, c.maintained(c.afterRestore("recovery", c.recovery())))),
		c.decideFor(fleet.ProcessProbe, c.maintained(c.afterRestore("the probe", c.probe()))),
		c.update(),
	}}
	for i := range plan.Decisions {
		c.attended(&plan.Decisions[i])
	}
	plan.State, plan.Reason = c.state()
	return plan
}

// judgement is what one call of Decide decides from.
type judgement struct {
	r   fleet.Record
	env fleet.Environment
	now time.Time
}

// want is what the facts alone say of a process, before its backoff and the holds are looked at.
type want struct {
	verdict Verdict // NotWanted, Waiting, or Due, which here means: to be done at dueAt
	dueAt   time.Time
	reason  string
	rung    fleet.Rung // of recovery
	// deadline: it is done only if nothing is heard of the machine by then
	deadline bool
}

func notWanted(format string, args ...any) want {
	return want{verdict: NotWanted, reason: fmt.Sprintf(format, args...)}
}

func waiting(format string, args ...any) want {
	return want{verdict: Waiting, reason: fmt.Sprintf(format, args...)}
}

func dueAt(at time.Time, format string, args ...any) want {
	return want{verdict: Due, dueAt: at, reason: fmt.Sprintf(format, args...)}
}

// decideFor makes a decision of what the facts say, the hold of the lane, and the backoff.
func (c judgement) decideFor(process fleet.Process, w want) Decision {
	// somebody may have put it right by then, or a newer version may be able to
	if c.r.Unreadable != "" {
		w = dueAt(c.now.Add(unreadableAgain), "what is recorded of the machine cannot be read: %s", c.r.Unreadable)
	}
	return decide(process, w, c.r.Holds, c.r.Backoffs, c.now)
}

func decide(process fleet.Process, w want, holds map[fleet.Lane]fleet.Hold, backoffs map[fleet.Process]fleet.BackoffState,
	now time.Time,
) Decision {
	d := Decision{Process: process, Verdict: w.verdict, DueAt: w.dueAt, Reason: w.reason, Rung: w.rung, Deadline: w.deadline}
	hold, held := holds[process.Lane()]
	if held && hold.Process == process {
		d.Verdict, d.DueAt, d.Hold = Running, hold.Deadline, &hold
		d.Reason = fmt.Sprintf("held by session %s (%s on %s, epoch %d)", hold.Session, hold.Component, hold.Host, hold.Epoch)
		return d
	}
	if !w.verdict.Scheduled() {
		d.DueAt = time.Time{}
		return d
	}
	if b, ok := backoffs[process]; ok && b.NotBefore.After(d.DueAt) {
		d.DueAt = b.NotBefore
		if b.NotBefore.After(now) {
			d.Backoff = &b
			d.Reason = fmt.Sprintf("in backoff after %s: %s", failures(b.Failures), b.Cause)
		}
	}
	d.Verdict = Due
	if d.DueAt.After(now) {
		d.Verdict = Later
	}
	if held {
		// Another process has the lane. Its holder's session can end at its deadline.
		d.Verdict, d.DueAt = Later, later(d.DueAt, hold.Deadline)
		if !d.DueAt.After(now) {
			d.Verdict = Due
		}
		d.Reason = fmt.Sprintf("%s; the %s lane is held for %s by session %s", d.Reason, process.Lane(), hold.Process, hold.Session)
	}
	return d
}

// limited adds to the reason of what is due that the concurrency limit keeps it from being done.
func (c judgement) limited(d Decision) Decision {
	if d.Verdict != Due {
		return d
	}
	if most := c.env.Policy.RecoveryAtOnce; most > 0 && c.env.UnderRecovery >= most {
		d.Reason = fmt.Sprintf("%s; it waits until fewer than %d machines of %s are under %s", d.Reason, most, c.r.Provider, d.Process)
	}
	if most := c.env.Policy.RecoveryAtOncePerLocation; most > 0 && c.env.UnderRecoveryThere >= most {
		d.Reason = fmt.Sprintf("%s; its location is at its limit: it waits until fewer than %d machines of %s in %s are under %s",
			d.Reason, most, c.r.Provider, c.r.Provided.Location, d.Process)
	}
	return d
}

// attended adds to the reason of what is to be done that nobody is there who does it.
func (c judgement) attended(d *Decision) {
	role := d.Process.Role()
	switch {
	case d.Verdict == NotWanted, d.Verdict == Running && d.DueAt.After(c.now):
	case role == fleet.RoleAgentAPI && c.awaitingBoot() && c.probed(): // the prober sees it
	case slices.Contains(c.env.Missing, role):
		d.Reason += ", but " + Nobody(role)
	case c.env.Abandoned && slices.Contains(c.env.Unserved, role):
		d.Reason += ", but " + NobodyServes(c.r.Provider)
	case slices.Contains(c.env.Unserved, role):
		d.Reason += ", but " + NobodyServes(c.r.Provider, role)
	}
}

// NobodyServes says that nobody who has one of the roles has it for that provider, or, without
// roles, that nobody has any for it.
func NobodyServes(provider fleet.ProviderName, roles ...fleet.Role) string {
	if len(roles) == 0 {
		return fmt.Sprintf("no live control plane serves provider %s", provider)
	}
	words := make([]string, len(roles))
	for i, role := range roles {
		words[i] = string(role)
	}
	return fmt.Sprintf("no live control plane that has the role %s serves provider %s", strings.Join(words, " or "), provider)
}

// Nobody says that a role is missing.
func Nobody(role fleet.Role) string {
	return fmt.Sprintf("no live control plane has the role %s", role)
}

// provision explains the creation of the machine. It has no row in the agenda, because its subject
// is the provider.
func (c judgement) provision() Decision {
	d := Decision{Process: fleet.ProcessProvision}
	intent := c.r.Intent
	switch {
	case intent == nil && c.r.ProviderID != "":
		d.Reason = "the provider has created the machine"
	case intent == nil:
		d.Reason = "no intent is open"
	case intent.Calls > intent.Rejected && c.env.Paused != nil:
		d.Verdict = Waiting
		d.Reason = fmt.Sprintf("%s was asked %s for capacity %s; an outcome that was not answered is looked for after the pause: %s",
			c.r.Provider, times(intent.Calls), intent.Capacity, paused(c.r.Provider, *c.env.Paused))
	case intent.Calls > intent.Rejected:
		d.Verdict = Waiting
		d.Reason = fmt.Sprintf("%s was asked %s for capacity %s; the outcome is not confirmed yet",
			c.r.Provider, times(intent.Calls), intent.Capacity)
		if why := c.nothingCreated(); why != "" {
			d.Reason += "; " + why
		}
	case c.env.Paused != nil:
		d.Verdict = Waiting
		d.Reason = paused(c.r.Provider, *c.env.Paused)
	case c.nothingCreated() != "":
		d.Verdict = Waiting
		d.Reason = c.nothingCreated()
		if intent.Calls > 0 {
			d.Reason = fmt.Sprintf("the provider rejected %s for capacity %s; %s", requests(intent.Calls), intent.Capacity, d.Reason)
		}
	case intent.Calls > 0:
		d.Verdict = Waiting
		d.Reason = fmt.Sprintf("the provider rejected %s for capacity %s; the provisioner is to try again or give it up",
			requests(intent.Calls), intent.Capacity)
	case intent.PlannedAt.After(c.now):
		d.Verdict = Waiting
		d.Reason = fmt.Sprintf("waiting for creation pacing: its turn at %s is in about %s",
			c.r.Provider, intent.PlannedAt.Sub(c.now).Round(time.Second))
	default:
		d.Verdict = Waiting
		d.Reason = fmt.Sprintf("waiting for creation pacing: next in line at %s", c.r.Provider)
	}
	return d
}

// nothingCreated says why passes over the provider create nothing; "": they do.
func (c judgement) nothingCreated() string {
	switch {
	case c.env.Discrepancies > 0:
		return fmt.Sprintf("creation at %s is stopped by discrepancies (%s): `ironherd discrepancy list` says what ends each",
			c.r.Provider, fleet.Counted(int64(c.env.Discrepancies)))
	case c.env.PassFailed != nil:
		return fmt.Sprintf("nothing is created at %s while its passes fail: %s", c.r.Provider, c.env.PassFailed.Cause)
	}
	return ""
}

// update explains when the machine's facts are refreshed. It has no row in the agenda either.
func (c judgement) update() Decision {
	d := Decision{Process: fleet.ProcessUpdate, Verdict: Waiting}
	switch {
	case c.r.Provided == nil:
		d.Verdict, d.Reason = NotWanted, "the provider has not confirmed the machine yet"
	case c.changing(c.r.Provided):
		d.Reason = fmt.Sprintf("%s is asked every %s while the machine is %s", c.r.Provider, c.env.Policy.UpdateInterval, c.r.Provided.Status)
	default:
		d.Verdict = NotWanted
		d.Reason = fmt.Sprintf("settled; refreshed with the whole provider every %s", c.env.Policy.UpdateSettledInterval)
	}
	return d
}

// OffSettles is how long a machine that is not on counts as changing: it may be on its way on.
const OffSettles = 15 * time.Minute

// unreadableAgain is how long a machine is put off of which something cannot be read.
const unreadableAgain = time.Hour

// MayChange says whether a status may change by itself, so that its provider is asked more often.
// One of a machine that is not on does so for OffSettles.
func MayChange(p *fleet.Provided) bool {
	return p != nil && (p.Status == fleet.ProviderStatusCreating || p.Status == fleet.ProviderStatusDeleting || p.Status.Down())
}

// changing says whether what a provider says is expected to change by itself.
func (c judgement) changing(p *fleet.Provided) bool {
	return MayChange(p) && (!p.Status.Down() || c.now.Sub(p.At) < OffSettles)
}

// afterRestore makes what would be done wait while the database looks restored or copied: it may
// not know what has become of the machine.
func (c judgement) afterRestore(what string, w want) want {
	if c.env.Restored == "" || w.verdict != Due {
		return w
	}
	return waiting("the database looks restored or copied (%s): %s waits for `ironherd db accept-restore`", c.env.Restored, what)
}

// unusable returns why nothing is to be done on the host; "" when there is no such reason.
func (c judgement) unusable() string {
	switch p := c.r.Provided; {
	case c.r.Quarantine != nil:
		return "quarantined by " + fleet.ShownActor(c.r.Quarantine.Actor) + ": " + c.r.Quarantine.Reason
	case p == nil:
		return ""
	case p.Status == fleet.ProviderStatusFailed:
		return fmt.Sprintf("the provider gave the machine up: %s; %s", p.Detail, c.remedyOfFailed())
	case p.Status == fleet.ProviderStatusGone:
		return "the provider does not have the machine; " + EndOfMissing(c.r)
	case c.givenBack() != "":
		return c.givenBack()
	case c.switchedOff() != "":
		return fmt.Sprintf("%s; `ironherd machine power on %s --reason WHY` switches it on", c.switchedOff(), c.r.ID)
	case p.Status == fleet.ProviderStatusDeleting:
		return "the provider is deleting the machine"
	}
	return ""
}

// remedyOfFailed says who acts next on a machine that its provider gave up.
func (c judgement) remedyOfFailed() string {
	switch heard := c.heardGivenUp(); {
	case heard != "":
		return fmt.Sprintf("%s, so the policy does not have it replaced now; `ironherd machine replace %s --reason WHY` gives it back", heard, c.r.ID)
	case c.givenBack() != "":
		return c.givenBack()
	case c.replaced():
		return "the policy has it replaced"
	case !slices.Contains(c.r.Levers, fleet.LeverRelease):
		return fmt.Sprintf("%s cannot be asked to take it back: use its own tools, and when it is gone `ironherd machine forget %s --reason WHY` removes it here",
			c.r.Provider, c.r.ID)
	}
	return fmt.Sprintf("`ironherd machine replace %s --reason WHY` gives it back", c.r.ID)
}

func (c judgement) install() want {
	req := c.r.InstallRequest
	switch {
	case req == nil:
		return notWanted("no operating system was asked for")
	case c.r.Installed != nil && c.r.Installed.Generation >= req.Generation:
		// It may have been called off, and too late.
		return notWanted("installed (%s)", c.r.Installed.Words())
	case c.calledOff() && c.attemptOpen():
		return dueAt(c.r.InstallAttempt.At.Add(c.env.Policy.ReportWithin()),
			"called off by %s: %s; the agent is told with its next heartbeat", c.r.InstallCancel.Actor, c.r.InstallCancel.Reason)
	case c.calledOff():
		return notWanted("called off by %s: %s", c.r.InstallCancel.Actor, c.r.InstallCancel.Reason)
	case c.installedCurrent():
		return notWanted("installed (%s)", c.r.Installed.Words())
	case c.unusable() != "":
		return notWanted("%s", c.unusable())
	case c.awaitingBoot():
		return c.installedComesUp()
	case c.attemptOpen():
		return dueAt(c.r.InstallAttempt.At.Add(c.env.Policy.ReportWithin()),
			"attempt %d is under way since %s; it is given up after %s", c.r.InstallAttempt.Attempt,
			fleet.Instant(c.r.InstallAttempt.At), c.env.Policy.ReportWithin())
	case c.outdatedAttempt() != nil:
		a := c.outdatedAttempt()
		return dueAt(a.At.Add(c.env.Policy.ReportWithin()),
			"attempt %d at install generation %d, which is not wanted any more, is under way; its agent is told with its next heartbeat", a.Attempt, a.Generation)
	case c.installRefused(), c.notUnderstood():
		return waiting("%s", c.refusal())
	case c.env.Restored != "":
		return waiting("the database looks restored or copied (%s): installs wait for `ironherd db accept-restore`", c.env.Restored)
	case c.agent() == nil:
		return waiting("waiting for the agent to be started")
	case !c.spoken():
		return waiting("waiting for a heartbeat")
	case c.r.Hardware == nil:
		return waiting("waiting for the hardware report")
	}
	at := later(req.At, c.r.AgentSeen.FirstAt)
	if c.needsErase() {
		return c.installAfterRestart(dueAt(at, "the agent looks again whether the disk is empty by now"))
	}
	if c.excused() {
		return c.installAfterRestart(dueAt(at, "handed to the agent with its next heartbeat: %s", c.unheard()))
	}
	return c.installAfterRestart(dueAt(at, "handed to the agent with its next heartbeat"))
}

// installedComesUp waits for the installed system. It has an entry in the agenda at the instant at
// which the machine falls silent: by then it is judged again, whatever becomes of its recovery.
// What is seen by probes is judged after each.
func (c judgement) installedComesUp() want {
	const reason = "waiting for the unit of the installed system to call"
	t, ok := c.trouble()
	if c.probed() {
		return waiting("waiting for the installed system to answer %s", c.r.InstallRequest.SeenUp.Asks())
	}
	if !ok || c.repairing() != nil || !t.at.After(c.now) {
		return waiting(reason)
	}
	return dueAt(t.at, reason)
}

// agent returns the takeover that is in charge; nil when there is none. An install that succeeded
// ends the takeover before it, because the machine restarts into what was installed, and so does an
// installed system that was seen up since.
func (c judgement) agent() *fleet.AgentStarted {
	s, rep, up := c.r.AgentStarted, c.r.InstallReport, c.r.Installed
	if s == nil || rep != nil && rep.OK && rep.At.After(s.At) && !c.awaitingBoot() || up != nil && up.At.After(s.At) {
		return nil
	}
	return s
}

// spoken reports whether the agent of the current takeover has sent a heartbeat.
func (c judgement) spoken() bool {
	s := c.agent()
	return s != nil && c.r.AgentSeen != nil && c.r.AgentSeen.TakeoverGeneration == s.TakeoverGeneration
}

// installedCurrent reports whether the system that was asked for last has come up. Where that was
// called off, the one before it counts, unless an agent was started since.
func (c judgement) installedCurrent() bool {
	req, up := c.r.InstallRequest, c.r.Installed
	return up != nil && (req == nil || up.Generation >= req.Generation || c.keptByCancel() && !c.takenSince())
}

// calledOff reports whether a person does not want the newest request any more.
func (c judgement) calledOff() bool {
	return c.r.InstallCancel != nil && c.r.InstallRequest != nil && c.r.InstallCancel.Generation == c.r.InstallRequest.Generation
}

// handedOut reports whether an attempt at the newest request was ever handed to an agent.
func (c judgement) handedOut() bool {
	return c.r.InstallAttempt != nil && c.r.InstallAttempt.Generation == c.r.InstallRequest.Generation
}

// Installed reports whether an installed system runs and no newer one is wanted.
func Installed(r fleet.Record) bool { return judgement{r: r}.installedCurrent() }

// awaitingBoot reports whether the disk was written for the newest request, and the installed
// system has not come up yet.
func (c judgement) awaitingBoot() bool {
	rep := c.r.InstallReport
	return rep != nil && rep.OK && c.r.InstallRequest != nil && rep.Generation == c.r.InstallRequest.Generation && !c.installedCurrent()
}

// attemptOpen reports whether an attempt at the newest request was handed out and has not ended.
func (c judgement) attemptOpen() bool {
	a := c.r.OpenInstallAttempt()
	return a != nil && c.r.InstallRequest != nil && a.Generation == c.r.InstallRequest.Generation
}

// outdatedAttempt returns the attempt that was handed out for a request before the newest one, and
// has not ended; nil when there is none.
func (c judgement) outdatedAttempt() *fleet.InstallAttempt {
	if a := c.r.OpenInstallAttempt(); a != nil && c.r.InstallRequest != nil && a.Generation < c.r.InstallRequest.Generation {
		return a
	}
	return nil
}
