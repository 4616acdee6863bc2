package bmdbtest

import (
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// reinstalling makes a machine whose installed system is to be replaced, and returns the agent that
// was started for it, and the secret of the installed system.
func (w *world) reinstalling() (bmdb.AgentIdentity, []byte) {
	w.Helper()
	a := w.ready("c1", true)
	o := w.handOut(a, 0, 0)
	w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true, Disk: "/dev/sda"}))
	w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot2")))
	w.must(w.db.ListenerAlive(w.ctx, 1000*time.Hour, 30*time.Second))
	w.shift.Advance(time.Hour)
	next := w.anotherInstall(a)
	return next, o.Secret
}

// anotherInstall has a reinstall asked for, and an agent started for it, which speaks from memory.
func (w *world) anotherInstall(a bmdb.AgentIdentity) bmdb.AgentIdentity {
	w.Helper()
	w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)))
	next := w.startAgentAs(a.Machine, "boot3")
	w.must(w.db.RecordSpoken(w.ctx, next, "boot4"))
	w.must(w.db.RecordHardware(w.ctx, next, []byte("report"), nil))
	return next
}

func errorOf2[T any](_ T, err error) error { return err }

// leaves returns why the agent is to leave.
func (w *world) leaves(a bmdb.AgentIdentity) string {
	w.Helper()
	why, err := w.db.LeaveOrder(w.ctx, a)
	w.must(err)
	return why
}

// lostAgain is lost, of a machine with an installed system that was to be installed again.
func (w *world) lostAgain() (fleet.MachineID, *bmdb.Work) {
	w.Helper()
	p := fleet.DefaultPolicy()
	p.RecoveryReboots, p.RecoveryReinstalls = 0, 1
	_, err := w.db.SetPolicy(w.ctx, p)
	w.must(err)
	w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverReinstall}))
	id := w.installedMachine("c1").Machine
	_, err = w.db.RequestInstall(w.ctx, actor, id, fleet.InstallRequest{Image: image}, true)
	w.must(err)
	w.must(w.db.RecordSpoken(w.ctx, w.startAgentAs(id, "boot3"), "boot3"))
	return id, w.falls(p)
}

// reinstalledElsewhere has the provider of a machine be seen to reinstall it, on the capacity c1.
func (w *world) reinstalledElsewhere(id fleet.MachineID) {
	w.Helper()
	w.must(w.claimOne(w.session("updater"), fleet.ProcessUpdate).Finish(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusCreating, "c1"))))
	if s := w.state(id); s != fleet.StateUnreachable {
		w.Fatalf("reinstalled: %s", s)
	}
}

// active has the provider of a machine say that it is at work on it no more, on the capacity c1.
func (w *world) active(id fleet.MachineID) {
	w.Helper()
	w.shift.Advance(time.Hour) // until the provider is asked again
	w.must(w.claimOne(w.session("updater"), fleet.ProcessUpdate).Finish(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusActive, "c1"))))
}

// runsStill demands that a machine counts as installed, and its disk as what it was.
func (w *world) runsStill(id fleet.MachineID) {
	w.Helper()
	if up := w.record(id).Installed; up.ErasedAt != nil || w.state(id) != fleet.StateInstalled {
		w.Fatalf("it has answered: %+v, state %s", up, w.state(id))
	}
}

