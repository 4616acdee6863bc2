package bmdbtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// failsBeforeMaintenance has recovery fail at a machine that it has restarted, and then has the
// machine be in maintenance for so long (nil: until somebody ends it). After the end nothing that
// has failed before counts, but for the step that was taken.
func (w *world) failsBeforeMaintenance(lasts *time.Duration, end func(fleet.MachineID)) {
	w.Helper()
	step := fleet.DefaultPolicy().RecoveryStepTimeout
	initializer, recoverer := w.lasting("initializer"), w.lasting("recoverer")
	id, work := w.lost(func(*fleet.Policy) {})
	w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
	w.heardFor(2 * time.Minute)
	w.must(w.claimOne(initializer, fleet.ProcessAgentStart).Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours}))
	w.heardFor(step)
	w.must(w.claimOne(recoverer, fleet.ProcessRecovery).Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: hours}))
	var until *time.Time
	if lasts != nil {
		until = new(w.now().Add(*lasts))
	}
	w.must(BeginMaintenance(w.ctx, w.db, actor, id, until, "a cable is loose"))
	end(id)
	if r := w.record(id); len(r.Backoffs) != 0 || r.Repair == nil || r.Repair.Steps[fleet.RungReboot] != 1 {
		w.Fatalf("backoffs %v, repair %+v", r.Backoffs, r.Repair)
	}
	if got := w.claim(recoverer, fleet.ProcessRecovery, 1); len(got) != 0 {
		w.Fatalf("before an agent was started: %s", got[0].Decision.Reason)
	}
	w.must(w.claimOne(initializer, fleet.ProcessAgentStart).Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours}))
	w.heardFor(step + time.Minute)
	if rung := w.claimOne(recoverer, fleet.ProcessRecovery).Decision.Rung; rung != fleet.RungReboot {
		w.Fatalf("the second step is %s", rung)
	}
}

