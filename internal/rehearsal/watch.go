package rehearsal

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Violation is an invariant that was seen to be broken.
type Violation struct {
	// Invariant, such as "I9".
	Invariant string        `json:"invariant"`
	At        time.Duration `json:"at"`
	Detail    string        `json:"detail"`
}

func (v Violation) String() string { return fmt.Sprintf("%s at %s: %s", v.Invariant, v.At, v.Detail) }

// watch is the observer. It sees what arrives at providers and hosts, and what is acknowledged to
// agents, and judges each step by that and by the facts in the database:
//
//   - I1: whoever begins an effect holds the lane under its newest epoch, or has lost it to a
//     person no longer ago than a lease lasts.
//   - I3: no epoch comes twice, and none is below one before it.
//   - I4: what was claimed and has ended is in history once; what was committed is there as it was.
//   - I5: backoffs are bounded, and a success resets them.
//   - I6: whoever begins an effect has a lease that is not over, and an effect without a number
//     follows a committed attempt.
//   - I7: a token is on one device; a device is released once; in the end provider and database
//     agree.
//   - I8: what was acknowledged to an agent is in the database from then on.
//   - I9: an attempt starts once; an installed system that runs is neither overwritten nor
//     restarted by a repair; nor is a machine restarted whose agent speaks.
//   - I10: creations keep their rate in every window, and recovery its limit at every moment.
//   - rule 5: a session is not given up while it may be trusted.
//   - rule 7: a superseded agent is not heard; no install is handed out that a restart of ours,
//     which is on its way, will cut.
//   - rule 8: nothing is created at a provider that a person has paused, and no host is touched by
//     ourselves whose machine a person has put in quarantine or in maintenance.
//   - rule 9: recovery does nothing to a machine whose agent runs and could be heard.
//
// I2 and I11 are judged from the database: its own check, and what is left in the end.
type watch struct {
	world      *world
	violations []Violation

	epochs map[string]fleet.Epoch
	claims []claimed
	// lanes are the newest claims of each lane, as indices.
	lanes  map[string]int
	voided map[fleet.MachineID]time.Time
	tokens map[fleet.Token]*device
	acks   map[fleet.MachineID]*acknowledged
	handed map[string]bool
	// failed is why the database could not be asked.
	failed error

	// what happened, for the report
	restarts          map[string]int
	creates, releases int
}

type claimed struct {
	subject   fleet.Subject
	process   fleet.Process
	epoch     fleet.Epoch
	at        time.Time
	cause     string // why the process had failed at the subject before
	committed shepherd.Outcome
}

func newWatch(w *world) *watch {
	return &watch{
		world: w, epochs: make(map[string]fleet.Epoch), voided: make(map[fleet.MachineID]time.Time), tokens: make(map[fleet.Token]*device),
		handed: make(map[string]bool), restarts: make(map[string]int), lanes: make(map[string]int), acks: make(map[fleet.MachineID]*acknowledged),
	}
}

func (w *watch) violate(invariant, format string, args ...any) {
	v := Violation{Invariant: invariant, At: w.world.elapsed(), Detail: w.world.anonymous(fmt.Sprintf(format, args...))}
	w.violations = append(w.violations, v)
	w.world.trace("VIOLATION %s", v)
}

// lost sees a loop that takes its session for lost.
func (w *watch) lost(l *loop, holder *shepherd.Holder) {
	if !l.controller.dead && holder.Trusted() {
		w.violate("rule 5", "%s of %s gives up a session that it may trust", l.process, l.controller.name)
	}
}

// void notes that a person took whatever is being done to a machine away from whoever does it.
func (w *watch) void(machine fleet.MachineID) { w.voided[machine] = w.world.now }

// effect sees that an effect begins: a call that changes something. d is nil for a creation.
func (w *watch) effect(ctx context.Context, what string, d *device) {
	st := w.world.current
	if st == nil || st.task == nil || st.owner.dead || ctx.Err() != nil {
		return
	}
	t := st.task
	work := t.Work
	if work.Subject.Machine == "" {
		w.ofProvider(what, work)
		return
	}
	r, there := w.record(work.Subject.Machine)
	if !there {
		return // it is gone: the caller finds out
	}
	w.asPeopleSay(what, work, r)
	if !w.holds(what, work, r) || d == nil {
		return
	}
	switch work.Process {
	case fleet.ProcessRecovery:
		w.recovers(what, t, r, d)
	case fleet.ProcessOperation:
		a, q := r.OperationAttempt, r.Operation
		if a == nil || q == nil || a.Number != q.Number {
			w.violate("I6", "%s of %s without a committed attempt", what, d.capacity)
		}
	}
}

