package bmdbtest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

var everyLever = []fleet.Lever{fleet.LeverReboot, fleet.LeverPower, fleet.LeverReinstall, fleet.LeverRelease}

// pulls makes the provider able to do everything, and judges its machines by it.
func (w *world) pulls(levers ...fleet.Lever) {
	w.Helper()
	w.must(w.db.SetLevers(w.ctx, provider, levers))
	w.judgeAgain()
}

func (w *world) judgeAgain() {
	w.Helper()
	for n := 1; n > 0; {
		was, err := w.db.RecomputeAgenda(w.ctx, 100)
		w.must(err)
		if n = was; n < 100 {
			return
		}
	}
}

func (w *world) ask(a bmdb.AgentIdentity, o fleet.Operation) int64 {
	w.Helper()
	number, err := Operate(w.ctx, w.db, actor, a.Machine, o, "because")
	w.must(err)
	return number
}

// broken makes a machine whose agent fell silent an hour ago and cannot be started again.
func (w *world) broken(capacity fleet.CapacityID) bmdb.AgentIdentity {
	w.Helper()
	a := w.ready(capacity, false)
	w.must(w.db.ListenerAlive(w.ctx, 1000*time.Hour, 30*time.Second))
	w.shift.Advance(time.Hour)
	w.failStarts(1)
	return a
}

// failStarts fails the start of that many agents.
func (w *world) failStarts(n int) {
	w.Helper()
	s := w.session("initializer")
	works := w.claim(s, fleet.ProcessAgentStart, n)
	if len(works) != n {
		w.Fatalf("claimed %d starts of agents, want %d", len(works), n)
	}
	for _, work := range works {
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no route to host", Backoff: hours}))
	}
	w.must(s.Close(w.ctx, "done"))
}