var operatorTests = []test{
	{"an install is asked for once, and again only as a reinstall", func(w *world) {
		a := w.ready("c1", false)
		request := fleet.InstallRequest{Image: image}
		g, err := w.db.RequestInstall(w.ctx, actor, a.Machine, request, false)
		w.must(err)
		again, err := w.db.RequestInstall(w.ctx, actor, a.Machine, request, false)
		w.must(err)
		if g != 1 || again != 1 {
			w.Fatalf("generations %d, %d", g, again)
		}
		request.RootDisk.Pick = fleet.PickLargest
		if g, err = w.db.RequestInstall(w.ctx, actor, a.Machine, request, false); err != nil || g != 2 {
			w.Fatalf("generation %d, %v", g, err)
		}
		o := w.handOut(a, 0, 0)
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 2, 1, o.Secret, "b")))
		_, err = w.db.RequestInstall(w.ctx, actor, a.Machine, request, false)
		w.wantKind(err, fleet.KindConflict)
		if g, err = w.db.RequestInstall(w.ctx, actor, a.Machine, request, true); err != nil || g != 3 {
			w.Fatalf("generation %d, %v", g, err)
		}
		if r := w.record(a.Machine); r.InstallRequest.Actor != actor || r.InstallRequest.RootDisk.Pick != fleet.PickLargest {
			w.Fatalf("request %+v", r.InstallRequest)
		}
		_, err = w.db.RequestInstall(w.ctx, actor, fleet.NewMachineID(), request, false)
		w.wantKind(err, fleet.KindNotFound)
	}},
	{"who asks for an install is told which one it would destroy", func(w *world) {
		a := w.installedMachine("c1")
		refused := func(says string) {
			w.Helper()
			_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, false)
			w.wantKind(err, fleet.KindConflict)
			if !strings.Contains(err.Error(), says) {
				w.Fatalf("got %q, want %q", err, says)
			}
		}
		refused("runs an installed system (install generation 1), which a reinstall destroys")
		w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)))
		a = w.startAgent(a.Machine)
		w.must(w.db.RecordSpoken(w.ctx, a, "boot3"))
		w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 2, Attempt: 1, OK: true}))
		refused("has install generation 2 on its disk, which has not come up yet, and which a reinstall destroys")
	}},
	{"a first install that is on the disk is destroyed by a reinstall alone, before it comes up, too", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
		other := fleet.InstallRequest{Image: image}
		other.RootDisk.Pick = fleet.PickLargest
		refused := func() {
			w.Helper()
			_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, other, false)
			w.wantKind(err, fleet.KindConflict)
			if says := "has install generation 1 on its disk, which has not come up yet, and which a reinstall destroys: ask for one " +
				"(`ironherd machine install " + string(a.Machine) + " --image IMAGE --reinstall --reason WHY`)"; !strings.Contains(err.Error(), says) {
				w.Fatalf("got %q, want %q", err, says)
			}
		}
		refused()
		was := *w.record(a.Machine).InstallRequest
		was.Image.Architecture = fleet.ArchitectureAMD64 // which the catalogue says since
		b := w.ready("c2", true)
		if g, err := w.db.RequestInstall(w.ctx, actor, b.Machine, was, false); err != nil || g != 2 {
			w.Fatalf("where nothing was written, that is generation %d, %v", g, err)
		}
		// Asking for the same once more destroys nothing.
		if g, err := w.db.RequestInstall(w.ctx, actor, a.Machine, was, false); err != nil || g != 1 {
			w.Fatalf("the same install is generation %d, %v", g, err)
		}
		if g, err := w.db.RequestInstall(w.ctx, actor, a.Machine, other, true); err != nil || g != 2 {
			w.Fatalf("generation %d, %v", g, err)
		}
		w.must(errorOf2(CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")))
		refused() // nothing was written
		if g, err := w.db.RequestInstall(w.ctx, actor, a.Machine, other, true); err != nil || g != 3 {
			w.Fatalf("generation %d, %v", g, err)
		}
		other.RootDisk.Pick = fleet.PickSmallest
		// What is on the disk is to be destroyed already.
		if g, err := w.db.RequestInstall(w.ctx, actor, a.Machine, other, false); err != nil || g != 4 {
			w.Fatalf("generation %d, %v", g, err)
		}
	}},
	{"what an agent refused to overwrite is not tried again, and a reinstall goes above it", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{
			Generation: 1, Attempt: 1, Error: "/dev/sda holds an install", HeldGeneration: 4, HeldAttempt: 2,
		}))
		r := w.record(a.Machine)
		if p := r.InstallReport; p == nil || p.HeldGeneration != 4 || p.HeldAttempt != 2 || len(r.Backoffs) != 0 {
			w.Fatalf("report %+v, backoffs %v", p, r.Backoffs)
		}
		if o, err := w.db.HandOutInstall(w.ctx, a, 1, 1); err != nil || o != nil {
			w.Fatalf("handed out %+v, %v", o, err)
		}
		request := fleet.InstallRequest{Image: image}
		request.RootDisk.Pick = fleet.PickLargest
		_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, request, false)
		w.wantKind(err, fleet.KindConflict)
		if g, err := w.db.RequestInstall(w.ctx, actor, a.Machine, request, true); err != nil || g != 5 {
			w.Fatalf("generation %d, %v", g, err)
		}
		if o := w.handOut(a, 1, 1); o.Request.Generation != 5 || o.Attempt != 1 {
			w.Fatalf("handed out %+v", o)
		}
	}},
	{"what may not be erased waits for a person, and is looked at again", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{
			Generation: 1, Attempt: 1, Error: "/dev/sda holds a file system", NeedsErase: true,
		}))
		r := w.record(a.Machine)
		if p := r.InstallReport; p == nil || !p.NeedsErase || r.Backoffs[fleet.ProcessInstall].Failures != 1 || w.state(a.Machine) != fleet.StateRefused {
			w.Fatalf("%s: report %+v, backoffs %v", w.state(a.Machine), p, r.Backoffs)
		}
		w.shift.Advance(time.Hour)
		if o := w.handOut(a, 1, 1); o == nil || o.Attempt != 2 || w.state(a.Machine) == fleet.StateRefused {
			w.Fatalf("%s: handed out %+v", w.state(a.Machine), o)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 2, Error: "no such image"}))
		if w.record(a.Machine).InstallReport.NeedsErase {
			w.Fatalf("still %+v", w.record(a.Machine).InstallReport)
		}
		// It is asked for without a word of a reinstall, and waits for nothing.
		request := fleet.InstallRequest{Image: image}
		request.RootDisk.Erase = true
		if g, err := w.db.RequestInstall(w.ctx, actor, a.Machine, request, false); err != nil || g != 2 {
			w.Fatalf("generation %d, %v", g, err)
		}
		if o := w.handOut(a, 1, 2); o == nil || o.Request.Generation != 2 {
			w.Fatalf("handed out %+v", o)
		}
	}},
	{"what an agent does not understand waits for another agent", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "it is older", NotUnderstood: true}))
		r := w.record(a.Machine)
		if p := r.InstallReport; p == nil || !p.NotUnderstood || len(r.Backoffs) != 0 || w.state(a.Machine) != fleet.StateRefused {
			w.Fatalf("%s: report %+v, backoffs %v", w.state(a.Machine), p, r.Backoffs)
		}
		w.shift.Advance(time.Hour)
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		if o := w.handOut(a, 1, 1); o != nil {
			w.Fatalf("the same agent is handed out %+v", o)
		}
		w.heardFor(fleet.DefaultPolicy().SilentAfter + time.Minute)
		b := w.startAgentAs(a.Machine, "boot2")
		w.must(w.db.RecordSpoken(w.ctx, b, "boot2"))
		w.must(w.db.RecordHardware(w.ctx, b, []byte("report"), nil))
		if o := w.handOut(b, 1, 1); o == nil || o.Attempt != 2 || w.state(a.Machine) != fleet.StateInstalling {
			w.Fatalf("%s: handed out %+v", w.state(a.Machine), o)
		}
		w.must(w.db.RecordInstallReport(w.ctx, b, fleet.InstallReport{Generation: 1, Attempt: 2, Error: "no such image"}))
		if w.record(a.Machine).InstallReport.NotUnderstood {
			w.Fatalf("still %+v", w.record(a.Machine).InstallReport)
		}
	}},
	{"what the agent before it did not understand is asked of a new agent at once", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.heardFor(fleet.DefaultPolicy().SilentAfter + time.Minute)
		b := w.startAgentAs(a.Machine, "boot1") // it delivers what the one before it could not
		w.must(w.db.RecordSpoken(w.ctx, b, "boot1"))
		w.must(w.db.RecordHardware(w.ctx, b, []byte("report"), nil))
		w.must(w.db.RecordInstallReport(w.ctx, b, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "it is older", NotUnderstood: true}))
		if r := w.record(a.Machine); r.InstallReport == nil || r.InstallReport.NotUnderstood || len(r.Backoffs) != 0 {
			w.Fatalf("report %+v, backoffs %v", r.InstallReport, r.Backoffs)
		}
		if o := w.handOut(b, 1, 1); o == nil || o.Attempt != 2 {
			w.Fatalf("%s: handed out %+v", w.state(a.Machine), o)
		}
		w.must(w.db.RecordInstallReport(w.ctx, b, fleet.InstallReport{Generation: 1, Attempt: 2, Error: "it is older", NotUnderstood: true}))
		if w.state(a.Machine) != fleet.StateRefused {
			w.Fatalf("%s: its own refusal is forgotten", w.state(a.Machine))
		}
	}},
	{"retry ends backoffs", func(w *world) {
		id := w.machine("c1")
		s := w.session("a")
		w.must(w.claimOne(s, fleet.ProcessAgentStart).Fail(w.ctx, bmdb.Failure{Cause: "broke", Backoff: growing}))
		if p, err := w.db.Retry(w.ctx, actor, id, fleet.ProcessRecovery); err != nil || len(p) != 0 {
			w.Fatalf("retried %v, %v", p, err)
		}
		if p, err := w.db.Retry(w.ctx, actor, id, ""); err != nil || !slices.Equal(p, []fleet.Process{fleet.ProcessAgentStart}) {
			w.Fatalf("retried %v, %v", p, err)
		}
		w.claimOne(s, fleet.ProcessAgentStart)
		w.wantEvents(id, "failed", "retry asked for", "started")
	}},
	{"quarantine keeps all work away", func(w *world) {
		id := w.machine("c1")
		w.must(Quarantine(w.ctx, w.db, actor, id, "smells odd"))
		s := w.session("a")
		if got := w.claim(s, fleet.ProcessAgentStart, 1); len(got) != 0 {
			w.Fatal("claimed from quarantine")
		}
		if w.state(id) != fleet.StateQuarantined {
			w.Fatalf("state %s", w.state(id))
		}
		w.must(Unquarantine(w.ctx, w.db, actor, id, "aired"))
		w.wantKind(Unquarantine(w.ctx, w.db, actor, id, "again"), fleet.KindConflict)
		w.claimOne(s, fleet.ProcessAgentStart)
	}},
	{"a quarantine that ends leaves the machine the time that it has after a maintenance", func(w *world) {
		id, work := w.lost(func(*fleet.Policy) {})
		w.pulls(fleet.LeverReboot)
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: hours}))
		w.must(Quarantine(w.ctx, w.db, actor, id, "a cable is loose"))
		w.heardFor(20 * time.Minute)
		w.must(Unquarantine(w.ctx, w.db, actor, id, "it is plugged in"))
		r := w.record(id)
		if len(r.Backoffs) != 0 {
			w.Fatalf("backoffs %v", r.Backoffs)
		}
		if m := r.Maintenance; m == nil || !m.Over || m.Until.Sub(w.now()).Abs() > time.Minute {
			w.Fatalf("silence counts from the end of %+v", m)
		}
		due := func(want fleet.Process) {
			w.Helper()
			s := w.lasting("any")
			for _, process := range []fleet.Process{fleet.ProcessAgentStart, fleet.ProcessRecovery} {
				works := w.claim(s, process, 1)
				if (len(works) > 0) != (process == want) {
					w.Fatalf("%d of %s are due, want %q", len(works), process, want)
				}
				for _, work := range works {
					w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: growing}))
				}
			}
		}
		due("")
		w.heardFor(fleet.DefaultPolicy().SilentAfter - time.Minute)
		due("")
		w.heardFor(2 * time.Minute)
		due(fleet.ProcessAgentStart)
	}},
	{"a maintenance that ends by word leaves behind what failed before it", func(w *world) {
		w.failsBeforeMaintenance(nil, func(id fleet.MachineID) {
			w.heardFor(20 * time.Minute)
			w.must(EndMaintenance(w.ctx, w.db, actor, id, "it is plugged in"))
		})
	}},
	{"a maintenance that ends by its time leaves behind what failed before it", func(w *world) {
		w.failsBeforeMaintenance(new(20*time.Minute), func(fleet.MachineID) {
			w.heardFor(21 * time.Minute)
			w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, bmdb.MaintenanceOver()))
		})
	}},
	{"a machine that was silent before it was worked on is available when it is heard", func(w *world) {
		a := w.ready("c1", false)
		for what, work := range map[string]func() error{
			"a maintenance": func() error {
				w.must(BeginMaintenance(w.ctx, w.db, actor, a.Machine, nil, "a new fan"))
				w.heardFor(20 * time.Minute)
				return EndMaintenance(w.ctx, w.db, actor, a.Machine, "it is in")
			},
			"a quarantine": func() error {
				w.must(Quarantine(w.ctx, w.db, actor, a.Machine, "smells odd"))
				w.heardFor(20 * time.Minute)
				return Unquarantine(w.ctx, w.db, actor, a.Machine, "aired")
			},
		} {
			w.must(work())
			ended := w.state(a.Machine)
			w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
			if heard := w.state(a.Machine); ended != fleet.StateStarted || heard != fleet.StateAvailable {
				w.Errorf("after %s it is %s, and when it is heard %s", what, ended, heard)
			}
		}
	}},
	{"a maintenance outlasts a quarantine", func(w *world) {
		id := w.machine("c1")
		w.must(BeginMaintenance(w.ctx, w.db, actor, id, nil, "a new fan"))
		w.must(Quarantine(w.ctx, w.db, actor, id, "smells odd"))
		w.must(Unquarantine(w.ctx, w.db, actor, id, "aired"))
		if m := w.record(id).Maintenance; m == nil || m.Over || m.Until != nil || m.Reason != "a new fan" {
			w.Fatalf("maintenance %+v", m)
		}
	}},
	{"a policy has a number and reaches every row", func(w *world) { // rule 10
		a := w.ready("c1", false)
		p := fleet.DefaultPolicy()
		same, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		p.SilentAfter = 2 * time.Minute
		next, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		if next.Number != same.Number+1 {
			w.Fatalf("numbers %d, %d", same.Number, next.Number)
		}
		for range 2 {
			if _, err := w.db.RecomputeAgenda(w.ctx, 100); err != nil {
				w.Fatal(err)
			}
		}
		s := w.session("recoverer")
		c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
		w.must(err)
		if len(c.Works) != 0 || c.NextDue.Sub(w.now()) > 2*time.Minute {
			w.Fatalf("machine %s is looked at in %s", a.Machine, c.NextDue.Sub(w.now()))
		}
		p.SilentAfter = 0
		_, err = w.db.SetPolicy(w.ctx, p)
		w.wantKind(err, fleet.KindInvalid)
	}},
	{"what older rules judged is judged again", func(w *world) {
		id, number := w.machine("c1"), w.number("SELECT max(number) FROM policy")
		const agenda = "FROM agenda WHERE process = 'agent-start' AND subject = $1"
		// what other rules say: no agent is wanted
		judge := func(under int64) {
			w.Helper()
			w.wantNumber(1, "SELECT count(*) "+agenda, string(id))
			w.exec("DELETE "+agenda, string(id))
			w.exec("UPDATE machine SET due_agent_start = 0 WHERE id = $1", string(id))
			w.exec("UPDATE machine_state SET policy = $1 WHERE machine = $2", under, string(id))
			if findings, err := w.db.Check(w.ctx); len(findings) != 0 || err != nil {
				w.Fatalf("findings %+v, %v", findings, err)
			}
		}
		recompute := func() {
			w.Helper()
			if _, err := w.db.RecomputeAgenda(w.ctx, 100); err != nil {
				w.Fatal(err)
			}
		}
		judge(number) // by a release that does not number them
		recompute()
		judge(number*1000 + lifecycle.Rules - 1)
		recompute()
		judge(number*1000 + lifecycle.Rules + 1) // they are left to the newer release
		recompute()
		w.wantNumber(0, "SELECT count(*) "+agenda, string(id))
		p := fleet.DefaultPolicy()
		p.SilentAfter = 2 * time.Minute
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		recompute()
		w.wantNumber(1, "SELECT count(*) "+agenda, string(id))
	}},
	{"a system that does not come up is stored as silent when it is", func(w *world) {
		w.listening()
		for _, paused := range []bool{false, true} { // paused, recovery has nothing in the agenda
			if paused {
				w.must(w.db.HoldRecovery(w.ctx, "ada", nil, "looking"))
			}
			a := w.ready(fleet.CapacityID(fmt.Sprint("c", paused)), true)
			w.handOut(a, 0, 0)
			w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
			stored := func(want fleet.State) {
				w.Helper()
				if _, err := w.db.RecomputeAgenda(w.ctx, 100); err != nil {
					w.Fatal(err)
				}
				w.wantNumber(1, "SELECT count(*) FROM machine_state WHERE machine = $1 AND state = $2", string(a.Machine), string(want))
			}
			stored(fleet.StateBooting)
			w.shift.Advance(fleet.DefaultPolicy().BootTimeout + time.Second)
			stored(fleet.StateSilent)
			w.wantNumber(0, "SELECT count(*) FROM agenda WHERE process = 'install' AND subject = $1", string(a.Machine))
		}
	}},
	{"a new policy voids nothing", func(w *world) { // rules 8 and 10
		w.machine("c1")
		s := w.lasting("initializer")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		guarded, release := work.Guard(w.ctx)
		defer release()
		p := fleet.DefaultPolicy()
		p.SilentAfter = 2 * time.Minute
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		if n, err := w.db.RecomputeAgenda(w.ctx, 100); n < 1 || err != nil {
			w.Fatalf("judged %d, %v", n, err)
		}
		w.must(s.Extend(w.ctx))
		if guarded.Err() != nil {
			w.Fatalf("the work ended: %v", context.Cause(guarded))
		}
		w.must(work.Finish(w.ctx))
	}},
	{"nobody shortens the stop or the maintenance that somebody counts on", func(w *world) {
		id := w.machine("c1")
		hour, two := w.now().Add(time.Hour), w.now().Add(2*time.Hour)
		for name, hold := range map[string]func(actor string, until *time.Time) error{
			"recovery": func(actor string, until *time.Time) error { return w.db.HoldRecovery(w.ctx, actor, until, "x") },
			"maintenance": func(actor string, until *time.Time) error {
				return BeginMaintenance(w.ctx, w.db, actor, id, until, "x")
			},
		} {
			w.must(hold("bob", &hour))
			w.must(hold("bob", &two)) // longer
			// On one host both may be root.
			for actor, told := range map[string]string{"ada": " by bob until ", "bob": "for longer by bob"} {
				if err := hold(actor, &hour); fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), told) {
					w.Errorf("%s: %v", name, err)
				} else if command := "`ironherd machine maintenance end " + string(id) + " --reason WHY`"; name == "maintenance" && !strings.Contains(err.Error(), command) {
					w.Errorf("%v: it has no %s, and a host name is foreign text", err, command)
				}
			}
			w.must(hold("bob", nil))
			w.wantKind(hold("bob", &two), fleet.KindConflict)
			w.must(hold("bob", nil))
			w.wantKind(hold("ada", nil), fleet.KindConflict)
		}
	}},
	{"a provider that is paused is not paused for another reason", func(w *world) {
		w.machine("c1") // which registers it
		for range 2 {
			w.must(w.db.PauseProvider(w.ctx, "ada", provider, "the bill"))
		}
		for actor, reason := range map[string]string{"ada": "the contract", "bob": "the bill"} {
			if err := w.db.PauseProvider(w.ctx, actor, provider, reason); fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), "by ada: the bill") {
				w.Errorf("%s, %s: %v", actor, reason, err)
			}
		}
		w.must(w.db.ResumeProvider(w.ctx, "bob", provider, "paid"))
		w.must(w.db.PauseProvider(w.ctx, "bob", provider, "the contract"))
		rows, err := w.db.ProviderHistory(w.ctx, provider, 3, true)
		w.must(err)
		if len(rows) != 3 || rows[0].Event != fleet.EventPaused || rows[1].Event != fleet.EventResumed || rows[2].Detail != "the bill" {
			w.Errorf("history says %+v", rows)
		}
	}},
	{"a restored database waits for a person's word", func(w *world) { // rule 11
		env, err := w.db.Environment(w.ctx)
		w.must(err)
		if env.Restored != "" {
			w.Fatalf("a new database looks restored: %s", env.Restored)
		}
		w.wantKind(w.db.AcceptRestore(w.ctx, actor), fleet.KindConflict)
	}},
	{"an operation is not begun once the database looks restored", func(w *world) { // rule 11
		w.pulls(everyLever...)
		a := w.ready("c1", false)
		number := w.ask(a, fleet.OperationReboot)
		work := w.claimOne(w.lasting("operations"), fleet.ProcessOperation)
		w.putBack()
		begin := []bmdb.Change{bmdb.UnlessRestored(fleet.OperationReboot), bmdb.BeginOperation(number, "boot1")}
		w.wantKind(work.Note(w.ctx, begin...), fleet.KindConflict)
		if r := w.record(a.Machine); r.OperationAttempt != nil || r.OpenOperation() == nil {
			w.Errorf("the attempt is %+v, the operation %+v", r.OperationAttempt, r.OpenOperation())
		}
		w.must(w.db.AcceptRestore(w.ctx, actor))
		w.must(work.Note(w.ctx, begin...))
	}},
}