// pulled sees that a lever is pulled at a device; nil: there is none. What it returns is called
// when the provider refuses the call for its pace: then a step of recovery is taken back, and
// another machine may have its place.
func (w *watch) pulled(ctx context.Context, what string, d *device) (notCounted func()) {
	if d == nil {
		w.effect(ctx, what, nil)
		return func() {}
	}
	before := d.host.recovering
	w.effect(ctx, what, d)
	after := d.host.recovering
	return func() {
		if d.host.recovering.Equal(after) { // it was not heard meanwhile
			d.host.recovering = before
		}
	}
}

// asPeopleSay checks that nobody touches a host that a person keeps everything away from. Whoever
// had begun before learns of it within a lease.
func (w *watch) asPeopleSay(what string, work *bmdb.Work, r fleet.Record) {
	if work.Process != fleet.ProcessRecovery && work.Process != fleet.ProcessAgentStart {
		return // a person has asked for it
	}
	said := w.world.now.Add(-w.world.setup.SessionLease)
	if q := r.Quarantine; q != nil && q.At.Before(said) {
		w.violate("rule 8", "%s: %s of %s, which is in quarantine", work.Process, what, r.ID)
	}
	if m := r.Maintenance; m != nil && !m.Over && m.At.Before(said) && (m.Until == nil || m.Until.After(w.world.now)) {
		w.violate("rule 8", "%s: %s of %s, which is in maintenance", work.Process, what, r.ID)
	}
}

// record returns what the database has of a machine.
func (w *watch) record(machine fleet.MachineID) (r fleet.Record, there bool) {
	r, err := w.world.db.Machine(w.world.ctx, machine)
	if err != nil && fleet.KindOf(err) != fleet.KindNotFound {
		w.failed = err
	}
	return r, err == nil
}

// holds checks that whoever acts on a machine is who may.
func (w *watch) holds(what string, work *bmdb.Work, r fleet.Record) bool {
	lease := w.world.setup.SessionLease
	hold, held := r.Holds[work.Process.Lane()]
	mine := held && hold.Session == work.Session && hold.Epoch == work.Epoch
	at, voided := w.voided[r.ID]
	switch {
	case !mine && voided && w.world.now.Sub(at) <= lease:
	case !mine:
		w.violate("I1", "%s of %s by epoch %d, which does not hold the lane (%+v)", what, r.ID, work.Epoch, hold.Epoch)
		return false
	case w.world.now.After(hold.Deadline):
		w.violate("I6", "%s of %s %s after the end of the lease", what, r.ID, w.world.now.Sub(hold.Deadline))
		return false
	}
	return true
}

func (w *watch) ofProvider(what string, work *bmdb.Work) {
	for _, p := range w.world.providers {
		s := p.base()
		if s.name == work.Subject.Provider && !s.paused.IsZero() && w.world.now.Sub(s.paused) > w.world.setup.SessionLease {
			w.violate("rule 8", "%s at %s, which was paused %s ago", what, s.name, w.world.now.Sub(s.paused))
		}
	}
	sessions, err := w.world.db.Sessions(w.world.ctx, false)
	if err != nil {
		w.failed = err
		return
	}
	i := slices.IndexFunc(sessions, func(s bmdb.SessionRow) bool { return s.ID == work.Session })
	if i < 0 {
		w.violate("I1", "%s at %s by epoch %d, whose session has ended", what, work.Subject.Provider, work.Epoch)
		return
	}
	if w.world.now.After(sessions[i].Deadline) {
		w.violate("I6", "%s at %s %s after the end of the lease", what, work.Subject.Provider, w.world.now.Sub(sessions[i].Deadline))
	}
}

// recovers checks a step of recovery that reaches the provider.
func (w *watch) recovers(what string, t *task, r fleet.Record, d *device) {
	world, h, policy := w.world, d.host, w.world.setup.Policy
	if t.holding.loop.controller.pausedUntil.After(t.claimed) {
		return // it stood still between its look and its call: rule 7 tells of that
	}
	if r.Repair == nil || string(r.Repair.Rung) != what && what != "power-on" || r.Repair.At.Before(t.claimed) && what != "power-on" {
		w.violate("I6", "recovery: %s of %s without a committed step", what, d.capacity)
		return
	}
	if h.agent != nil && r.AgentStarted != nil && h.reachable() && h.agent.identity.TakeoverGeneration == r.AgentStarted.TakeoverGeneration {
		switch since := world.hearable(h.agent.since); {
		case !h.agent.heard.IsZero() && h.agent.heard.After(r.Repair.At):
			w.violate("I9", "recovery: %s of %s, whose agent was heard %s ago", what, d.capacity, world.now.Sub(h.agent.heard))
		case since > policy.SilentAfter:
			w.violate("rule 9", "recovery: %s of %s, whose agent could be heard for %s", what, d.capacity, since)
		}
	}
	if r.Installed != nil && h.up && h.booted == (attempt{r.Installed.Generation, r.Installed.Attempt}) &&
		(r.InstallRequest == nil || r.InstallRequest.Generation <= r.Installed.Generation) {
		w.violate("I9", "recovery: %s of %s, whose installed system runs", what, d.capacity)
	}
	w.recoveredAtOnce(what, d)
}

