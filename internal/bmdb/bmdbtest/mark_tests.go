package bmdbtest

import (
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// mark says that an operating system runs on the machine.
func (w *world) mark(machine fleet.MachineID) {
	w.Helper()
	if done := w.confirmed(w.planned(fleet.VerbMarkInstalled, machine).ID); outcomes(done) != "done" {
		w.Fatalf("%+v", done.Outcomes)
	}
}

// unmarkable says why the machine cannot be marked as installed.
func (w *world) unmarkable(machine fleet.MachineID) string {
	w.Helper()
	_, err := w.db.CreatePlan(w.ctx, actor, bmdb.PlanRequest{Verb: fleet.VerbMarkInstalled, Machines: []fleet.MachineID{machine}, Reason: "why not"})
	w.wantKind(err, fleet.KindConflict)
	return err.Error()
}

var markTests = []test{
	{"a silent machine that is marked as installed is left alone, and a reinstall takes it back", func(w *world) {
		w.levered()
		w.listening()
		a := w.ready("c1", false)
		w.shift.Advance(time.Hour)
		w.listening()
		held := w.claimOne(w.lasting("initializer"), fleet.ProcessAgentStart)
		w.mark(a.Machine)
		w.wantKind(held.Note(w.ctx), fleet.KindLeaseLost)
		w.shift.Advance(time.Hour)
		w.listening()
		for _, process := range []fleet.Process{fleet.ProcessAgentStart, fleet.ProcessRecovery, fleet.ProcessProbe, fleet.ProcessInstall} {
			if works := w.claim(w.lasting("anybody"), process, 10); len(works) > 0 {
				w.Fatalf("%s is done on it: %s", process, works[0].Subject.Machine)
			}
		}
		r := w.record(a.Machine)
		if w.state(a.Machine) != fleet.StateInstalled || r.Installed.Attempt != 0 || !strings.Contains(w.unmarkable(a.Machine), "installed already") {
			w.Fatalf("%s, %+v", w.state(a.Machine), r.Installed)
		}
		_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, false)
		w.wantKind(err, fleet.KindConflict)
		generation, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)
		w.must(err)
		if w.state(a.Machine) == fleet.StateInstalled || generation != 2 {
			w.Fatalf("%s, generation %d", w.state(a.Machine), generation)
		}
		w.startAgent(a.Machine)
	}},
	{"the install that was asked for counts as done, and its open attempt is over", func(w *world) {
		w.listening()
		a := w.ready("c1", true)
		order := w.handOut(a, 0, 0)
		w.shift.Advance(time.Hour)
		w.mark(a.Machine)
		r := w.record(a.Machine)
		if r.Installed.Generation != 1 || w.state(a.Machine) != fleet.StateInstalled || r.InstallReport == nil || r.InstallReport.OK {
			w.Fatalf("%s, %+v, %+v", w.state(a.Machine), r.Installed, r.InstallReport)
		}
		if p := w.planned(fleet.VerbQuarantine, a.Machine); p.Machines[0].InUse != "marked as installed" {
			w.Fatalf("in use: %s", p.Machines[0].InUse)
		}
		w.shift.Advance(24 * time.Hour)
		n, err := w.db.ExpireInstalls(w.ctx, 10)
		w.must(err)
		if n != 0 {
			w.Fatalf("%d attempts expired", n)
		}
		// That very system calls in all the same.
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, order.Secret, "boot2")))
		if r := w.record(a.Machine); r.Installed.Attempt != 1 || r.Installed.BootID != "boot2" || w.state(a.Machine) != fleet.StateInstalled {
			w.Fatalf("%s, %+v", w.state(a.Machine), r.Installed)
		}
	}},
	{"the system that runs, of an older install, does not undo the mark when it calls", func(w *world) {
		w.listening()
		a := w.ready("c1", true)
		order := w.handOut(a, 0, 0)
		_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image, RootDisk: fleet.DiskSelector{Erase: true}}, true)
		w.must(err)
		w.shift.Advance(time.Hour)
		w.mark(a.Machine)
		r := w.record(a.Machine)
		if r.Installed.Generation != 2 || r.InstallReport == nil || r.InstallReport.Generation != 1 {
			w.Fatalf("%+v, %+v", r.Installed, r.InstallReport)
		}
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, order.Secret, "boot2")))
		if r := w.record(a.Machine); r.Installed.Generation != 2 || w.state(a.Machine) != fleet.StateInstalled {
			w.Fatalf("%s, %+v", w.state(a.Machine), r.Installed)
		}
	}},
	{"a machine whose reinstall was called off before it began is not marked as installed", func(w *world) {
		a := w.installedMachine("c1")
		_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true)
		w.must(err)
		w.confirmed(w.planned(fleet.VerbCancelInstall, a.Machine).ID)
		if why := w.unmarkable(a.Machine); w.state(a.Machine) != fleet.StateInstalled || !strings.Contains(why, "installed already") {
			w.Fatalf("%s: %s", w.state(a.Machine), why)
		}
	}},
	{"a machine whose agent speaks is not marked as installed", func(w *world) {
		a := w.ready("c1", false)
		if why := w.unmarkable(a.Machine); !strings.Contains(why, "end the agent on the host first") {
			w.Fatalf("%s", why)
		}
		p := w.planned(fleet.VerbQuarantine, a.Machine)
		w.confirmed(p.ID)
		if why := w.unmarkable(a.Machine); !strings.Contains(why, "end the agent on the host first") {
			w.Fatalf("%s", why)
		}
	}},
	{"a host on which nothing of ours ever ran is marked as installed", func(w *world) {
		id := w.machine("c1")
		w.mark(id)
		if works := w.claim(w.lasting("initializer"), fleet.ProcessAgentStart, 10); len(works) > 0 || w.state(id) != fleet.StateInstalled {
			w.Fatalf("%d starts, %s", len(works), w.state(id))
		}
	}},
	{"a reinstall of a marked machine that is called off leaves the machine alone", func(w *world) {
		w.levered()
		w.listening()
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.shift.Advance(time.Hour)
		w.listening()
		w.mark(a.Machine) // nobody knows whether the attempt before it wrote anything
		_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image, RootDisk: fleet.DiskSelector{Erase: true}}, true)
		w.must(err)
		w.confirmed(w.planned(fleet.VerbCancelInstall, a.Machine).ID)
		w.shift.Advance(time.Hour)
		w.listening()
		for _, process := range []fleet.Process{fleet.ProcessAgentStart, fleet.ProcessRecovery} {
			if works := w.claim(w.lasting("anybody"), process, 10); len(works) > 0 {
				w.Fatalf("%s is done on it", process)
			}
		}
		if r := w.record(a.Machine); w.state(a.Machine) != fleet.StateInstalled || r.Installed.Attempt != 0 {
			w.Fatalf("%s, %+v", w.state(a.Machine), r.Installed)
		}
	}},
	{"forgetting a host of a list that is in use destroys something", func(w *world) {
		used, marked, idle := w.installedMachine("c1").Machine, w.machine("c2"), w.machine("c3")
		w.mark(marked)
		for i, id := range []fleet.MachineID{used, marked, idle} {
			capacity := fleet.CapacityID([]string{"c1", "c2", "c3"}[i])
			w.provisioning(func(work *bmdb.Work) {
				w.must(work.Note(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusGone, capacity))))
			})
		}
		destroys := func(id fleet.MachineID, want bool) {
			w.Helper()
			p := w.planned(fleet.VerbForget, id)
			if says := p.Machines[0].Destroys; p.NeedsConfirmation != want || strings.Contains(says, "taken in anew, and what runs on it ends") != want || says == "" == want {
				w.Errorf("needs a confirmation: %t, want %t; destroys %q", p.NeedsConfirmation, want, says)
			}
		}
		w.pulls(fleet.LeverRelease)
		for _, id := range []fleet.MachineID{used, marked, idle} {
			destroys(id, false)
		}
		if why := w.unmarkable(used); !strings.Contains(why, "`ironherd machine forget "+string(used)+" --reason WHY`") {
			w.Errorf("it is not marked: %s", why)
		}
		w.pulls(fleet.LeverRelease, fleet.LeverClean)
		destroys(used, true)
		destroys(marked, true)
		destroys(idle, false)
		if why := w.unmarkable(used); !strings.Contains(why, "`ironherd discrepancy list`") || strings.Contains(why, "machine forget") {
			w.Errorf("a host of a list is not marked: %s", why)
		}
		if done := w.confirmed(w.planned(fleet.VerbForget, used).ID); outcomes(done) != "done" {
			w.Fatalf("%+v", done.Outcomes)
		}
	}},
}
