package bmdbtest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

type randomTest struct {
	name string
	run  func(w *world, r *rapid.T)
}

var randomTests = []randomTest{
	{"no agenda row is missing or later than lifecycle says", func(w *world, r *rapid.T) {
		newRandom(w, r, 1).walk()
	}},
	{"several sessions agree with a model of leases", func(w *world, r *rapid.T) {
		newRandom(w, r, 3).walk()
	}},
}

// random is one random life of a few machines and the sessions that work on them. After each step
// every agenda is compared with lifecycle, and every answer with a model of who holds what.
type random struct {
	*world
	r        *rapid.T
	machines []fleet.MachineID
	holders  []*holder
	// held is the model: the work that has the host lane of a machine.
	held   map[fleet.MachineID]*leased
	epochs map[fleet.MachineID]fleet.Epoch
	agents map[fleet.MachineID][]bmdb.AgentIdentity
	orders map[fleet.MachineID][]*bmdb.InstallOrder
}

// walkLease is the lease of the sessions of a walk. It is so long because a session also ends by
// the process's own clock, which nobody moves: a walk may take minutes on a busy machine.
const walkLease = 20 * time.Minute

// holder is a session with the model's view of it.
type holder struct {
	session *bmdb.Session
	// deadline is not later than that of the database.
	deadline time.Time
	works    []*leased
}

// leased is a work with the model's view of it; ended is how it ended, "" while it has not.
type leased struct {
	*bmdb.Work
	ended string
}

func newRandom(w *world, r *rapid.T, sessions int) *random {
	x := &random{
		world: w, r: r, held: make(map[fleet.MachineID]*leased), epochs: make(map[fleet.MachineID]fleet.Epoch),
		agents: make(map[fleet.MachineID][]bmdb.AgentIdentity), orders: make(map[fleet.MachineID][]*bmdb.InstallOrder),
	}
	x.machines = w.machines(nil, "c1", "c2")
	x.machines = append(x.machines, w.wantsInstall("c3"))
	for range sessions {
		x.newHolder()
	}
	return x
}

func (x *random) newHolder() {
	deadline := x.now().Add(walkLease)
	s := x.sessionFor(fmt.Sprintf("s%d", len(x.holders)), walkLease)
	x.holders = append(x.holders, &holder{session: s, deadline: deadline})
}

// walk makes random steps.
func (x *random) walk() {
	steps := map[string]func(){
		"advance": x.advance, "claim": x.claimSome, "claim again": x.claimSome, "claim once more": x.claimSome, "end": x.end,
		"end again": x.end, "take over": x.takeOver, "extend": x.extend, "collect": x.collect, "close": x.close, "provider": x.provide,
		"speak": x.speak, "speak again": x.speak, "flush": x.flush, "report hardware": x.reportHardware, "hand out": x.handOutSome, "report install": x.reportInstall,
		"come up": x.comeUp, "expire installs": x.expireInstalls, "quarantine": x.quarantine, "ask for install": x.askInstall,
		"retry": x.retry, "listener": x.listener, "no room": x.noRoom, "policy": x.policy, "janitor": x.janitor,
	}
	names := slices.Sorted(maps.Keys(steps))
	for range rapid.IntRange(1, 40).Draw(x.r, "steps") {
		steps[rapid.SampledFrom(names).Draw(x.r, "step")]()
		x.compareAgendas()
		x.compareLeases()
	}
}

func (x *random) machineDrawn() fleet.MachineID {
	return x.machines[rapid.IntRange(0, len(x.machines)-1).Draw(x.r, "machine")]
}

func (x *random) holderDrawn() *holder { return rapid.SampledFrom(x.holders).Draw(x.r, "session") }

func (x *random) advance() {
	x.shift.Advance(rapid.SampledFrom([]time.Duration{
		time.Second, time.Minute, 11 * time.Minute, walkLease - margin, walkLease + margin, time.Hour,
	}).Draw(x.r, "by"))
}