// recoveredAtOnce counts the machines of a provider, and of a rack, that are under recovery, as far
// as they are seen from outside.
func (w *watch) recoveredAtOnce(what string, d *device) {
	world, policy := w.world, w.world.setup.Policy
	n, there := 1, 1
	for _, other := range d.source.devices {
		h := other.host
		// A takeover is evidence, and so is an installed system that was heard: the step has helped.
		helped := h.agent != nil && !h.agent.since.Before(h.recovering)
		if other != d && !h.recovering.IsZero() && world.now.Sub(h.recovering) < policy.RecoveryStepTimeout-time.Minute && !helped && !w.takenAway(other) {
			n++
			if other.rack() == d.rack() {
				there++
			}
		}
	}
	if what != "power-on" {
		d.host.recovering = world.now
	}
	if limit := policy.RecoveryAtOnce; limit > 0 && n > limit {
		w.violate("I10", "%d machines of %s are under recovery at once, and %d may be", n, d.source.name, limit)
	}
	if limit := policy.RecoveryAtOncePerLocation; limit > 0 && there > limit {
		w.violate("I10", "%d machines of one rack of %s are under recovery at once, and %d may be", there, d.source.name, limit)
	}
}

// takenAway reports whether a person has asked for something since that ends the recovery of a
// machine: then nothing is expected of it any more.
func (w *watch) takenAway(d *device) bool {
	r, there := w.record(d.machine)
	if !there {
		return d.machine != "" // the machine is gone
	}
	q, a := r.Operation, r.OperationAttempt
	switch {
	case r.Quarantine != nil:
		return true
	case q == nil:
		return false
	case q.Operation.GivesBack():
		return r.OpenOperation() != nil
	}
	return q.Operation == fleet.OperationPowerOff && a != nil && a.Number == q.Number && a.AcceptedAt != nil
}

// takeover sees a takeover begin.
func (w *watch) takeover(ctx context.Context, h *host) {
	st := w.world.current
	if st.owner.dead || ctx.Err() != nil {
		return
	}
	w.effect(ctx, "takeover", nil)
	for _, other := range h.taking {
		if other.holding.loop.controller.dead || other.Work.Epoch == st.task.Work.Epoch {
			continue
		}
		if at, voided := w.voided[st.task.Work.Subject.Machine]; voided && w.world.now.Sub(at) <= w.world.setup.SessionLease {
			continue
		}
		if other.holding.holder.Trusted() {
			w.violate("I1", "two take %s over at once: epochs %d and %d", h.device.capacity, other.Work.Epoch, st.task.Work.Epoch)
		}
	}
	if r, there := w.record(st.task.Work.Subject.Machine); there && r.Installed != nil && h.up &&
		h.booted == (attempt{r.Installed.Generation, r.Installed.Attempt}) && r.InstallRequest != nil &&
		r.InstallRequest.Generation <= r.Installed.Generation && !r.Installed.At.After(st.task.claimed) {
		w.violate("I9", "%s is taken over although its installed system runs", h.device.capacity)
	}
	h.taking = append(h.taking, st.task)
}

func (w *watch) takenOver(h *host) {
	t := w.world.current.task
	h.taking = slices.DeleteFunc(h.taking, func(other *task) bool { return other == t })
}

// landed sees a device come into being.
func (w *watch) landed(s *source, d *device) {
	w.creates++
	for _, token := range d.tokens {
		if w.tokens[token] != nil {
			w.violate("I7", "a second device has the token of %s", w.tokens[token].capacity)
		}
		w.tokens[token] = d
	}
	s.created = append(s.created, w.world.now)
	i := slices.IndexFunc(w.world.setup.Providers, func(p Provider) bool { return p.Name == s.name })
	rate := w.world.setup.Providers[i].Provisioner.CreateRate
	// Each controller has a bucket of its own. A request arrives some time after its token, and later
	// where the process stood still in between: no rate of ours can help that.
	onTheWay := 2 * time.Second
	for _, e := range w.world.plan.Events {
		if e.What == Pause {
			onTheWay = max(onTheWay, e.For+2*time.Second)
		}
	}
	onTheWay += rate.Every / 2 // by which it may be early
	buckets := len(w.world.controllers)
	for n := len(s.created) - 1; n >= 0; n-- {
		window := w.world.now.Sub(s.created[n]) + onTheWay
		if most := buckets*rate.Burst + int(window/rate.Every); len(s.created)-n > most && len(s.created)-n > 1 {
			w.violate("I10", "%d machines were created at %s within %s", len(s.created)-n, s.name, window)
			return
		}
	}
}