var operationTests = []test{
	{"an operation is begun, accepted, looked at and done", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(everyLever...)
		if n := w.ask(a, fleet.OperationReboot); n != 1 {
			w.Fatalf("operation %d", n)
		}
		if n := w.ask(a, fleet.OperationReboot); n != 1 { // it is under way
			w.Fatalf("asked for again: operation %d", n)
		}
		work := w.claimOne(w.session("operations"), fleet.ProcessOperation)
		w.wantKind(work.Note(w.ctx, bmdb.BeginOperation(2, "boot1")), fleet.KindConflict)
		w.must(work.Note(w.ctx, bmdb.BeginOperation(1, "boot1")))
		w.must(work.Note(w.ctx, bmdb.AcceptOperation(1)))
		w.must(work.Finish(w.ctx))
		s := w.session("operations")
		if got := w.claim(s, fleet.ProcessOperation, 1); len(got) != 0 {
			w.Fatal("claimed before it is to be looked at")
		}
		w.shift.Advance(fleet.DefaultPolicy().UpdateInterval + time.Second)
		w.must(s.Extend(w.ctx))
		w.must(w.claimOne(s, fleet.ProcessOperation).Finish(w.ctx, bmdb.CheckOperation(1)))
		if got := w.claim(s, fleet.ProcessOperation, 1); len(got) != 0 {
			w.Fatal("claimed again at once")
		}
		w.heardFor(time.Minute)
		w.must(w.db.RecordSpoken(w.ctx, w.startAgentAs(a.Machine, "boot2"), "boot2"))
		work = w.claimOne(s, fleet.ProcessOperation)
		w.must(work.Finish(w.ctx, bmdb.EndOperation(1, true, "another boot ID", 0)))
		w.wantEvents(a.Machine, "operation requested", "operation begun", "operation accepted", "agent started", "operation done")
		if n := w.ask(a, fleet.OperationPowerOff); n != 2 {
			w.Fatalf("operation %d", n)
		}
	}},
	{"who calls an operation off is told that the provider may do it all the same", func(w *world) {
		w.pulls(everyLever...)
		for i, begun := range []bool{false, true} {
			a := w.ready(fleet.CapacityID(fmt.Sprintf("c%d", i)), false)
			number := w.ask(a, fleet.OperationRelease)
			if begun {
				work := w.claimOne(w.session("operations"), fleet.ProcessOperation)
				w.must(work.Note(w.ctx, bmdb.BeginOperation(number, "boot1")))
			}
			p := w.planned(fleet.VerbWithdraw, a.Machine)
			done := w.confirmed(p.ID)
			for _, text := range []string{p.Machines[0].Does, done.Outcomes[0].Detail} {
				if strings.Contains(text, ", unless p1 carries out what") != begun {
					w.Errorf("begun %t: %q", begun, text)
				}
			}
		}
	}},
	{"a power cycle that is called off half-way leaves no machine off", func(w *world) {
		w.pulls(everyLever...)
		for i, begun := range []bool{false, true} {
			a := w.ready(fleet.CapacityID(fmt.Sprintf("c%d", i)), false)
			cycle := func() {
				w.Helper()
				number, s := w.ask(a, fleet.OperationPowerCycle), w.session("operations")
				if begun {
					w.must(w.claimOne(s, fleet.ProcessOperation).Note(w.ctx, bmdb.BeginOperation(number, "boot1")))
				}
			}
			cycle()
			p := w.planned(fleet.VerbQuarantine, a.Machine)
			if got := p.Machines[0].Does; strings.Contains(got, "it stays off until `ironherd machine power on "+string(a.Machine)+" --reason WHY`") != begun {
				w.Errorf("begun %t: quarantine does %q", begun, got)
			}
			p = w.planned(fleet.VerbWithdraw, a.Machine)
			done := w.confirmed(p.ID)
			for _, text := range []string{p.Machines[0].Does, done.Outcomes[0].Detail} {
				if strings.Contains(text, "; because p1 may have switched it off already, it is switched on") != begun {
					w.Errorf("begun %t: %q", begun, text)
				}
			}
			open := w.record(a.Machine).OpenOperation()
			if begun != (open != nil && open.Operation == fleet.OperationPowerOn && open.Number == 2) {
				w.Errorf("begun %t: open %+v", begun, open)
			}
			if begun { // a person may call that off, too
				w.must(Withdraw(w.ctx, w.db, actor, a.Machine, "leave it"))
			}
			cycle()
			w.must(Quarantine(w.ctx, w.db, actor, a.Machine, "smells of smoke"))
			if open := w.record(a.Machine).OpenOperation(); open != nil {
				w.Errorf("begun %t: in quarantine %+v is wanted", begun, open)
			}
		}
	}},
	// rule 8
	{"people win: a new operation takes the place of one, and voids what is done", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(everyLever...)
		w.ask(a, fleet.OperationReboot)
		work := w.claimOne(w.session("operations"), fleet.ProcessOperation)
		w.must(work.Note(w.ctx, bmdb.BeginOperation(1, "boot1")))
		w.ask(a, fleet.OperationPowerOff)
		w.wantKind(work.Note(w.ctx, bmdb.AcceptOperation(1)), fleet.KindLeaseLost)
		w.must(Withdraw(w.ctx, w.db, actor, a.Machine, "changed my mind"))
		w.wantKind(Withdraw(w.ctx, w.db, actor, a.Machine, "again"), fleet.KindConflict)
		if got := w.claim(w.session("other"), fleet.ProcessOperation, 1); len(got) != 0 {
			w.Fatalf("claimed what was withdrawn: %v", got[0].Decision)
		}
	}},
	{"what makes no sense is refused", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(fleet.LeverReboot)
		refused := func(o fleet.Operation, want fleet.Kind) {
			w.Helper()
			_, err := Operate(w.ctx, w.db, actor, a.Machine, o, "because")
			w.wantKind(err, want)
		}
		refused(fleet.OperationRelease, fleet.KindUnsupported)
		_, err := Operate(w.ctx, w.db, actor, a.Machine, fleet.OperationPowerOff, "because")
		if w.wantKind(err, fleet.KindUnsupported); !strings.HasSuffix(err.Error(), " cannot power machines off") {
			w.Errorf("to switch off: %v", err)
		}
		w.must(BeginMaintenance(w.ctx, w.db, actor, a.Machine, nil, "a new fan"))
		refused(fleet.OperationReboot, fleet.KindConflict)
		w.must(EndMaintenance(w.ctx, w.db, actor, a.Machine, "done"))
		w.wantKind(EndMaintenance(w.ctx, w.db, actor, a.Machine, "again"), fleet.KindConflict)
		w.ask(a, fleet.OperationReboot)
		w.wantKind(BeginMaintenance(w.ctx, w.db, actor, a.Machine, nil, "a new fan"), fleet.KindConflict)
		w.pulls(everyLever...)
		w.ask(a, fleet.OperationRelease)
		refused(fleet.OperationReboot, fleet.KindConflict)
		w.has(fleet.RoleOperations)
		err = Forget(w.ctx, w.db, actor, a.Machine, "why not")
		w.wantKind(err, fleet.KindConflict)
		if !strings.Contains(err.Error(), "its release is under way") {
			w.Errorf("forget says %v", err)
		}
		_, err = Operate(w.ctx, w.db, actor, fleet.NewMachineID(), fleet.OperationReboot, "because")
		w.wantKind(err, fleet.KindNotFound)
	}},
	{"an attempt that had no effect is taken back", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(everyLever...)
		number := w.ask(a, fleet.OperationReboot)
		work := w.claimOne(w.session("operations"), fleet.ProcessOperation)
		w.must(work.Note(w.ctx, bmdb.BeginOperation(number, "boot1")))
		w.wantKind(work.Note(w.ctx, bmdb.UndoAttempt(number+1, nil)), fleet.KindConflict)
		for range 2 { // the reply was lost
			w.must(work.Note(w.ctx, bmdb.UndoAttempt(number, nil)))
		}
		if is := w.record(a.Machine).OperationAttempt; is != nil {
			w.Fatalf("attempt %+v", is)
		}
		w.must(work.Note(w.ctx, bmdb.BeginOperation(number, "boot1")))
		was := w.record(a.Machine).OperationAttempt
		w.shift.Advance(time.Second)
		w.must(work.Note(w.ctx, bmdb.BeginOperation(number, "boot2")))
		if is := w.record(a.Machine).OperationAttempt; is.Attempt != 2 || is.BootID != "boot2" {
			w.Fatalf("attempt %+v", is)
		}
		w.must(work.Note(w.ctx, bmdb.UndoAttempt(number, was)))
		if is := w.record(a.Machine).OperationAttempt; !reflect.DeepEqual(is, was) {
			w.Fatalf("attempt %+v, want %+v", is, was)
		}
		w.must(work.Note(w.ctx, bmdb.AcceptOperation(number)))
		w.wantKind(work.Note(w.ctx, bmdb.UndoAttempt(number, nil)), fleet.KindConflict)
	}},
	{"a machine that was released goes, and its capacity stays out of use", func(w *world) {
		a, other := w.ready("c1", true), w.ready("c2", false)
		w.pulls(everyLever...)
		number := w.ask(a, fleet.OperationRelease)
		names := []string{string(a.Machine), string(provider) + "/id-c1", "host-c1"}
		for _, name := range names[1:] {
			_, err := w.db.ResolveFormer(w.ctx, name)
			w.wantKind(err, fleet.KindNotFound)
		}
		s := w.session("operations")
		work := w.claimOne(s, fleet.ProcessOperation)
		w.must(work.Note(w.ctx, bmdb.BeginOperation(number, "boot1")))
		w.must(work.Note(w.ctx, bmdb.AcceptOperation(number)))
		end := bmdb.EndOperation(number, true, "the provider does not have it any more", 0)
		w.must(work.Finish(w.ctx, end))
		w.must(work.Finish(w.ctx, end)) // the reply was lost
		_, err := w.db.Machine(w.ctx, a.Machine)
		w.wantKind(err, fleet.KindNotFound)
		w.wantKind(w.db.RecordSpoken(w.ctx, a, "boot1"), fleet.KindForbidden)
		w.wantNumber(1, "SELECT machines FROM provider WHERE name = $1", string(provider))
		for _, table := range []string{
			"fact_provided", "fact_agent_started", "fact_agent_seen", "agent_last_seen", "fact_hardware", "hardware_report", "install_request",
			"operation_request", "operation_attempt", "operation_report", "machine_state",
		} {
			w.wantNumber(0, "SELECT count(*) FROM "+table+" WHERE machine = $1", string(a.Machine))
		}
		penalties, err := w.db.Penalties(w.ctx, provider)
		w.must(err)
		if p := penalties["c1"]; p.Until.Year() != 9999 || !strings.Contains(p.Cause, "release, asked for by "+actor) {
			w.Fatalf("penalties %+v", penalties)
		}
		if !slices.Contains(w.events(a.Machine), "operation done") {
			w.Fatal("its history has gone")
		}
		for _, name := range names {
			if id, err := w.db.ResolveFormer(w.ctx, name); err != nil || id != a.Machine {
				w.Fatalf("its history is found by %q as %q, %v", name, id, err)
			}
		}
		_, err = w.db.ResolveFormer(w.ctx, string(fleet.NewMachineID()))
		w.wantKind(err, fleet.KindNotFound)
		w.must(w.db.RetryCapacity(w.ctx, actor, provider, []fleet.CapacityID{"c1"}, "it is ours again"))
		if penalties, err = w.db.Penalties(w.ctx, provider); err != nil || len(penalties) != 0 {
			w.Fatalf("penalties %+v, %v", penalties, err)
		}
		if w.state(other.Machine) != fleet.StateAvailable {
			w.Fatal("another machine has changed")
		}
	}},
	{"the capacity of a machine that was given up when it was to be replaced sits out a penalty", func(w *world) {
		w.pulls() // the provider is known
		quarantined := w.broken("quarantined").Machine
		failed, byPerson, trusted := w.machine("failed"), w.machine("by-person"), w.machine("trusted")
		w.pulls(fleet.LeverRelease, fleet.LeverReboot)
		p := fleet.DefaultPolicy()
		p.RecoveryReboots = 1
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		for _, rung := range []fleet.Rung{fleet.RungReboot, fleet.RungQuarantine} {
			work := w.recover(w.sessionFor("recoverer", time.Hour), 1, 1)[0]
			if work.Subject.Machine != quarantined {
				w.Fatalf("claimed %s", work.Subject)
			}
			w.must(work.Finish(w.ctx, bmdb.TakeStep(rung)))
			w.shift.Advance(p.RecoveryStepTimeout + time.Second)
		}
		r, err := w.db.Machine(w.ctx, quarantined)
		w.must(err)
		if q := r.Quarantine; q == nil || !strings.HasPrefix(q.Reason, "recovery found no other step after 1 reboot: ") {
			w.Errorf("quarantine %+v", q)
		}
		w.must(Quarantine(w.ctx, w.db, actor, byPerson, "it corrupts data"))
		w.must(Quarantine(w.ctx, w.db, actor, trusted, "a look at its fan"))
		w.must(Unquarantine(w.ctx, w.db, actor, trusted, "its fan turns"))
		says := func(id fleet.MachineID, capacity fleet.CapacityID, status fleet.ProviderStatus) bmdb.Change {
			return bmdb.SetProvided(id, fleet.ProviderID("id-"+capacity), providedAs(status, capacity))
		}
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, says(failed, "failed", fleet.ProviderStatusFailed)))
		})
		for id, capacity := range map[fleet.MachineID]fleet.CapacityID{
			quarantined: "quarantined", failed: "failed", byPerson: "by-person", trusted: "trusted",
		} {
			number, err := Operate(w.ctx, w.db, actor, id, fleet.OperationReplace, "it is broken")
			w.must(err)
			work := w.claimOne(w.session("operations"), fleet.ProcessOperation)
			w.must(work.Note(w.ctx, bmdb.BeginOperation(number, "")))
			// What made it be given up is not seen any more.
			w.must(work.Note(w.ctx, bmdb.AcceptOperation(number), says(id, capacity, fleet.ProviderStatusDeleting)))
			w.must(work.Finish(w.ctx, bmdb.EndOperation(number, true, "gone", time.Hour)))
		}
		penalties, err := w.db.Penalties(w.ctx, provider)
		w.must(err)
		for _, capacity := range []fleet.CapacityID{"quarantined", "failed", "by-person"} {
			if p := penalties[capacity]; p.ForEver() || p.Until.Sub(w.now()) < 59*time.Minute || p.Until.Sub(w.now()) > time.Hour {
				w.Errorf("the penalty of %s is %+v at %s", capacity, p, w.now())
			}
		}
		if len(penalties) != 3 {
			w.Errorf("penalties %+v", penalties)
		}
	}},
	{"a release that is interrupted anywhere ends once", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(everyLever...)
		number := w.ask(a, fleet.OperationReplace)
		for n, ended := 1, false; !ended; n++ {
			s := w.sessionFor("operations", time.Minute)
			works := w.claim(s, fleet.ProcessOperation, 1)
			if len(works) == 0 { // it is to be looked at later
				w.shift.Advance(2 * time.Minute)
				works = w.claim(s, fleet.ProcessOperation, 1)
			}
			w.faults.FailStatement(n)
			err := works[0].Note(w.ctx, bmdb.BeginOperation(number, "boot1"))
			if err == nil {
				err = works[0].Note(w.ctx, bmdb.AcceptOperation(number))
			}
			if err == nil {
				err = works[0].Finish(w.ctx, bmdb.EndOperation(number, true, "gone", time.Hour))
			}
			ended = w.faults.Clear() == 0
			if ended {
				w.must(err)
			}
			w.must(s.Close(w.ctx, "over"))
		}
		_, err := w.db.Machine(w.ctx, a.Machine)
		w.wantKind(err, fleet.KindNotFound)
		w.wantNumber(0, "SELECT machines FROM provider WHERE name = $1", string(provider))
	}},
	{"who looks at a provider knows which machines are being released", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(everyLever...)
		releasing := func(want bool) {
			w.Helper()
			view, err := w.db.ViewProvider(w.ctx, provider)
			w.must(err)
			if len(view.Machines) != 1 || view.Machines[0].Releasing != want {
				w.Fatalf("machines %+v, want releasing %t", view.Machines, want)
			}
		}
		s := w.session("operations")
		begin := func(o fleet.Operation) (*bmdb.Work, int64) {
			w.Helper()
			number := w.ask(a, o)
			work := w.claimOne(s, fleet.ProcessOperation)
			releasing(false) // the provider has not been asked
			w.must(work.Note(w.ctx, bmdb.BeginOperation(number, "boot1")))
			return work, number
		}
		work, number := begin(fleet.OperationReboot)
		releasing(false)
		w.must(work.Finish(w.ctx, bmdb.EndOperation(number, true, "another boot ID", 0)))
		work, number = begin(fleet.OperationRelease)
		releasing(true) // it may have accepted, whether or not we know
		w.must(work.Note(w.ctx, bmdb.AcceptOperation(number)))
		releasing(true)
		w.must(work.Finish(w.ctx, bmdb.EndOperation(number, false, "the provider has changed its mind", 0)))
		releasing(false)
	}},
	{"what the provider lost is forgotten by a person's word", func(w *world) {
		w.has(fleet.RoleOperations)
		a := w.ready("c1", false)
		for command, levers := range map[string][]fleet.Lever{"remove it there": nil, "`ironherd machine release " + string(a.Machine) + " --reason WHY`": {fleet.LeverRelease}} {
			w.must(w.db.SetLevers(w.ctx, provider, levers))
			err := Forget(w.ctx, w.db, actor, a.Machine, "it burned")
			w.wantKind(err, fleet.KindConflict)
			if !strings.Contains(err.Error(), command) {
				w.Errorf("with the levers %v: %v", levers, err)
			}
		}
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.SetProvided(a.Machine, "id-c1", providedAs(fleet.ProviderStatusGone, "c1"))))
		})
		w.must(Forget(w.ctx, w.db, actor, a.Machine, "it burned"))
		w.wantKind(Forget(w.ctx, w.db, actor, a.Machine, "again"), fleet.KindNotFound)
		w.wantNumber(0, "SELECT machines FROM provider WHERE name = $1", string(provider))
		w.wantNumber(0, "SELECT count(*) FROM agenda WHERE subject = $1", string(a.Machine))
	}},
	{"a maintenance ends by time", func(w *world) {
		a := w.ready("c1", false)
		until := w.now().Add(2 * time.Hour)
		past := w.now().Add(-time.Second)
		w.wantKind(BeginMaintenance(w.ctx, w.db, actor, a.Machine, &past, "x"), fleet.KindInvalid)
		w.must(BeginMaintenance(w.ctx, w.db, actor, a.Machine, &until, "a new fan"))
		if w.state(a.Machine) != fleet.StateMaintenance {
			w.Fatalf("state %s", w.state(a.Machine))
		}
		w.must(w.db.ListenerAlive(w.ctx, 1000*time.Hour, 30*time.Second))
		w.shift.Advance(time.Hour)
		s := w.session("any")
		for _, process := range fleet.MachineProcesses() {
			if got := w.claim(s, process, 1); len(got) != 0 {
				w.Fatalf("claimed %s during the maintenance", process)
			}
		}
		w.shift.Advance(time.Hour + time.Second)
		s = w.session("operations")
		w.must(w.claimOne(s, fleet.ProcessOperation).Finish(w.ctx, bmdb.MaintenanceOver()))
		if got := w.state(a.Machine); got != fleet.StateStarted {
			w.Fatalf("state %s", got) // silence counts from the end, and nobody has heard the agent
		}
		w.wantEvents(a.Machine, "maintenance begun", "maintenance ended")
	}},
	{"an install is called off before and after it was handed out", func(w *world) {
		a := w.ready("c1", true)
		handedOut, err := CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")
		w.must(err)
		if handedOut || w.handOut(a, 0, 0) != nil || w.state(a.Machine) != fleet.StateAvailable {
			w.Fatalf("handed out %t, %s", handedOut, w.state(a.Machine))
		}
		request := fleet.InstallRequest{Image: image}
		request.RootDisk.Pick = fleet.PickLargest
		_, err = w.db.RequestInstall(w.ctx, actor, a.Machine, request, false)
		w.must(err)
		if o := w.handOut(a, 0, 0); o == nil || o.Request.Generation != 2 {
			w.Fatalf("order %+v", o)
		}
		if handedOut, err = CancelInstall(w.ctx, w.db, actor, a.Machine, "wrong again"); err != nil || !handedOut {
			w.Fatalf("handed out %t, %v", handedOut, err)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 2, Attempt: 1, Error: "called off"}))
		w.wantHappenedOnce(bmdb.HappeningInstallFailed, bmdb.FailedCalledOff)
		w.shift.Advance(2 * time.Hour)
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 30*time.Second))
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		if o := w.handOut(a, 2, 1); o != nil {
			w.Fatalf("handed out what was called off: %+v", o)
		}
	}},
	{"a provider that is paused gets no pass", func(w *world) {
		w.must(w.db.PauseProvider(w.ctx, actor, provider, "the bill"))
		s := w.session("provisioner")
		if got := w.claim(s, fleet.ProcessProvision, 1); len(got) != 0 {
			w.Fatal("claimed a provider that is paused")
		}
		w.must(w.db.ResumeProvider(w.ctx, actor, provider, "paid"))
		w.wantKind(w.db.ResumeProvider(w.ctx, actor, provider, "again"), fleet.KindConflict)
		w.claimOne(s, fleet.ProcessProvision)
		w.wantKind(w.db.PauseProvider(w.ctx, actor, "nobody", "x"), fleet.KindNotFound)
	}},
	{"people win: the pass under way begins no call after a pause, and records what came of those before", func(w *world) {
		pass := w.claimOne(w.session("provisioner"), fleet.ProcessProvision)
		wanted := newIntents("c1", "c2")
		called, waits := wanted[0], wanted[1]
		var opened []fleet.Intent
		w.must(pass.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
		w.must(pass.Note(w.ctx, bmdb.IntentCalled(called.Machine)))
		w.must(w.db.PauseProvider(w.ctx, actor, provider, "the bill"))
		for _, change := range []bmdb.Change{
			bmdb.IntentCalled(waits.Machine), bmdb.UnlessPaused(), bmdb.OpenIntents(0, newIntents("c3"), &opened),
		} {
			if err := pass.Note(w.ctx, change); !errors.Is(err, bmdb.ErrPaused) {
				w.Errorf("%s: %v", change, err)
			}
		}
		d, err := w.db.MachineDetails(w.ctx, waits.Machine)
		w.must(err)
		if why := lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessProvision).Reason; !strings.Contains(why, "paused by "+actor) {
			w.Errorf("a machine that waits for its creation is explained as %q", why)
		}
		w.must(pass.Note(w.ctx, bmdb.CloseIntentProvided(called.Machine, "d1", providedAs(fleet.ProviderStatusActive, "c1"))))
		w.must(pass.Finish(w.ctx))
		view, err := w.db.ViewProvider(w.ctx, provider)
		w.must(err)
		if len(view.Intents) != 1 || view.Intents[0].Calls != 0 || len(view.Machines) != 1 {
			w.Errorf("%+v", view)
		}
	}},
}