// ended reads which sessions have ended, and holds the database to it: none but those closed or
// past their deadline.
func (x *random) ended() map[fleet.SessionID]bool {
	list, err := x.db.Sessions(x.ctx, true)
	x.must(err)
	ended := make(map[fleet.SessionID]bool)
	for _, s := range list {
		if s.EndedAt.IsZero() {
			continue
		}
		ended[s.ID] = true
		for _, h := range x.holders {
			if h.session.ID() == s.ID && s.EndedAt.Before(h.deadline) && s.Cause != "closed" {
				x.Fatalf("session %s was ended at %s, before its deadline %s", s.ID, s.EndedAt, h.deadline)
			}
		}
	}
	return ended
}

func (x *random) claimSome() {
	h := x.holderDrawn()
	process := rapid.SampledFrom([]fleet.Process{fleet.ProcessAgentStart, fleet.ProcessRecovery}).Draw(x.r, "process")
	limit := rapid.IntRange(1, 3).Draw(x.r, "limit")
	was := x.ended()
	c, err := h.session.Claim(x.ctx, bmdb.ClaimRequest{Process: process, Providers: []fleet.ProviderName{provider}, Limit: limit})
	if was[h.session.ID()] {
		if len(c.Works) > 0 {
			x.Fatalf("a session that has ended claimed %v", c.Works)
		}
		return // an empty agenda may go unnoticed
	}
	if err != nil && x.ended()[h.session.ID()] && x.now().After(h.deadline) {
		return // it was in its own way
	}
	x.must(err)
	if len(c.Works) > limit {
		x.Fatalf("claimed %d of %d", len(c.Works), limit)
	}
	ended := x.ended()
	for _, w := range c.Works {
		id := w.Subject.Machine
		if was := x.held[id]; was != nil && !ended[was.Session] {
			x.Fatalf("machine %s was claimed while epoch %d held it", id, was.Epoch) // I1
		}
		if w.Epoch <= x.epochs[id] {
			x.Fatalf("epoch %d of machine %s after %d", w.Epoch, id, x.epochs[id]) // I3
		}
		l := &leased{Work: w}
		x.epochs[id], x.held[id] = w.Epoch, l
		h.works = append(h.works, l)
	}
	if process == fleet.ProcessRecovery {
		x.compareSlots(len(c.Works), limit)
	}
}

// compareSlots holds a claim of recovery to the storm limit: none above it, and none left out below
// it.
func (x *random) compareSlots(claimed, asked int) {
	env, err := x.db.Environment(x.ctx)
	x.must(err)
	most, running := env.Policy.RecoveryAtOnce, 0
	var due fleet.MachineID
	for _, id := range x.machines {
		d, err := x.db.MachineDetails(x.ctx, id)
		x.must(err)
		hold, held := d.Record.Holds[fleet.LaneHost]
		if held && hold.Process == fleet.ProcessRecovery {
			running++
		}
		if !held && lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessRecovery).Verdict == lifecycle.Due {
			due = id
		}
	}
	if most > 0 && claimed > 0 && running > most {
		x.Fatalf("%d are under recovery, with a limit of %d", running, most)
	}
	if due != "" && claimed < asked && (most == 0 || running < most) {
		x.Fatalf("machine %s was left out, with %d of %d under recovery", due, running, most)
	}
}

func (x *random) workDrawn() *leased {
	var all []*leased
	for _, h := range x.holders {
		all = append(all, h.works...)
	}
	if len(all) == 0 {
		return nil
	}
	return rapid.SampledFrom(all).Draw(x.r, "work")
}

// commits says whether a commit of this work must succeed.
func (x *random) commits(l *leased) bool {
	return x.held[l.Subject.Machine] == l && !x.ended()[l.Session]
}

// end ends any work there ever was, in any way.
func (x *random) end() {
	l := x.workDrawn()
	if l == nil {
		return
	}
	event := rapid.SampledFrom([]string{"finished", "failed", "cancelled"}).Draw(x.r, "how")
	want := x.commits(l) || l.ended == event
	var err error
	switch event {
	case "finished":
		err = l.Finish(x.ctx)
	case "failed":
		err = l.Fail(x.ctx, bmdb.Failure{Cause: "drawn", Backoff: growing})
	case "cancelled":
		err = l.Cancel(x.ctx, "drawn")
	}
	x.wantCommit(err, want)
	if x.commits(l) {
		x.free(l, event)
	}
}