// released sees a device that is given back.
func (w *watch) released(d *device) {
	if d.releases > 1 {
		w.violate("I7", "%s is released for the %d. time", d.capacity, d.releases)
		return
	}
	w.releases++
	w.world.note("a machine of %s is given back", d.source.name)
}

// restarted sees a host restart, or its provider reinstall it.
func (w *watch) restarted(h *host, why string) {
	w.restarts[why]++
	w.world.note("a machine of %s %s", h.device.source.name, restartWords[why])
}

// handedOut sees an attempt that was handed out.
func (w *watch) handedOut(h *host, id attempt) {
	if h.cut.After(w.world.now) {
		w.violate("rule 7", "install %d/%d of %s is handed out, and will be cut by our own restart in %s", id.generation, id.number, h.device.capacity,
			h.cut.Sub(w.world.now))
	}
	key := fmt.Sprintf("%s %d %d", h.device.id, id.generation, id.number)
	if w.handed[key] {
		w.violate("I9", "install %d/%d of %s is handed out twice", id.generation, id.number, h.device.capacity)
	}
	w.handed[key] = true
}

// installs sees an install begin.
func (w *watch) installs(h *host, a *agent, id attempt) {
	key := fmt.Sprintf("%d/%d", id.generation, id.number)
	if _, before := h.started[key]; before {
		w.violate("I9", "install %s of %s starts twice", key, h.device.capacity)
	}
	h.started[key] = w.world.elapsed()
	// A further attempt at what this very boot has written is no harm: nothing of it has run. The
	// agent allows it, because the attempt before may have ended between its last write and its
	// report.
	repeats := h.system.generation == id.generation && h.system.number < id.number && h.written == h.boots
	if h.system.generation >= id.generation && !repeats {
		w.violate("I9", "install %s of %s overwrites install %d/%d", key, h.device.capacity, h.system.generation, h.system.number)
	}
	if a.superseded {
		w.violate("rule 7", "a superseded agent of %s installs", h.device.capacity)
	}
}

// spoke sees that what an agent says counts.
func (w *watch) spoke(a *agent) {
	if a.host.device.source.installs {
		w.world.wanted[a.identity.Machine] = true
	}
	if a.superseded {
		if r, there := w.record(a.identity.Machine); there && r.AgentStarted != nil &&
			r.AgentStarted.TakeoverGeneration > a.identity.TakeoverGeneration {
			w.violate("rule 7", "a superseded agent of %s is heard", a.host.device.capacity)
		}
	}
}

// lied sees what became of a lie about an install that was never handed out. One that is older than
// the newest attempt is acknowledged without effect, so an acknowledgement alone says nothing.
func (w *watch) lied(h *host, machine fleet.MachineID, lie fleet.InstallReport, err error) {
	if err != nil || w.handed[fmt.Sprintf("%s %d %d", h.device.id, lie.Generation, lie.Attempt)] {
		return
	}
	r, there := w.record(machine)
	if !there {
		return
	}
	newest, report := r.InstallAttempt, r.InstallReport
	counts := report != nil && report.Generation == lie.Generation && report.Attempt == lie.Attempt
	older := newest != nil && (lie.Generation < newest.Generation || lie.Generation == newest.Generation && lie.Attempt < newest.Attempt)
	if counts || !older {
		w.violate("I9", "a report of install %d/%d of %s counts, which was never handed out", lie.Generation, lie.Attempt, h.device.capacity)
	}
}

// reported sees a report that was acknowledged.
func (w *watch) reported(_ *host, machine fleet.MachineID, report fleet.InstallReport) {
	acks := w.ack(machine)
	acks.reports = append(acks.reports, report)
	w.judgeNow(machine)
}

// installed sees an installed system that was acknowledged.
func (w *watch) installed(h *host, in *install) {
	machine := in.agent.identity.Machine
	acks := w.ack(machine)
	acks.ups = append(acks.ups, in.id)
	w.judgeNow(machine)
	w.world.note("a machine of %s runs what was installed", h.device.source.name)
}