var leaveTests = []test{
	{"what the provider's reinstall has erased does not come back, whatever became of the repair", func(w *world) {
		id, work := w.lostAgain()
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		w.must(Quarantine(w.ctx, w.db, actor, id, "look at it first"))
		w.must(Unquarantine(w.ctx, w.db, actor, id, "looked at"))
		_, err := CancelInstall(w.ctx, w.db, actor, id, "not now")
		w.must(err)
		if r := w.record(id); r.Repair != nil || r.Installed.ErasedAt == nil || lifecycle.Returning(r) {
			w.Fatalf("repair %v, installed %+v, returning: %t", r.Repair, r.Installed, lifecycle.Returning(r))
		}
		_, err = w.db.RequestInstall(w.ctx, actor, id, fleet.InstallRequest{Image: image}, true)
		w.must(err)
		w.heardFor(fleet.DefaultPolicy().SilentAfter + time.Minute)
		a := w.startAgentAs(id, "boot4")
		w.must(w.db.RecordSpoken(w.ctx, a, "boot4"))
		o := w.handOut(a, 0, 0)
		w.must(errorOf(w.db.RecordInstalled(w.ctx, id, o.Request.Generation, o.Attempt, o.Secret, "boot5")))
		if up := w.record(id).Installed; up.Generation != o.Request.Generation || up.ErasedAt != nil {
			w.Fatalf("installed %+v", up)
		}
	}},
	{"an installed machine that its provider reinstalls for somebody else is a person's", func(w *world) {
		id := w.installedMachine("c1").Machine
		work := w.claimOne(w.session("provisioner"), fleet.ProcessUpdate)
		w.must(work.Note(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusCreating, "c1"))))
		seen := w.record(id).Installed.ErasedAt
		w.shift.Advance(time.Minute)
		w.must(work.Finish(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusActive, "c1"))))
		if up := w.record(id).Installed; seen == nil || up.ErasedAt == nil || !up.ErasedAt.Equal(*seen) || w.state(id) != fleet.StateUnreachable {
			w.Fatalf("erased at %v, then %v; state %s", seen, up.ErasedAt, w.state(id))
		}
		err := errorOf2(w.db.RequestInstall(w.ctx, actor, id, fleet.InstallRequest{Image: image}, false))
		if want := "was reinstalled at its provider, for somebody else, which a reinstall destroys"; err == nil || !strings.Contains(err.Error(), want) {
			w.Fatalf("an install was answered with %v", err)
		}
		_, err = Act(w.ctx, w.db, actor, id, bmdb.PlanRequest{Verb: fleet.VerbMarkInstalled, Reason: "by hand, in the portal"})
		w.must(err)
		if up := w.record(id).Installed; up.ErasedAt != nil || w.state(id) != fleet.StateInstalled {
			w.Fatalf("marked as installed: %+v, state %s", up, w.state(id))
		}
	}},
	{"an installed system that answers was not reinstalled", func(w *world) {
		a := w.ready("c1", true)
		o := w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot2")))
		w.reinstalledElsewhere(a.Machine)
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot2")))
		if up := w.record(a.Machine).Installed; up.ErasedAt == nil || w.state(a.Machine) != fleet.StateUnreachable {
			w.Fatalf("it has answered before its restart: %+v, state %s", up, w.state(a.Machine))
		}
		w.active(a.Machine)
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot3")))
		w.runsStill(a.Machine)
	}},
	{"an installed system that is watched and answers was not reinstalled", func(w *world) {
		a, _ := w.unseen(sshWatched)
		s := w.sessionFor("prober", 100*time.Hour)
		w.probe(s, 0, true)
		w.reinstalledElsewhere(a.Machine)
		w.active(a.Machine)
		w.probe(s, fleet.DefaultPolicy().WatchInterval, true)
		w.runsStill(a.Machine)
	}},
	{"an installed system that is watched over HTTP may be another one that answers", func(w *world) {
		a, _ := w.unseen(fleet.SeenUp{By: fleet.SeenByHTTP, URL: "http://{address}/", Watch: true})
		s := w.sessionFor("prober", 100*time.Hour)
		w.probe(s, 0, true)
		w.reinstalledElsewhere(a.Machine)
		w.active(a.Machine)
		w.probe(s, fleet.DefaultPolicy().WatchInterval, true)
		if up := w.record(a.Machine).Installed; up.ErasedAt == nil || w.state(a.Machine) != fleet.StateUnreachable {
			w.Fatalf("something has answered: %+v, state %s", up, w.state(a.Machine))
		}
	}},
	{"what a reinstall that had no effect has not erased comes back", func(w *world) {
		id, work := w.lostAgain()
		was := bmdb.BeforeStep{Install: w.record(id).InstallRequest}
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: growing}, bmdb.UndoStep(fleet.RungReinstall, was)))
		_, err := CancelInstall(w.ctx, w.db, actor, id, "not now")
		w.must(err)
		if r := w.record(id); r.Installed.ErasedAt != nil || !lifecycle.Returning(r) {
			w.Fatalf("installed %+v, returning: %t", r.Installed, lifecycle.Returning(r))
		}
	}},
	{"who calls a reinstall off is told that the start of an agent is under way", func(w *world) {
		id := w.installedMachine("c1").Machine
		w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, id, fleet.InstallRequest{Image: image}, true)))
		work := w.claimOne(w.session("initializer"), fleet.ProcessAgentStart)
		outcome, err := Act(w.ctx, w.db, actor, id, bmdb.PlanRequest{Verb: fleet.VerbCancelInstall, Reason: "the wrong machine"})
		w.must(err)
		if !strings.Contains(outcome.Detail, "; the start of an agent is under way: it normally ends if no agent has been run on the machine yet; else, by kexec, ") {
			w.Errorf("it says %q", outcome.Detail)
		}
		var minted fleet.TakeoverGeneration
		w.must(work.Note(w.ctx, bmdb.MintTakeover(0, &minted)))
		w.must(work.Finish(w.ctx, bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: minted, PublicKey: []byte("k")})))
		if s := w.state(id); s != fleet.StateReturning {
			w.Errorf("state %s", s) // the agent is taken off, or told to restart the machine
		}
	}},
	{"who calls an install off whose attempt has failed is told of the disk, and to expect nothing from its agent", func(w *world) {
		for _, c := range []struct{ capacity, wrote, destroys, told string }{
			{"c1", "", "", "the install is called off; its last attempt has failed, and nothing was written"},
			{"c2", "/dev/sda", "what the disk holds is undefined", "the install is called off; its last attempt has failed, and what the disk holds is undefined"},
			{"c3", fleet.DiskUnknown, "what the disk holds is undefined", "the install is called off; its last attempt was given up: " +
				"an agent that is at it still is told with its next heartbeat, and what the disk holds is undefined"},
		} {
			a := w.ready(fleet.CapacityID(c.capacity), true)
			w.handOut(a, 0, 0)
			if c.wrote == fleet.DiskUnknown {
				w.shift.Advance(fleet.DefaultPolicy().ReportWithin() + time.Minute)
				w.must(errorOf2(w.db.ExpireInstalls(w.ctx, 10)))
			} else {
				w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "digest mismatch", Disk: c.wrote}))
			}
			p, err := w.db.CreatePlan(w.ctx, actor, bmdb.PlanRequest{
				Verb: fleet.VerbCancelInstall, Machines: []fleet.MachineID{a.Machine}, Reason: "the wrong image",
			})
			w.must(err)
			if got := p.Machines[0].Destroys; got != c.destroys {
				w.Errorf("%q is lost, want %q", got, c.destroys)
			}
			p, err = w.db.ConfirmPlan(w.ctx, actor, p.ID)
			w.must(err)
			if got := p.Outcomes[0].Detail; got != c.told {
				w.Errorf("it says %q, want %q", got, c.told)
			}
		}
	}},
	{"a reinstall that was called off before it was handed out brings the machine back", func(w *world) {
		a, _ := w.reinstalling()
		if why := w.leaves(a); why != "" {
			w.Fatalf("it is to leave: %s", why)
		}
		w.must(errorOf2(CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")))
		if s := w.state(a.Machine); s != fleet.StateReturning {
			w.Fatalf("state %s", s) // I9: nobody says that the installed system runs
		}
		for range 2 { // an answer may be lost
			if why := w.leaves(a); !strings.Contains(why, "the wrong image") {
				w.Fatalf("it is told %q", why)
			}
		}
		old := a
		old.TakeoverGeneration--
		w.wantKind(errorOf2(w.db.LeaveOrder(w.ctx, old)), fleet.KindForbidden)
		w.shift.Advance(10 * time.Minute)
		s := w.session("initializer")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		w.must(work.Finish(w.ctx, bmdb.RecordBack()))
		if r := w.record(a.Machine); w.state(a.Machine) != fleet.StateInstalled || r.Installed.Generation != 1 || w.leaves(a) != "" {
			w.Fatalf("state %s, %+v", w.state(a.Machine), r.Installed)
		}
		w.wantEvents(a.Machine, "install cancelled", "back after a called-off reinstall")
		w.shift.Advance(10 * time.Hour)
		for _, process := range []fleet.Process{fleet.ProcessAgentStart, fleet.ProcessRecovery} {
			if len(w.claim(w.session("any"), process, 1)) != 0 {
				w.Fatalf("%s is due", process)
			}
		}
	}},
	{"a reinstall that wrote nothing brings the machine back, whose unit goes on calling", func(w *world) {
		a, secret := w.reinstalling()
		for n := range 2 {
			if o := w.handOut(a, 0, 0); o == nil || o.Attempt != n+1 {
				w.Fatalf("order %+v", o) // the answer with the first one was lost
			}
		}
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, secret, "boot3")))
		w.wantKind(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, []byte("guess"), "boot3")), fleet.KindForbidden)
		w.wantKind(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 2, 1, secret, "boot3")), fleet.KindForbidden)
		w.must(errorOf2(CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")))
		if s := w.state(a.Machine); s != fleet.StateInstalling || w.leaves(a) != "" {
			w.Fatalf("state %s before the agent has said what it wrote", s)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 2, Attempt: 2, Error: "called off"}))
		if s := w.state(a.Machine); s != fleet.StateReturning || w.leaves(a) == "" {
			w.Fatalf("state %s", s)
		}
		// Its own word does not say that no agent is there.
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, secret, "boot5")))
		if s := w.state(a.Machine); s != fleet.StateReturning {
			w.Fatalf("state %s", s)
		}
		w.shift.Advance(10 * time.Minute)
		w.must(w.claimOne(w.session("initializer"), fleet.ProcessAgentStart).Finish(w.ctx, bmdb.RecordBack()))
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, secret, "boot5")))
		if s := w.state(a.Machine); s != fleet.StateInstalled {
			w.Fatalf("state %s", s)
		}
		// The next one, too, which is above all that was handed out.
		w.shift.Advance(time.Hour)
		next := w.anotherInstall(a)
		if o := w.handOut(next, 2, 2); o == nil || o.Request.Generation != 3 {
			w.Fatalf("order %+v", o)
		}
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, secret, "boot5")))
	}},
	{"a report that nothing was written does not hide that an attempt before it has", func(w *world) {
		a, _ := w.reinstalling()
		w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 2, Attempt: 1, Error: "no space", Disk: "/dev/sda"}))
		w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)))
		w.handOut(a, 2, 1)
		w.handOut(a, 2, 1) // the answer with the first attempt was lost
		w.must(errorOf2(CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")))
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 3, Attempt: 2, Error: "called off"}))
		if s := w.state(a.Machine); s != fleet.StateAvailable || w.leaves(a) != "" || w.record(a.Machine).InstallReport.Disk != fleet.DiskUnknown {
			w.Fatalf("state %s, %+v", s, w.record(a.Machine).InstallReport)
		}
	}},
	{"who asked for something else meanwhile is not overruled by a machine that is back", func(w *world) {
		a, _ := w.reinstalling()
		w.must(errorOf2(CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")))
		w.shift.Advance(10 * time.Minute)
		work := w.claimOne(w.session("initializer"), fleet.ProcessAgentStart)
		w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)))
		if err := work.Finish(w.ctx, bmdb.RecordBack()); err == nil || w.state(a.Machine) == fleet.StateInstalled {
			w.Fatalf("%v, state %s", err, w.state(a.Machine)) // rule 8
		}
		if why := w.leaves(a); why != "" {
			w.Fatalf("it is to leave: %s", why)
		}
	}},
	{"the agent of a host of a list leaves when the release has begun", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(fleet.LeverRelease, fleet.LeverClean)
		w.ask(a, fleet.OperationRelease)
		if why := w.leaves(a); why != "" {
			w.Fatalf("before: %s", why)
		}
		work := w.claimOne(w.session("operations"), fleet.ProcessOperation)
		w.must(work.Note(w.ctx, bmdb.BeginOperation(1, "boot1")))
		if why := w.leaves(a); !strings.Contains(why, "release") {
			w.Fatalf("it is told %q", why)
		}
		w.must(Withdraw(w.ctx, w.db, actor, a.Machine, "not sold"))
		if why := w.leaves(a); why != "" {
			w.Fatalf("after it was withdrawn: %s", why)
		}
		w.pulls(fleet.LeverRelease) // a provider that takes its machines back
		w.ask(a, fleet.OperationRelease)
		work = w.claimOne(w.session("operations"), fleet.ProcessOperation)
		w.must(work.Note(w.ctx, bmdb.BeginOperation(2, "boot1")))
		if why := w.leaves(a); why != "" {
			w.Fatalf("it is to leave a machine that its provider takes back: %s", why)
		}
	}},
	// rules 8 and 11
	{"no agent is told to leave in quarantine, during a maintenance, while its facts cannot be read, or after a restore", func(w *world) {
		a, _ := w.reinstalling()
		w.must(errorOf2(CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")))
		stays := func(during string, is, was func()) {
			w.Helper()
			if is(); w.leaves(a) != "" {
				w.Errorf("%s, it is told %q", during, w.leaves(a))
			}
			if was(); w.leaves(a) == "" {
				w.Errorf("%s, and after it, nothing is told", during)
			}
		}
		stays("in quarantine", func() { w.must(Quarantine(w.ctx, w.db, actor, a.Machine, "look at it first")) },
			func() { w.must(Unquarantine(w.ctx, w.db, actor, a.Machine, "looked at")) })
		stays("during a maintenance", func() { w.must(BeginMaintenance(w.ctx, w.db, actor, a.Machine, nil, "a new fan")) },
			func() { w.must(EndMaintenance(w.ctx, w.db, actor, a.Machine, "done")) })
		stays("while its facts cannot be read", func() { w.exec("UPDATE install_request SET seen_up = 'no JSON'") },
			func() { w.exec("UPDATE install_request SET seen_up = '{}'") })
		stays("after a restore", w.putBack, func() { w.must(w.db.AcceptRestore(w.ctx, actor)) })
	}},
	// I9
	{"what an install has written outlives the first attempt at the next one", func(w *world) {
		a, _ := w.reinstalling()
		w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 2, Attempt: 1, Error: "no space", Disk: "/dev/sda"}))
		w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)))
		w.handOut(a, 2, 1)
		w.expired(a)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 3, Attempt: 1, Error: "no such image"}))
		w.must(errorOf2(CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")))
		if r := w.record(a.Machine); r.InstallReport.Error != "no such image" || r.InstallReport.Untouched() || lifecycle.Returning(r) {
			w.Fatalf("report %+v, returning: %t", r.InstallReport, lifecycle.Returning(r))
		}
	}},
	{"what was erased before a step of recovery does not come back with the step", func(w *world) {
		var erased time.Time
		id, work := w.lostAfter(func(a bmdb.AgentIdentity) {
			o := w.handOut(a, 0, 0)
			w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
			w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot2")))
			w.reinstalledElsewhere(a.Machine)
			erased = *w.record(a.Machine).Installed.ErasedAt
			w.active(a.Machine)
			w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)))
			w.must(w.db.RecordSpoken(w.ctx, w.startAgentAs(a.Machine, "boot3"), "boot3"))
		})
		was := bmdb.BeforeStep{Install: w.record(id).InstallRequest}
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: growing}, bmdb.UndoStep(fleet.RungReinstall, was)))
		if up := w.record(id).Installed; up.ErasedAt == nil || !up.ErasedAt.Equal(erased) {
			w.Fatalf("erased at %v, before at %s", up.ErasedAt, erased)
		}
	}},
}