func (x *random) free(l *leased, event string) {
	l.ended = event
	delete(x.held, l.Subject.Machine)
}

func (x *random) wantCommit(err error, want bool) {
	x.Helper()
	if want {
		x.must(err)
	} else {
		x.wantKind(err, fleet.KindLeaseLost) // rule 3
	}
}

// takeOver commits in the middle of the work, and then ends it with an agent in charge.
func (x *random) takeOver() {
	l := x.workDrawn()
	if l == nil {
		return
	}
	a := bmdb.AgentIdentity{Machine: l.Subject.Machine, PublicKey: []byte(fmt.Sprint("k", len(x.agents[l.Subject.Machine])))}
	want := x.commits(l)
	x.wantCommit(l.Note(x.ctx, bmdb.MintTakeover(0, &a.TakeoverGeneration)), want)
	if !want {
		return
	}
	x.compareAgendas()
	x.must(l.Finish(x.ctx, bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: a.TakeoverGeneration, PublicKey: a.PublicKey})))
	x.free(l, "finished")
	x.agents[a.Machine] = append(x.agents[a.Machine], a)
}

func (x *random) extend() {
	h := x.holderDrawn()
	ended, deadline := x.ended()[h.session.ID()], x.now().Add(walkLease)
	err := h.session.Extend(x.ctx)
	if ended {
		x.wantKind(err, fleet.KindLeaseLost)
		return
	}
	x.must(err)
	h.deadline = deadline
}

func (x *random) collect() {
	if _, err := x.db.CollectSessions(x.ctx); err != nil {
		x.Fatal(err)
	}
}

func (x *random) close() {
	h := x.holderDrawn()
	x.must(h.session.Close(x.ctx, "closed"))
	x.newHolder()
}

func (x *random) provide() {
	id := x.machineDrawn()
	status := rapid.SampledFrom([]fleet.ProviderStatus{
		fleet.ProviderStatusActive, fleet.ProviderStatusActive, fleet.ProviderStatusActive, fleet.ProviderStatusOff, fleet.ProviderStatusFailed, fleet.ProviderStatusGone,
	}).Draw(x.r, "status")
	p := *x.record(id).Provided
	p.Status = status
	x.provisioning(func(work *bmdb.Work) { x.must(work.Note(x.ctx, bmdb.SetProvided(id, "", p))) })
}

// agentDrawn is any agent there ever was; inCharge says whether it must be heard.
func (x *random) agentDrawn() (a bmdb.AgentIdentity, inCharge, ok bool) {
	id := x.machineDrawn()
	all := x.agents[id]
	if len(all) == 0 {
		return a, false, false
	}
	a = rapid.SampledFrom(all).Draw(x.r, "agent")
	return a, a.TakeoverGeneration == all[len(all)-1].TakeoverGeneration, true
}

func (x *random) wantHeard(err error, inCharge bool) {
	if inCharge {
		x.must(err)
	} else {
		x.wantKind(err, fleet.KindForbidden)
	}
}

func (x *random) speak() {
	if a, inCharge, ok := x.agentDrawn(); ok {
		x.wantHeard(x.db.RecordSpoken(x.ctx, a, rapid.SampledFrom([]string{"b1", "b2"}).Draw(x.r, "boot")), inCharge)
	}
}

func (x *random) flush() {
	if a, _, ok := x.agentDrawn(); ok {
		x.must(x.db.FlushSeen(x.ctx, []bmdb.Seen{{Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration}}))
	}
}

func (x *random) reportHardware() {
	if a, inCharge, ok := x.agentDrawn(); ok {
		x.wantHeard(x.db.RecordHardware(x.ctx, a, []byte(rapid.SampledFrom([]string{"r1", "r2"}).Draw(x.r, "report")), nil), inCharge)
	}
}

