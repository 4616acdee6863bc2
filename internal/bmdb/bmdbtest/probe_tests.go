package bmdbtest

import (
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// answers is what a probe of the first attempt has found.
func answers(answered bool) bmdb.Change {
	if answered {
		return bmdb.RecordProbe(bmdb.ProbeResult{
			Generation: 1, Attempt: 1, Answered: true, Detail: "it answers SSH", HostKeys: []string{"ssh-ed25519 FFFF"},
		})
	}
	return bmdb.RecordProbe(bmdb.ProbeResult{Generation: 1, Attempt: 1, Detail: "connection refused"})
}

// unseen makes a machine whose disk is written, and whose system is to be seen in that way.
func (w *world) unseen(seenUp fleet.SeenUp) (bmdb.AgentIdentity, *bmdb.InstallOrder) {
	w.Helper()
	return w.unseenOn("c1", seenUp)
}

// unseenOn is unseen on that capacity.
func (w *world) unseenOn(capacity fleet.CapacityID, seenUp fleet.SeenUp) (bmdb.AgentIdentity, *bmdb.InstallOrder) {
	w.Helper()
	id := w.machines(&fleet.InstallRequest{Actor: actor, Image: image, SeenUp: seenUp}, capacity)[0]
	a := w.startAgent(id)
	w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
	w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
	w.must(w.db.RecordHardware(w.ctx, a, []byte("report"), nil))
	o := w.handOut(a, 0, 0)
	w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
	return a, o
}

// probe is one probe, after some time.
func (w *world) probe(s *bmdb.Session, after time.Duration, answered bool) {
	w.Helper()
	w.shift.Advance(after)
	w.must(w.claimOne(s, fleet.ProcessProbe).Finish(w.ctx, answers(answered)))
}

var sshWatched = fleet.SeenUp{By: fleet.SeenBySSH, Watch: true}

var probeTests = []test{
	{"a probe shows that the installed system has come up", func(w *world) {
		a, o := w.unseen(sshWatched)
		s := w.sessionFor("prober", 10*time.Hour)
		if len(o.HostKey) != 64 || string(w.record(a.Machine).InstallAttempt.HostKey) != string(o.HostKey[32:]) {
			w.Fatalf("the attempt is known by %x, and brings %d bytes", w.record(a.Machine).InstallAttempt.HostKey, len(o.HostKey))
		}
		w.probe(s, 0, false)
		if got := w.claim(s, fleet.ProcessProbe, 1); len(got) != 0 {
			w.Fatal("probed again at once")
		}
		w.probe(s, 10*time.Second, false)
		if r := w.record(a.Machine); r.Installed != nil || r.Probe.Answered() || r.Probe.At.Sub(r.Probe.UnansweredSince) < 10*time.Second {
			w.Fatalf("probe %+v, installed %+v", r.Probe, r.Installed)
		}
		if got := w.state(a.Machine); got != fleet.StateBooting {
			w.Fatalf("state %s", got)
		}
		w.probe(s, 10*time.Second, true)
		r := w.record(a.Machine)
		if got := w.state(a.Machine); got != fleet.StateInstalled || r.Installed.SeenUp != sshWatched || !r.Probe.Answered() || r.Probe.AnsweredAt.IsZero() {
			w.Fatalf("state %s, installed %+v, probe %+v", got, r.Installed, r.Probe)
		}
		keys, err := w.db.HostKeys(w.ctx, a.Machine)
		w.must(err)
		if !slices.Equal(keys.Known, []string{"ssh-ed25519 FFFF"}) || keys.Source != fleet.HostKeyInstalled {
			w.Fatalf("known by %+v", keys)
		}
		w.wantEvents(a.Machine, "disk written", "finished", "installed", "finished")
	}},
	{"after a time in which nobody could ask, a system has to be silent for longer before it is restarted", func(w *world) {
		a, _ := w.unseen(sshWatched)
		s := w.sessionFor("prober", 10*time.Hour)
		w.probe(s, fleet.DefaultPolicy().BootTimeout+time.Minute, false)
		first := w.record(a.Machine).Probe.UnansweredSince
		w.probe(s, 4*time.Minute, false)
		if p := w.record(a.Machine).Probe; !p.UnansweredSince.Equal(first) {
			w.Fatalf("unanswered since %s, and not %s", p.UnansweredSince, first)
		}
		w.probe(s, time.Hour, false)
		// The four minutes before, and one of the hour.
		if p := w.record(a.Machine).Probe; p.At.Sub(p.UnansweredSince).Round(time.Second) != 5*time.Minute {
			w.Fatalf("unanswered since %s, and nobody asked for long before %s", p.UnansweredSince, p.At)
		}
		d, err := w.db.MachineDetails(w.ctx, a.Machine)
		w.must(err)
		step := lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessRecovery)
		if want := d.Record.Probe.UnansweredSince.Add(fleet.DefaultPolicy().RecoveryStepTimeout); !step.DueAt.Equal(want) {
			w.Fatalf("recovery is due at %s, want %s: %s", step.DueAt, want, step.Reason)
		}
	}},
	{"after a time in which nobody could ask, one question shows nothing, neither behind the time to boot nor behind a restart", func(w *world) {
		a, _ := w.unseen(sshWatched)
		w.pulls(fleet.LeverReboot, fleet.LeverPower)
		w.exec("INSERT INTO repair (machine, since, rung, at, agent_starts, reboots, power_cycles, reinstalls, takeover_generation, boot_id) "+
			"VALUES ($1, 1, 'reboot', 1, 0, 1, 0, 0, 0, '')", string(a.Machine)) // which is long over
		w.judgeAgain()
		s := w.sessionFor("prober", 10*time.Hour)
		asked := func(after time.Duration) lifecycle.Decision {
			w.Helper()
			for ; after > time.Minute; after -= time.Minute {
				w.shift.Advance(time.Minute)
				w.listening()
			}
			w.probe(s, after, false)
			d, err := w.db.MachineDetails(w.ctx, a.Machine)
			w.must(err)
			return lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessRecovery)
		}
		policy := fleet.DefaultPolicy()
		for range policy.BootTimeout/time.Minute - 1 {
			asked(time.Minute)
		}
		outage := policy.RecoveryStepTimeout + 5*time.Minute
		if step := asked(outage); step.Verdict == lifecycle.Due {
			w.Fatalf("behind the time to boot: %s", step.Reason)
		}
		var step lifecycle.Decision
		for range policy.RecoveryStepTimeout / time.Minute {
			step = asked(time.Minute)
		}
		if step.Verdict != lifecycle.Due {
			w.Fatalf("later it is %s: %s", step.Verdict, step.Reason)
		}
		w.must(w.claimOne(w.sessionFor("recoverer", 10*time.Hour), fleet.ProcessRecovery).Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		asked(time.Minute)
		if step := asked(outage); step.Verdict == lifecycle.Due {
			w.Fatalf("behind the restart: %s", step.Reason)
		}
	}},
	{"the word of a unit counts for nothing where a probe was asked for", func(w *world) {
		a, o := w.unseen(fleet.SeenUp{By: fleet.SeenByHTTP, URL: "http://{address}/"})
		w.wantKind(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, []byte("guess"), "boot9")), fleet.KindForbidden)
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9")))
		if got := w.state(a.Machine); got != fleet.StateBooting || o.HostKey != nil {
			w.Fatalf("state %s, host key of %d bytes", got, len(o.HostKey))
		}
		w.probe(w.sessionFor("prober", time.Hour), 0, true)
		if got := w.state(a.Machine); got != fleet.StateInstalled {
			w.Fatalf("state %s", got)
		}
		if got := w.claim(w.sessionFor("prober", time.Hour), fleet.ProcessProbe, 1); len(got) != 0 {
			w.Fatal("a machine that nobody watches is probed")
		}
		w.wantNumber(0, "SELECT count(*) FROM agenda WHERE process = 'probe'")
	}},
	{"the word of a unit shows that a disk was written whose report was lost", func(w *world) { // I9
		id := w.machines(&fleet.InstallRequest{Actor: actor, Image: image, SeenUp: sshWatched}, "c1")[0]
		a := w.startAgent(id)
		w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		w.must(w.db.RecordHardware(w.ctx, a, []byte("report"), nil))
		o := w.handOut(a, 0, 0)
		w.shift.Advance(fleet.DefaultPolicy().ReportWithin() + time.Second)
		n, err := w.db.ExpireInstalls(w.ctx, 10)
		w.must(err)
		if r := w.record(id); n != 1 || r.InstallReport.OK {
			w.Fatalf("%d attempts expired, report %+v", n, r.InstallReport)
		}
		for range 2 {
			w.must(errorOf(w.db.RecordInstalled(w.ctx, id, 1, 1, o.Secret, "boot9")))
		}
		if r := w.record(id); !r.InstallReport.OK || r.Installed != nil || len(r.Backoffs) != 0 || w.count(id, fleet.EventDiskWritten) != 1 {
			w.Fatalf("report %+v, installed %+v, backoffs %v", r.InstallReport, r.Installed, r.Backoffs)
		}
		w.probe(w.sessionFor("prober", time.Hour), 0, true)
		if got := w.state(id); got != fleet.StateInstalled {
			w.Fatalf("state %s", got)
		}
	}},
	{"a probe shows that a disk was written whose report was lost", func(w *world) {
		id := w.machines(&fleet.InstallRequest{Actor: actor, Image: image, SeenUp: sshWatched}, "c1")[0]
		a := w.startAgent(id)
		w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		w.must(w.db.RecordHardware(w.ctx, a, []byte("report"), nil))
		w.handOut(a, 0, 0)
		s := w.sessionFor("prober", 10*time.Hour)
		if got := w.claim(s, fleet.ProcessProbe, 1); len(got) != 0 {
			w.Fatal("probed while the agent may speak")
		}
		for range fleet.DefaultPolicy().SilentAfter / (10 * time.Second) {
			w.shift.Advance(10 * time.Second)
			w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
		}
		w.probe(s, time.Second, false)
		if r := w.record(id); r.InstallReport != nil || r.Installed != nil || r.Probe.Answered() {
			w.Fatalf("report %+v, installed %+v, probe %+v", r.InstallReport, r.Installed, r.Probe)
		}
		w.probe(s, 10*time.Second, true)
		if r := w.record(id); !r.InstallReport.OK || r.Installed == nil || w.state(id) != fleet.StateInstalled || w.count(id, fleet.EventDiskWritten) != 1 {
			w.Fatalf("report %+v, installed %+v, state %s", r.InstallReport, r.Installed, w.state(id))
		}
		w.wantNumber(0, "SELECT count(*) FROM install_deadline")
	}},
	{"a watched machine that is switched on answers again", func(w *world) {
		a, _ := w.unseen(sshWatched)
		s := w.sessionFor("prober", 100*time.Hour)
		policy := fleet.DefaultPolicy()
		w.probe(s, 0, true)
		for range 7 {
			w.probe(s, policy.WatchInterval, false)
		}
		if got := w.state(a.Machine); got != fleet.StateUnreachable {
			w.Fatalf("state %s", got)
		}
		w.provisioning(func(work *bmdb.Work) {
			for _, status := range []fleet.ProviderStatus{fleet.ProviderStatusOff, fleet.ProviderStatusActive} {
				r := w.record(a.Machine)
				fact := *r.Provided
				fact.Status = status
				w.must(work.Note(w.ctx, bmdb.SetProvided(a.Machine, r.ProviderID, fact)))
			}
		})
		if got := w.state(a.Machine); got != fleet.StateInstalled { // it boots
			w.Fatalf("state %s", got)
		}
		w.probe(s, policy.WatchInterval, true)
		w.wantEvents(a.Machine, "unreachable", "reachable again")
	}},
	{"a watched machine that does not answer is unreachable, and left alone", func(w *world) {
		a, _ := w.unseen(sshWatched)
		s := w.sessionFor("prober", 100*time.Hour)
		policy := fleet.DefaultPolicy()
		w.probe(s, 0, true)
		w.probe(s, policy.WatchInterval, true)
		for range 5 {
			w.probe(s, policy.WatchInterval, false)
			if got := w.state(a.Machine); got != fleet.StateInstalled {
				w.Fatalf("state %s after %s", got, w.record(a.Machine).Probe.At.Sub(w.record(a.Machine).Probe.UnansweredSince))
			}
		}
		w.probe(s, policy.WatchInterval, false)
		if got := w.state(a.Machine); got != fleet.StateUnreachable {
			w.Fatalf("state %s", got)
		}
		w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
		w.shift.Advance(50 * time.Hour)
		for _, process := range []fleet.Process{fleet.ProcessAgentStart, fleet.ProcessOperation, fleet.ProcessRecovery} {
			w.wantNumber(0, "SELECT count(*) FROM agenda WHERE process = $1", string(process))
		}
		w.probe(s, 0, true)
		if got := w.state(a.Machine); got != fleet.StateInstalled {
			w.Fatalf("state %s", got)
		}
		w.wantEvents(a.Machine, "installed", "unreachable", "reachable again")
		if n := w.count(a.Machine, fleet.EventUnreachable); n != 1 {
			w.Fatalf("unreachable %d times", n)
		}
	}},
	{"the unit of a watched system goes on calling", func(w *world) {
		policy := fleet.DefaultPolicy()
		a, o := w.unseen(fleet.SeenUp{Watch: true})
		s := w.sessionFor("prober", 100*time.Hour)
		wait := func(d time.Duration) {
			w.shift.Advance(d)
			w.must(w.db.ListenerAlive(w.ctx, 10*time.Minute, time.Minute))
		}
		call := func() {
			w.Helper()
			again, err := w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9")
			w.must(err)
			if again != policy.WatchInterval {
				w.Fatalf("it is to call again after %s", again)
			}
		}
		finds := func(work *bmdb.Work) {
			w.Helper()
			w.must(work.Finish(w.ctx, bmdb.RecordProbe(bmdb.ProbeResult{
				Generation: 1, Attempt: 1, LastCall: work.Record.Probe.AnsweredAt, Detail: "its unit does not call",
			})))
		}
		wait(0)
		call()
		call()
		first := w.record(a.Machine).Probe
		wait(policy.WatchInterval / 3)
		call() // too early: nothing is written
		if p := w.record(a.Machine).Probe; *p != *first || !p.Answered() {
			w.Fatalf("probe %+v, before %+v", p, first)
		}
		wait(policy.WatchInterval)
		call()
		if p := w.record(a.Machine).Probe; !p.AnsweredAt.After(first.AnsweredAt) {
			w.Fatalf("probe %+v, before %+v", p, first)
		}
		wait(2*policy.WatchInterval - time.Second)
		if got := w.claim(s, fleet.ProcessProbe, 1); len(got) != 0 {
			w.Fatal("a call is missed too early")
		}
		wait(time.Second)
		late := w.claimOne(s, fleet.ProcessProbe)
		call() // which is late, and before the finding
		finds(late)
		if p := w.record(a.Machine).Probe; !p.Answered() {
			w.Fatalf("a finding that was too late counts: %+v", p)
		}
		wait(2 * policy.WatchInterval)
		finds(w.claimOne(s, fleet.ProcessProbe))
		w.shift.Advance(time.Hour) // our own listener is down: nothing is found
		if got := w.claim(s, fleet.ProcessProbe, 1); len(got) != 0 {
			w.Fatal("a call is missed while nobody listens")
		}
		w.must(w.db.ListenerAlive(w.ctx, 10*time.Minute, time.Minute))
		if got := w.state(a.Machine); got != fleet.StateInstalled {
			w.Fatalf("state %s", got)
		}
		wait(2 * policy.WatchInterval)
		finds(w.claimOne(s, fleet.ProcessProbe))
		if got := w.state(a.Machine); got != fleet.StateUnreachable {
			w.Fatalf("state %s", got)
		}
		wait(policy.WatchInterval)
		finds(w.claimOne(s, fleet.ProcessProbe))
		call()
		if got := w.state(a.Machine); got != fleet.StateInstalled {
			w.Fatalf("state %s", got)
		}
		w.wantEvents(a.Machine, "installed", "unreachable", "reachable again")
		if n := w.count(a.Machine, fleet.EventUnreachable); n != 1 {
			w.Fatalf("unreachable %d times", n)
		}
	}},
	{"a probe that finds what the one before found has no row of history", func(w *world) { // I4
		a, _ := w.unseen(sshWatched)
		s := w.sessionFor("prober", 100*time.Hour)
		w.probe(s, 0, true)
		before := w.count(a.Machine, fleet.EventFinished)
		for range 10 {
			w.probe(s, time.Minute, true)
		}
		if n := w.count(a.Machine, fleet.EventFinished); n != before {
			w.Fatalf("%d ends, want %d", n, before)
		}
		w.shift.Advance(time.Minute)
		work := w.claimOne(s, fleet.ProcessProbe)
		w.faults.LoseReply()
		w.must(swallow(work.Finish(w.ctx, answers(true))))
		w.must(work.Finish(w.ctx, answers(true))) // the fact says whose it is
		if r := w.record(a.Machine); r.Probe.Epoch != work.Epoch || r.Probe.Session != work.Session {
			w.Fatalf("%+v, want epoch %d", r.Probe, work.Epoch)
		}
		w.probe(s, time.Minute, false)
		if n := w.count(a.Machine, fleet.EventFinished); n != before+1 {
			w.Fatalf("%d ends, want %d", n, before+1)
		}
	}},
	{"a probe that cannot be made is told once for each cause", func(w *world) { // I4
		a, _ := w.unseen(sshWatched)
		s := w.sessionFor("prober", 100*time.Hour)
		w.probe(s, 0, true)
		claim := func() *bmdb.Work {
			w.Helper()
			w.shift.Advance(2 * time.Minute)
			return w.claimOne(s, fleet.ProcessProbe)
		}
		down := bmdb.Failure{Cause: "the jump host is down", Backoff: fleet.Backoff{Initial: time.Minute}}
		want := func(rows, failures, unasked int) {
			w.Helper()
			if n, b := w.count(a.Machine, fleet.EventFailed), w.record(a.Machine).Backoffs[fleet.ProcessProbe]; n != rows || b.Failures != failures {
				w.Fatalf("%d ends, want %d; backoff %+v, want %d failures", n, rows, b, failures)
			}
			summary, err := w.db.Summary(w.ctx)
			w.must(err)
			if summary.Unasked.N != unasked || unasked > 0 && (summary.Unasked.First != a.Machine ||
				!summary.UnaskedSince.Equal(w.record(a.Machine).Backoffs[fleet.ProcessProbe].Since)) {
				w.Fatalf("%d machines are not asked, %s since %s, want %d", summary.Unasked.N, summary.Unasked.First, summary.UnaskedSince, unasked)
			}
		}
		for range 3 { // nothing is tried
			w.must(claim().Fail(w.ctx, bmdb.Failure{Cause: "its turn did not come", Backoff: down.Backoff, Queued: true}))
		}
		want(0, 3, 0) // not for long enough
		late := claim()
		want(0, 3, 1)
		w.must(late.Finish(w.ctx, answers(true)))
		want(0, 0, 0)
		for range 4 {
			w.must(claim().Fail(w.ctx, bmdb.Failure{Cause: "its turn did not come", Backoff: down.Backoff, Queued: true}))
		}
		want(0, 4, 1)
		w.must(claim().Fail(w.ctx, down))
		want(1, 5, 1)
		w.must(claim().Finish(w.ctx, answers(true)))
		w.must(claim().Fail(w.ctx, down))
		w.must(claim().Fail(w.ctx, down))
		w.must(claim().Fail(w.ctx, down))
		want(2, 3, 0)
		work := claim()
		want(2, 3, 1)
		w.faults.LoseReply()
		w.must(swallow(work.Fail(w.ctx, down)))
		w.must(work.Fail(w.ctx, down))
		want(2, 4, 1)
		other := down
		other.Cause = "the jump host has another host key"
		w.must(claim().Fail(w.ctx, other))
		want(3, 5, 1)
		work = claim()
		w.must(Quarantine(w.ctx, w.db, actor, a.Machine, "smoke")) // nobody wants to ask it
		w.wantKind(work.Fail(w.ctx, other), fleet.KindLeaseLost)
		if s, err := w.db.Summary(w.ctx); err != nil || s.Unasked.N != 0 {
			w.Fatalf("%d machines are not asked, %v", s.Unasked.N, err)
		}
	}},
	{"what probes of one system wait for says nothing of the next", func(w *world) {
		a, _ := w.unseen(sshWatched)
		s := w.sessionFor("prober", 100*time.Hour)
		w.probe(s, 0, true)
		w.shift.Advance(2 * time.Minute)
		w.must(w.claimOne(s, fleet.ProcessProbe).Fail(w.ctx, bmdb.Failure{Cause: "the jump host is down", Backoff: growing}))
		_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image, SeenUp: sshWatched}, true)
		w.must(err)
		if b, waits := w.record(a.Machine).Backoffs[fleet.ProcessProbe]; waits {
			w.Fatalf("backoff %+v", b)
		}
	}},
	{"what a probe found of an older install is left out", func(w *world) {
		a, _ := w.unseen(sshWatched)
		s := w.sessionFor("prober", time.Hour)
		work := w.claimOne(s, fleet.ProcessProbe)
		w.must(work.Finish(w.ctx, bmdb.RecordProbe(bmdb.ProbeResult{Generation: 1, Attempt: 2, Answered: true, Detail: "it answers SSH"})))
		if r := w.record(a.Machine); r.Installed != nil || r.Probe != nil {
			w.Fatalf("installed %+v, probe %+v", r.Installed, r.Probe)
		}
	}},
	{"people win over a probe", func(w *world) { // rule 8
		a, _ := w.unseen(sshWatched)
		work := w.claimOne(w.sessionFor("prober", time.Hour), fleet.ProcessProbe)
		w.must(Quarantine(w.ctx, w.db, actor, a.Machine, "smoke"))
		w.wantKind(work.Finish(w.ctx, answers(true)), fleet.KindLeaseLost)
		if r := w.record(a.Machine); r.Installed != nil || r.Probe != nil {
			w.Fatalf("installed %+v, probe %+v", r.Installed, r.Probe)
		}
	}},
	{"a system that never answers goes where one goes that never calls", func(w *world) {
		a, _ := w.unseen(sshWatched)
		w.pulls(fleet.LeverReboot)
		s := w.sessionFor("prober", 10*time.Hour)
		for range 15 {
			w.probe(s, time.Minute, false)
		}
		if got := w.state(a.Machine); got != fleet.StateSilent {
			w.Fatalf("state %s", got)
		}
		for range fleet.DefaultPolicy().RecoveryStepTimeout / time.Minute {
			if got := w.claim(w.sessionFor("recoverer", time.Hour), fleet.ProcessRecovery, 1); len(got) != 0 {
				w.Fatalf("decision %+v before the time of a step is over", got[0].Decision)
			}
			w.probe(s, time.Minute, false)
		}
		if work := w.claimOne(w.sessionFor("recoverer", time.Hour), fleet.ProcessRecovery); work.Decision.Rung != fleet.RungReboot {
			w.Fatalf("decision %+v", work.Decision)
		}
	}},
}

// swallow wants an error, which a reply that is lost is.
func swallow(err error) error {
	if err == nil {
		return fleet.Errorf(fleet.KindUnknown, "the reply was not lost")
	}
	return nil
}
