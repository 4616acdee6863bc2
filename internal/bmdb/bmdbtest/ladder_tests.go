package bmdbtest

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// refusedFor has the host answer every start of an agent so, which leaves it to a person.
func (w *world) refusedFor(answer fleet.Answer, changes ...bmdb.Change) {
	w.Helper()
	for range 5 {
		start := w.claimOne(w.lasting("initializer"), fleet.ProcessAgentStart)
		w.must(start.Fail(w.ctx, bmdb.Failure{Cause: "it does not let us in", Backoff: hours, Answer: answer}, changes...))
		w.heardFor(2 * time.Hour)
		if got := w.claim(w.lasting("recoverer"), fleet.ProcessRecovery, 1); len(got) != 0 {
			w.Fatalf("claimed: %s", got[0].Decision.Reason)
		}
	}
}

// ladderTests are of the steps of recovery.
var ladderTests = []test{
	{"a person who lets us in again has an agent started, and nothing restarted", func(w *world) {
		id, work := w.lost(func(*fleet.Policy) {})
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.heardFor(2 * time.Minute)
		w.refusedFor(fleet.AnswerOtherKey, bmdb.RefuseHostKey("ssh-ed25519 NEW", "SHA256:N"))
		w.must(w.db.AcceptHostKey(w.ctx, actor, id, "ssh-ed25519 NEW", "SHA256:N", "it was reinstalled by hand"))
		retried, err := w.db.Retry(w.ctx, actor, id, "")
		if w.must(err); len(retried) > 0 {
			w.Fatalf("retried %v, of which nothing has failed since", retried)
		}
		if got := w.claim(w.lasting("recoverer"), fleet.ProcessRecovery, 1); len(got) != 0 {
			w.Fatalf("claimed: %s", got[0].Decision.Reason)
		}
		start := w.claimOne(w.lasting("initializer"), fleet.ProcessAgentStart)
		w.must(start.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours, Answer: fleet.AnswerNone}))
		w.heardFor(fleet.DefaultPolicy().RecoveryStepTimeout - time.Minute)
		if got := w.claim(w.lasting("recoverer"), fleet.ProcessRecovery, 1); len(got) != 0 {
			w.Fatalf("claimed: %s", got[0].Decision.Reason)
		}
		w.heardFor(2 * time.Minute)
		w.claimOne(w.lasting("recoverer"), fleet.ProcessRecovery)
	}},
	{"a host that refused us for long, and does not answer once, is not restarted at once", func(w *world) {
		_, work := w.lost(func(*fleet.Policy) {})
		w.must(work.Cancel(w.ctx, "it is not done"))
		w.heardFor(2 * time.Hour)
		w.refusedFor(fleet.AnswerRefused)
		start := w.claimOne(w.lasting("initializer"), fleet.ProcessAgentStart)
		w.must(start.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours, Answer: fleet.AnswerNone}))
		if got := w.claim(w.lasting("recoverer"), fleet.ProcessRecovery, 1); len(got) != 0 {
			w.Fatalf("claimed: %s", got[0].Decision.Reason)
		}
		w.heardFor(fleet.DefaultPolicy().RecoveryStepTimeout + time.Minute)
		w.claimOne(w.lasting("recoverer"), fleet.ProcessRecovery)
	}},
	{"a machine climbs the ladder to its end, and begins anew after a person's word", func(w *world) {
		a := w.broken("c1")
		w.pulls(everyLever...)
		for i, want := range []fleet.Rung{fleet.RungReboot, fleet.RungReboot, fleet.RungPowerCycle, fleet.RungQuarantine} {
			s := w.session("recoverer")
			work := w.claimOne(s, fleet.ProcessRecovery)
			if work.Decision.Rung != want {
				w.Fatalf("step %d is %s (%s), want %s", i, work.Decision.Rung, work.Decision.Reason, want)
			}
			w.wantKind(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall)), fleet.KindConflict)
			w.must(work.Note(w.ctx, bmdb.TakeStep(want)))
			w.wantKind(work.Note(w.ctx, bmdb.TakeStep(want), bmdb.RecordHistory("twice", "")), fleet.KindConflict)
			w.must(work.Finish(w.ctx))
			if got := w.claim(s, fleet.ProcessRecovery, 1); len(got) != 0 {
				w.Fatalf("the next step was taken before the last one had time: %s", got[0].Decision.Rung)
			}
			w.must(s.Close(w.ctx, "done"))
			w.shift.Advance(fleet.DefaultPolicy().RecoveryStepTimeout + time.Second)
		}
		w.wantHappenedOnce(bmdb.HappeningRecovery, "silent")
		if r := w.record(a.Machine); r.Quarantine == nil || r.Quarantine.Actor != "recovery" || w.state(a.Machine) != fleet.StateQuarantined {
			w.Fatalf("quarantine %+v", r.Quarantine)
		}
		w.must(Unquarantine(w.ctx, w.db, actor, a.Machine, "a new board"))
		if r := w.record(a.Machine); r.Repair != nil {
			w.Fatalf("repair %+v", r.Repair)
		}
	}},
	{"a heartbeat after a step ends the trouble, and history says after which", func(w *world) {
		a := w.broken("c1")
		w.pulls(fleet.LeverReboot)
		work := w.claimOne(w.session("recoverer"), fleet.ProcessRecovery)
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.must(work.Finish(w.ctx))
		w.shift.Advance(time.Minute)
		w.must(w.db.RecordSpoken(w.ctx, a, "boot2"))
		if w.state(a.Machine) != fleet.StateAvailable {
			w.Fatalf("state %s", w.state(a.Machine))
		}
		page, err := w.db.History(w.ctx, a.Machine, 100)
		w.must(err)
		if !slices.ContainsFunc(page, func(r bmdb.HistoryRow) bool {
			return r.Event == fleet.EventRepaired && strings.Contains(r.Detail, "after the step reboot, with another boot ID")
		}) {
			w.Fatalf("history %+v", page)
		}
		w.shift.Advance(fleet.DefaultPolicy().RecoveryStepTimeout)
		w.hear(a)
		if got := w.claim(w.session("recoverer"), fleet.ProcessRecovery, 1); len(got) != 0 {
			w.Fatalf("a machine that is well is claimed: %s", got[0].Decision.Reason)
		}
	}},
	{"an agent that is started again is a step of the ladder", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(fleet.LeverReboot)
		w.must(w.db.ListenerAlive(w.ctx, 1000*time.Hour, 30*time.Second))
		w.shift.Advance(time.Hour)
		next := w.startAgent(a.Machine)
		r := w.record(a.Machine)
		if r.Repair == nil || r.Repair.Rung != fleet.RungAgentStart || r.Repair.Steps[fleet.RungAgentStart] != 1 || r.Repair.BootID != "boot1" {
			w.Fatalf("repair %+v", r.Repair)
		}
		w.shift.Advance(fleet.DefaultPolicy().RecoveryStepTimeout + time.Second)
		work := w.claimOne(w.session("recoverer"), fleet.ProcessRecovery)
		if work.Decision.Rung != fleet.RungReboot {
			w.Fatalf("decided %+v", work.Decision)
		}
		w.must(w.db.RecordSpoken(w.ctx, next, "boot1")) // it speaks after all
		w.wantKind(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)), fleet.KindConflict)
		w.must(work.Cancel(w.ctx, "it speaks"))
	}},
	{"the agent from before a restart shows nothing, and its step ends with its time", func(w *world) {
		a := w.broken("c1")
		w.pulls(everyLever...)
		step := fleet.DefaultPolicy().RecoveryStepTimeout
		s := w.sessionFor("recoverer", time.Hour)
		work := w.claimOne(s, fleet.ProcessRecovery)
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.must(work.Finish(w.ctx))
		w.shift.Advance(time.Minute)
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		if state := w.state(a.Machine); state != fleet.StateAvailable || slices.Contains(w.events(a.Machine), "recovered") {
			w.Fatalf("state %s, %q", state, w.events(a.Machine))
		}
		w.shift.Advance(step - time.Minute - 10*time.Second)
		w.hear(a)
		if got := w.claim(s, fleet.ProcessRecovery, 1); len(got) != 0 {
			w.Fatalf("claimed before the time of the step is over: %s", got[0].Decision.Reason)
		}
		w.shift.Advance(20 * time.Second)
		work = w.claimOne(s, fleet.ProcessRecovery)
		w.wantKind(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)), fleet.KindConflict)
		w.must(work.Note(w.ctx, bmdb.EndStep()))
		w.must(work.Finish(w.ctx))
		if !slices.Contains(w.events(a.Machine), "recovered") {
			w.Fatalf("events %q", w.events(a.Machine))
		}
		if r := w.record(a.Machine).Repair; r == nil || r.Steps[fleet.RungReboot] != 1 || r.BootID != "" {
			w.Fatalf("repair %+v", r)
		}
		if got := w.claim(s, fleet.ProcessRecovery, 1); len(got) != 0 {
			w.Fatalf("claimed %s (%s)", got[0].Decision.Rung, got[0].Decision.Reason)
		}
	}},
	{"a machine that was restarted counts against the limit while probes show whether that has helped", func(w *world) {
		p := fleet.DefaultPolicy()
		p.RecoveryAtOnce, p.SuspectShare = 1, 0
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		w.unseenOn("c1", sshWatched)
		w.unseenOn("c2", sshWatched)
		w.pulls(fleet.LeverReboot)
		w.judgeAgain()
		probed := func(lasting time.Duration) {
			for ; lasting > 0; lasting -= time.Minute {
				w.heardFor(time.Minute)
				for _, work := range w.claim(w.lasting("prober"), fleet.ProcessProbe, 2) {
					w.must(work.Finish(w.ctx, answers(false)))
				}
			}
		}
		probed(p.BootTimeout + p.RecoveryStepTimeout + time.Minute)
		s := w.sessionFor("recoverer", 10*time.Hour)
		work := w.recover(s, 2, 1)[0]
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.must(work.Finish(w.ctx))
		w.recover(s, 2, 0)
		probed(p.RecoveryStepTimeout - time.Minute)
		w.recover(s, 2, 0)
		w.heardFor(2 * time.Minute) // its time is over, and no probe has shown that it has not helped
		if next := w.recover(s, 2, 1)[0]; next.Subject.Machine == work.Subject.Machine {
			w.Fatal("the same machine again")
		}
	}},
	{"a step has its time from when its call has ended", func(w *world) {
		a := w.broken("c1")
		w.pulls(fleet.LeverReboot)
		w.judgeAgain()
		work := w.claimOne(w.sessionFor("recoverer", time.Hour), fleet.ProcessRecovery)
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		taken := w.record(a.Machine).Repair
		w.shift.Advance(6 * time.Minute)
		w.must(work.Note(w.ctx, bmdb.StepDone(fleet.RungPowerCycle))) // another one is the newest
		if r := w.record(a.Machine).Repair; !r.At.Equal(taken.At) {
			w.Fatalf("taken %+v, done %+v", taken, r)
		}
		w.must(work.Finish(w.ctx, bmdb.StepDone(fleet.RungReboot)))
		r := w.record(a.Machine).Repair
		if r.At.Sub(taken.At) < 6*time.Minute || !r.Since.Equal(taken.Since) || r.BootID != taken.BootID || r.Steps[fleet.RungReboot] != 1 {
			w.Fatalf("taken %+v, done %+v", taken, r)
		}
		w.wantNumber(1, "SELECT count(*) FROM recovery_restart")
		w.wantNumber(1, "SELECT count(*) FROM recovery_restart b JOIN repair r ON r.machine = b.machine AND r.at = b.at")
	}},
	{"a machine that was restarted counts against the limit until it is heard of", func(w *world) {
		w.pulls() // the provider is known
		a := w.broken("c1")
		b := w.broken("c2")
		w.pulls(fleet.LeverReboot)
		p := fleet.DefaultPolicy()
		p.RecoveryAtOnce = 1
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		w.judgeAgain()
		s := w.sessionFor("recoverer", time.Hour)
		work := w.recover(s, 2, 1)[0]
		first, second := a, b
		if work.Subject.Machine == b.Machine {
			first, second = b, a
		}
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.must(work.Finish(w.ctx))
		w.recover(s, 2, 0)
		w.shift.Advance(2 * time.Minute)
		first = w.startAgentAs(first.Machine, "boot2")
		w.recover(s, 2, 0) // it was started, and has not spoken
		w.must(w.db.RecordSpoken(w.ctx, first, "boot2"))
		work = w.recover(s, 2, 1)[0]
		if work.Subject.Machine != second.Machine {
			w.Fatalf("claimed %s", work.Subject)
		}
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.must(work.Finish(w.ctx))
		w.shift.Advance(p.RecoveryStepTimeout + time.Second) // its time is over, and the next step is due
		if work = w.recover(s, 1, 1)[0]; work.Subject.Machine != second.Machine {
			w.Fatalf("claimed %s", work.Subject)
		}
	}},
	{"a recovery step that was refused stays counted, and costs nothing", func(w *world) {
		id, work := w.lost(func(p *fleet.Policy) { p.RecoveryReboots, p.RecoveryReinstalls, p.RecoveryPerHour = 0, 1, 1 })
		w.must(work.Note(w.ctx, bmdb.PinHostKeys(id, []string{"ssh-ed25519 AAAA"})))
		keys, err := w.db.HostKeys(w.ctx, id)
		w.must(err)
		was := bmdb.BeforeStep{Install: w.record(id).InstallRequest, HostKeys: keys}
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		w.wantKind(work.Note(w.ctx, bmdb.RefuseStep(fleet.RungReboot, was, "x")), fleet.KindConflict)
		w.wantNumber(1, "SELECT count(*) FROM recovery_restart")
		w.must(work.Finish(w.ctx, bmdb.RefuseStep(fleet.RungReinstall, was, "it is locked")))
		w.wantNumber(0, "SELECT count(*) FROM recovery_restart")
		w.wantEvents(id, "recovery step", "install requested", "recovery step refused", "install requested")
		r := w.record(id)
		if r.Repair.Steps[fleet.RungReinstall] != 1 || !r.Repair.Refused || r.InstallRequest.Generation != 1 {
			w.Fatalf("repair %+v, wanted is %+v", r.Repair, r.InstallRequest)
		}
		if is, err := w.db.HostKeys(w.ctx, id); err != nil || !reflect.DeepEqual(is.Known, keys.Known) {
			w.Fatalf("known are %+v, %v", is, err)
		}
		w.heardFor(fleet.DefaultPolicy().RecoveryStepTimeout + time.Minute)
		w.must(w.claimOne(w.lasting("recoverer"), fleet.ProcessRecovery).Finish(w.ctx, bmdb.TakeStep(fleet.RungQuarantine)))
		if q := w.record(id).Quarantine; q == nil || strings.Contains(q.Reason, "after 1 reinstall") || !strings.Contains(q.Reason, "refused 1 reinstall") {
			w.Fatalf("quarantine %+v", q)
		}
	}},
	// rule 7
	{"a recovery step that was refused restarts nothing, until another one is taken", func(w *world) {
		a := w.broken("c1")
		w.pulls(fleet.LeverReboot, fleet.LeverPower)
		s := w.lasting("recoverer")
		may := func(want string) {
			w.Helper()
			d, err := w.db.MachineDetails(w.ctx, a.Machine)
			w.must(err)
			if got := lifecycle.MayStillCome(d.Record, d.Environment, d.Now); got != want {
				w.Fatalf("%q may still come, want %q: repair %+v", got, want, d.Record.Repair)
			}
		}
		work := w.claimOne(s, fleet.ProcessRecovery)
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		may("the reboot by recovery")
		w.must(work.Finish(w.ctx, bmdb.RefuseStep(fleet.RungReboot, bmdb.BeforeStep{}, "not on this plan")))
		may("")
		w.wantNumber(0, "SELECT count(*) FROM machine WHERE limited <> ''")
		// A version that knows no refusal takes the next one.
		w.exec("UPDATE repair SET at = at + 1 WHERE machine = $1", string(a.Machine))
		may("the reboot by recovery")
		w.exec("UPDATE repair SET at = at - 1 WHERE machine = $1", string(a.Machine))
		may("")
		w.heardFor(fleet.DefaultPolicy().RecoveryStepTimeout + time.Minute)
		w.must(w.claimOne(s, fleet.ProcessRecovery).Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		may("the reboot by recovery")
	}},
	// I9, I11
	{"what a reinstall by recovery puts on a disk is erased where the install had begun to write that disk, and nowhere else", func(w *world) {
		p := fleet.DefaultPolicy()
		p.RecoveryReboots, p.RecoveryReinstalls, p.SuspectShare = 0, 1, 0
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		w.pulls(fleet.LeverReinstall)
		reports := map[fleet.CapacityID]fleet.InstallReport{
			"written":   {Disk: fleet.DiskWithSerial("/dev/sda", "S1 (a)"), Error: "the image ends early"},
			"unnamed":   {Disk: "/dev/vda", Error: "the image ends early"},
			"unknown":   {Disk: fleet.DiskUnknown, Error: "no report"},
			"untouched": {Error: "/dev/sda holds a GUID partition table"},
		}
		for capacity, rep := range reports {
			a := w.ready(capacity, true)
			w.handOut(a, 0, 0)
			rep.Generation, rep.Attempt = 1, 1
			w.must(w.db.RecordInstallReport(w.ctx, a, rep))
		}
		w.heardFor(p.SilentAfter + time.Minute)
		for _, work := range w.claim(w.lasting("initializer"), fleet.ProcessAgentStart, len(reports)) {
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: growing}))
		}
		w.heardFor(p.RecoveryStepTimeout)
		for _, work := range w.recover(w.lasting("recoverer"), len(reports), len(reports)) {
			id := work.Subject.Machine
			was := w.record(id)
			w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
			want := fleet.DiskSelector{}
			if was.Provided.Capacity == "written" {
				want = fleet.DiskSelector{Serial: "S1 (a)", Erase: true}
			}
			if q := w.record(id).InstallRequest; q.Generation != 2 || q.RootDisk != want {
				w.Errorf("%s: wanted is %+v, want it on %+v", was.Provided.Capacity, q, want)
			}
			if again, err := w.db.RequestInstall(w.ctx, actor, id, *was.InstallRequest, false); err != nil || again != 2 {
				w.Errorf("%s: asked for the same again, it is generation %d, %v", was.Provided.Capacity, again, err)
			}
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: growing}, bmdb.UndoStep(fleet.RungReinstall, bmdb.BeforeStep{Install: was.InstallRequest})))
			if q := w.record(id).InstallRequest; q.Generation != 1 || q.RootDisk != was.InstallRequest.RootDisk {
				w.Errorf("%s: after the step is taken back, wanted is %+v", was.Provided.Capacity, q)
			}
		}
	}},
	{"a step that is not needed any more brings no failures back", func(w *world) {
		id, work := w.lost(func(*fleet.Policy) {})
		waited := w.record(id).Backoffs[fleet.ProcessAgentStart]
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.shift.Advance(time.Second)
		w.must(w.db.RecordSpoken(w.ctx, bmdb.AgentIdentity{Machine: id, TakeoverGeneration: w.record(id).TakeoverGeneration, PublicKey: w.record(id).AgentStarted.PublicKey}, "boot9"))
		w.must(work.Finish(w.ctx, bmdb.UndoStep(fleet.RungReboot, bmdb.BeforeStep{AgentStart: &waited})))
		if got, waits := w.record(id).Backoffs[fleet.ProcessAgentStart]; waits {
			w.Fatalf("the agent is heard, and its start waits: %+v", got)
		}
	}},
}