func (x *random) handOutSome() {
	a, inCharge, ok := x.agentDrawn()
	if !ok {
		return
	}
	var generation fleet.InstallGeneration
	attempt, orders := 0, x.orders[a.Machine]
	if len(orders) > 0 && rapid.Bool().Draw(x.r, "knows the last") {
		last := orders[len(orders)-1]
		generation, attempt = last.Request.Generation, last.Attempt
	}
	o, err := x.db.HandOutInstall(x.ctx, a, generation, attempt)
	x.wantHeard(err, inCharge)
	if o == nil {
		return
	}
	for _, was := range orders {
		if was.Request.Generation == o.Request.Generation && was.Attempt == o.Attempt {
			// I9
			x.Fatalf("install generation %d, attempt %d was handed out twice", o.Request.Generation, o.Attempt)
		}
	}
	x.orders[a.Machine] = append(orders, o)
}

func (x *random) reportInstall() {
	a, inCharge, ok := x.agentDrawn()
	if !ok || len(x.orders[a.Machine]) == 0 {
		return
	}
	o := rapid.SampledFrom(x.orders[a.Machine]).Draw(x.r, "order")
	r := fleet.InstallReport{Generation: o.Request.Generation, Attempt: o.Attempt, OK: rapid.Bool().Draw(x.r, "ok")}
	if !r.OK {
		r.Error = "drawn"
	}
	x.wantHeard(x.db.RecordInstallReport(x.ctx, a, r), inCharge)
}

func (x *random) comeUp() {
	id := x.machineDrawn()
	orders := x.orders[id]
	if len(orders) == 0 {
		return
	}
	o := rapid.SampledFrom(orders).Draw(x.r, "order")
	newest := o == orders[len(orders)-1]
	x.wantHeard(errorOf(x.db.RecordInstalled(x.ctx, id, o.Request.Generation, o.Attempt, o.Secret, "b9")), newest)
}

func (x *random) expireInstalls() {
	if _, err := x.db.ExpireInstalls(x.ctx, 10); err != nil {
		x.Fatal(err)
	}
}

// voided is what people's words do to a lease (rule 8).
func (x *random) voided(id fleet.MachineID) {
	if l := x.held[id]; l != nil {
		x.free(l, "revoked")
	}
}

func (x *random) quarantine() {
	id := x.machineDrawn()
	if x.record(id).Quarantine != nil {
		x.must(Unquarantine(x.ctx, x.db, actor, id, "drawn"))
		return
	}
	x.must(Quarantine(x.ctx, x.db, actor, id, "drawn"))
	x.voided(id)
}

func (x *random) askInstall() {
	id := x.machineDrawn()
	r := x.record(id)
	before, gone := r.InstallRequest, r.Provided.Status == fleet.ProviderStatusGone
	reinstall := rapid.Bool().Draw(x.r, "reinstall")
	g, err := x.db.RequestInstall(x.ctx, actor, id, fleet.InstallRequest{Image: image}, reinstall)
	if gone && err == nil {
		x.Fatalf("an install was asked for on machine %s, which is gone", id)
	}
	if fleet.KindOf(err) == fleet.KindConflict && (gone || !reinstall) {
		return
	}
	x.must(err)
	if before == nil || g != before.Generation {
		x.voided(id)
	}
}

func (x *random) retry() {
	if _, err := x.db.Retry(x.ctx, actor, x.machineDrawn(), ""); err != nil {
		x.Fatal(err)
	}
}

func (x *random) listener() {
	promised := rapid.SampledFrom([]time.Duration{30 * time.Second, 40 * time.Second, 10 * time.Minute}).Draw(x.r, "promised")
	x.must(x.db.ListenerAlive(x.ctx, rapid.SampledFrom([]time.Duration{time.Minute, time.Hour}).Draw(x.r, "interval"), promised))
	x.janitor()
}

func (x *random) noRoom() { x.must(x.db.ListenerFull(x.ctx, 4*time.Minute)) }

func (x *random) policy() {
	p := fleet.DefaultPolicy()
	p.SilentAfter = rapid.SampledFrom([]time.Duration{2 * time.Minute, time.Hour}).Draw(x.r, "silent after")
	p.RecoveryAtOnce = rapid.IntRange(0, 2).Draw(x.r, "recovery at once")
	if _, err := x.db.SetPolicy(x.ctx, p); err != nil {
		x.Fatal(err)
	}
	x.janitor()
}

func (x *random) janitor() {
	if _, err := x.db.RecomputeAgenda(x.ctx, 100); err != nil {
		x.Fatal(err)
	}
}
