package bmdbtest

import (
	"context"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// allLevers are those of a provider that can do everything.
var allLevers = []fleet.Lever{fleet.LeverReboot, fleet.LeverPower, fleet.LeverReinstall, fleet.LeverRelease}

// levered gives the provider all levers.
func (w *world) levered() {
	w.Helper()
	w.must(w.db.SetLevers(w.ctx, provider, allLevers))
}

func (w *world) planned(verb fleet.Verb, machines ...fleet.MachineID) bmdb.Plan {
	w.Helper()
	p, err := w.db.CreatePlan(w.ctx, actor, bmdb.PlanRequest{Verb: verb, Machines: machines, Reason: "why not"})
	w.must(err)
	return p
}

func (w *world) confirmed(id string) bmdb.Plan {
	w.Helper()
	p, err := w.db.ConfirmPlan(w.ctx, actor, id)
	w.must(err)
	return p
}

func outcomes(p bmdb.Plan) string {
	all := make([]string, len(p.Outcomes))
	for i, o := range p.Outcomes {
		all[i] = string(o.Outcome)
	}
	return strings.Join(all, " ")
}

// count returns how often the event is in the machine's history.
func (w *world) count(machine fleet.MachineID, event fleet.Event) (n int) {
	w.Helper()
	for _, e := range w.events(machine) {
		if e == string(event) {
			n++
		}
	}
	return n
}

// installedMachine makes one whose installed system has come up.
func (w *world) installedMachine(capacity fleet.CapacityID) bmdb.AgentIdentity {
	w.Helper()
	a := w.ready(capacity, true)
	o := w.handOut(a, 0, 0)
	w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
	w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot2")))
	return a
}

var planTests = []test{
	{"a plan changes nothing until it is confirmed, and says what it would do", func(w *world) {
		w.levered()
		a, idle := w.installedMachine("c1"), w.machine("c2")
		p := w.planned(fleet.VerbReboot, a.Machine, idle)
		if len(p.ID) != 10 || !p.NeedsConfirmation || p.ExpiresAt.Sub(p.At) != 10*time.Minute || p.ConfirmedAt != nil {
			w.Fatalf("plan %+v", p)
		}
		used, free := p.Machines[0], p.Machines[1]
		if used.InUse != "installed (generation 1)" || used.Destroys == "" || used.State != fleet.StateInstalled || used.Name != "host-c1" ||
			used.Does != "p1 reboots it" {
			w.Fatalf("in use: %+v", used)
		}
		if free.InUse != "" || free.Destroys != "" {
			w.Fatalf("idle: %+v", free)
		}
		if w.record(a.Machine).Operation != nil {
			w.Fatal("a plan that nobody confirmed asked for something")
		}
		read, err := w.db.Plan(w.ctx, strings.ToUpper(p.ID))
		w.must(err)
		if read.Verb != p.Verb || read.Reason != "why not" || read.Actor != actor || len(read.Machines) != 2 || !read.NeedsConfirmation ||
			read.Machines[0] != used {
			w.Fatalf("read %+v", read)
		}
		done := w.confirmed(p.ID)
		if outcomes(done) != "done done" || done.Outcomes[0].Operation != 1 || done.ConfirmedAt == nil {
			w.Fatalf("outcomes %+v", done.Outcomes)
		}
		q := w.record(a.Machine).Operation
		if q == nil || q.Operation != fleet.OperationReboot || q.Actor != actor || q.Reason != "why not" {
			w.Fatalf("request %+v", q)
		}
		w.wantEvents(a.Machine, "operation requested")
	}},
	{"a plan says that an install goes on which its agent works at", func(w *world) {
		a := w.ready("c1", true)
		harmless := func(verb fleet.Verb) {
			w.Helper()
			if p := w.planned(verb, a.Machine); p.NeedsConfirmation || strings.Contains(p.Machines[0].Does, "attempt") {
				w.Errorf("nothing was handed out, and %s: %+v", verb, p)
			}
		}
		harmless(fleet.VerbBeginMaintenance)
		harmless(fleet.VerbQuarantine)
		w.handOut(a, 0, 0)
		for verb, confirmed := range map[fleet.Verb]bool{fleet.VerbBeginMaintenance: true, fleet.VerbQuarantine: false} {
			p := w.planned(verb, a.Machine)
			if p.NeedsConfirmation != confirmed || !strings.Contains(p.Machines[0].Does, ", but attempt 1 of install generation 1, which was handed out to its agent, goes on") ||
				!strings.Contains(p.Machines[0].Does, "`ironherd machine install "+string(a.Machine)+" --cancel --reason WHY` ends it") {
				w.Errorf("%s: %+v", verb, p)
			}
			if done := w.confirmed(p.ID); outcomes(done) != "done" {
				w.Errorf("%s: %+v", verb, done.Outcomes)
			}
		}
		w.must(Unquarantine(w.ctx, w.db, actor, a.Machine, "looked at"))
		w.must(EndMaintenance(w.ctx, w.db, actor, a.Machine, "looked at"))
		w.levered()
		_, err := Operate(w.ctx, w.db, actor, a.Machine, fleet.OperationReboot, "it hangs")
		w.must(err)
		if does := w.planned(fleet.VerbQuarantine, a.Machine).Machines[0].Does; !strings.Contains(does, "is called off, but attempt 1") {
			w.Errorf("it calls off a reboot, too: %s", does)
		}
		w.must(Withdraw(w.ctx, w.db, actor, a.Machine, "no"))
		// It goes on, and the remedy works.
		if off, err := w.db.InstallUnwanted(w.ctx, a.Machine, 1); err != nil || off {
			w.Errorf("unwanted: %t, %v", off, err)
		}
		if handedOut, err := CancelInstall(w.ctx, w.db, actor, a.Machine, "a disk is swapped"); err != nil || !handedOut {
			w.Errorf("handed out: %t, %v", handedOut, err)
		}
		if off, err := w.db.InstallUnwanted(w.ctx, a.Machine, 1); err != nil || !off {
			w.Errorf("called off, and unwanted: %t, %v", off, err)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "called off"}))
		harmless(fleet.VerbBeginMaintenance)
		harmless(fleet.VerbQuarantine)
	}},
	{"a plan that is confirmed again tells the numbers of what it asked for, and not newer ones", func(w *world) {
		w.levered()
		one, two := w.machine("c1"), w.machine("c2")
		reboot := w.planned(fleet.VerbReboot, one)
		w.confirmed(reboot.ID)
		_, err := Operate(w.ctx, w.db, actor, one, fleet.OperationPowerCycle, "a reboot is not enough")
		w.must(err)
		if o := w.confirmed(reboot.ID).Outcomes[0]; o.Operation != 1 {
			w.Fatalf("outcome %+v", o)
		}
		reinstall, err := w.db.CreatePlan(w.ctx, actor, bmdb.PlanRequest{
			Verb: fleet.VerbReinstall, Machines: []fleet.MachineID{two}, Reason: "r", Install: &fleet.InstallRequest{Image: image},
		})
		w.must(err)
		w.confirmed(reinstall.ID)
		_, err = w.db.RequestInstall(w.ctx, actor, two, fleet.InstallRequest{Image: image}, true)
		w.must(err)
		if o := w.confirmed(reinstall.ID).Outcomes[0]; o.Generation != 1 {
			w.Fatalf("outcome %+v", o)
		}
	}},
	{"a plan that is confirmed again repeats nothing", func(w *world) {
		w.levered()
		one, two := w.machine("c1"), w.machine("c2")
		p := w.planned(fleet.VerbPowerCycle, one, two)
		first := w.confirmed(p.ID)
		w.shift.Advance(30 * time.Minute) // it would have expired, had nobody confirmed it
		again := w.confirmed(p.ID)
		if outcomes(first) != "done done" || outcomes(again) != "done done" || again.Outcomes[0].Operation != 1 {
			w.Fatalf("first %+v, again %+v", first.Outcomes, again.Outcomes)
		}
		if n := w.count(one, fleet.EventOperationRequested); n != 1 || w.record(one).Operation.Number != 1 {
			w.Fatalf("asked for %d times: %+v", n, w.record(one).Operation)
		}
		// not even when what it asked for has ended
		w.must(Withdraw(w.ctx, w.db, actor, one, "no"))
		if again = w.confirmed(p.ID); outcomes(again) != "done done" || w.record(one).Operation.Number != 1 {
			w.Fatalf("after the end: %+v", again.Outcomes)
		}
		if p, err := w.db.Plan(w.ctx, p.ID); err != nil || !p.Confirmable {
			w.Fatalf("it cannot be gone on with: %v", err)
		}
		w.shift.Advance(time.Hour)
		_, err := w.db.ConfirmPlan(w.ctx, actor, p.ID)
		w.wantKind(err, fleet.KindConflict)
	}},
	{"whatever statement of a confirmation fails, the next one goes on and repeats nothing", func(w *world) {
		w.levered()
		for n := 1; ; n++ {
			ids := w.machines(nil, fleet.CapacityID("a"+string(rune('0'+n/10))+string(rune('0'+n%10))), fleet.CapacityID("b"+string(rune('0'+n/10))+string(rune('0'+n%10))))
			p := w.planned(fleet.VerbReboot, ids...)
			w.faults.FailStatement(n)
			_, err := w.db.ConfirmPlan(w.ctx, actor, p.ID)
			missed := w.faults.Clear() == 0
			if missed != (err == nil) {
				w.Fatalf("statement %d failed, and the confirmation says %v", n, err)
			}
			done := w.confirmed(p.ID)
			if outcomes(done) != "done done" {
				w.Fatalf("after statement %d failed: %+v", n, done.Outcomes)
			}
			for _, id := range ids {
				if c := w.count(id, fleet.EventOperationRequested); c != 1 || w.record(id).Operation.Number != 1 {
					w.Fatalf("after statement %d failed, the reboot was asked for %d times", n, c)
				}
			}
			if missed {
				if n < 10 {
					w.Fatalf("a confirmation runs %d statements only: the test tests nothing", n-1)
				}
				return
			}
		}
	}},
	{"a confirmation whose replies are lost is gone on with", func(w *world) {
		w.levered()
		ids := w.machines(nil, "c1", "c2", "c3")
		p := w.planned(fleet.VerbQuarantine, ids...)
		for range 10 {
			w.faults.LoseReply()
			_, err := w.db.ConfirmPlan(w.ctx, actor, p.ID)
			w.faults.Clear()
			if err == nil {
				break
			}
		}
		if done := w.confirmed(p.ID); outcomes(done) != "done done done" {
			w.Fatalf("outcomes %+v", done.Outcomes)
		}
		for _, id := range ids {
			if n := w.count(id, fleet.EventQuarantined); n != 1 {
				w.Fatalf("quarantined %d times", n)
			}
		}
	}},
	{"a machine of which the plan is not true any more is skipped", func(w *world) {
		w.levered()
		changed, asked, gone, same := w.ready("c1", true), w.machine("c2"), w.machine("c3"), w.machine("c4")
		p := w.planned(fleet.VerbRelease, changed.Machine, asked, gone, same)
		w.handOut(changed, 0, 0) // it is in use now
		_, err := Operate(w.ctx, w.db, "another", asked, fleet.OperationReboot, "mine")
		w.must(err)
		w.must(Quarantine(w.ctx, w.db, "another", gone, "mine, too"))
		done := w.confirmed(p.ID)
		if outcomes(done) != "skipped skipped skipped done" {
			w.Fatalf("outcomes %+v", done.Outcomes)
		}
		for i, want := range []string{"installing (generation 1, attempt 1)", "operation 1", "quarantined"} {
			if !strings.Contains(done.Outcomes[i].Detail, want) {
				w.Fatalf("told %q, want %q", done.Outcomes[i].Detail, want)
			}
		}
		if w.record(changed.Machine).Operation != nil || w.record(asked).Operation.Operation != fleet.OperationReboot {
			w.Fatal("something was done to a machine that was skipped")
		}
	}},
	{"unknown and expired plans are told as such, and forgotten in their time", func(w *world) {
		w.levered()
		id := w.machine("c1")
		_, err := w.db.ConfirmPlan(w.ctx, actor, "nothing")
		w.wantKind(err, fleet.KindNotFound)
		p := w.planned(fleet.VerbPowerOff, id)
		w.shift.Advance(10 * time.Minute)
		if late, err := w.db.Plan(w.ctx, p.ID); err != nil || !p.Confirmable || late.Confirmable {
			w.Fatalf("confirmable: %t, and after its time %t, %v", p.Confirmable, late.Confirmable, err)
		}
		_, err = w.db.ConfirmPlan(w.ctx, actor, p.ID)
		w.wantKind(err, fleet.KindConflict)
		if !strings.Contains(err.Error(), "expired at") || w.record(id).Operation != nil {
			w.Fatalf("told %v", err)
		}
		prune := func(want int) {
			w.Helper()
			if n, err := w.db.PrunePlans(w.ctx, 24*time.Hour, 10); err != nil || n != want {
				w.Fatalf("pruned %d plans, want %d, %v", n, want, err)
			}
		}
		w.shift.Advance(23 * time.Hour)
		prune(0)
		w.shift.Advance(2 * time.Hour)
		prune(1)
		_, err = w.db.Plan(w.ctx, p.ID)
		w.wantKind(err, fleet.KindNotFound)
	}},
	{"what cannot be done is refused, with the reason, and the rest is done", func(w *world) {
		w.levered()
		in, out := w.machine("c1"), w.machine("c2")
		w.must(BeginMaintenance(w.ctx, w.db, actor, in, nil, "a disk is swapped"))
		p := w.planned(fleet.VerbReboot, in, out)
		if p.Machines[0].Refused == "" || p.Machines[1].Refused != "" {
			w.Fatalf("plan %+v", p.Machines)
		}
		if done := w.confirmed(p.ID); outcomes(done) != "refused done" || !strings.Contains(done.Outcomes[0].Detail, "maintenance") {
			w.Fatalf("outcomes %+v", done.Outcomes)
		}
		_, err := w.db.CreatePlan(w.ctx, actor, bmdb.PlanRequest{Verb: fleet.VerbReboot, Machines: []fleet.MachineID{in}, Reason: "r"})
		w.wantKind(err, fleet.KindConflict)
	}},
	// Rule 8.
	{"a machine that does not fit its selector any more is refused, also when it is confirmed", func(w *world) {
		w.levered()
		heard, still := w.ready("c1", false).Machine, w.machine("c2")
		request := bmdb.PlanRequest{Verb: fleet.VerbReboot, Machines: []fleet.MachineID{heard, still}, Reason: "it is silent"}
		request.Selector.States = []fleet.State{fleet.StateSilent, fleet.StateProvided}
		p, err := w.db.CreatePlan(w.ctx, actor, request)
		w.must(err)
		const why = "machine host-c1 is available now, not silent or provided"
		if p.Machines[0].Refused != why || p.Machines[1].Refused != "" {
			w.Fatalf("plan %+v", p.Machines)
		}
		if done := w.confirmed(p.ID); outcomes(done) != "refused done" || done.Outcomes[0].Detail != why || w.record(heard).Operation != nil {
			w.Fatalf("outcomes %+v", done.Outcomes)
		}
		request.Selector = bmdb.MachineFilter{Locations: []string{"rack 4", "rack 5"}}
		_, err = w.db.CreatePlan(w.ctx, actor, request)
		w.wantKind(err, fleet.KindConflict)
		if want := `machine host-c1 is in the location "here" now, not in "rack 4" or "rack 5"`; err.Error() != want {
			w.Fatalf("told %q, want %q", err, want)
		}
	}},
	{"plans that make no sense are not made", func(w *world) {
		id := w.machine("c1")
		for kind, bad := range map[fleet.Kind][]bmdb.PlanRequest{
			fleet.KindInvalid: {
				{Verb: fleet.VerbQuarantine, Reason: "r"},
				{Verb: "dance", Machines: []fleet.MachineID{id}, Reason: "r"},
				{Verb: fleet.VerbQuarantine, Machines: make([]fleet.MachineID, 1001), Reason: "r"},
			},
			fleet.KindNotFound:    {{Verb: fleet.VerbQuarantine, Machines: []fleet.MachineID{fleet.NewMachineID()}, Reason: "r"}},
			fleet.KindUnsupported: {{Verb: fleet.VerbReboot, Machines: []fleet.MachineID{id}, Reason: "r"}},
		} {
			for _, request := range bad {
				_, err := w.db.CreatePlan(w.ctx, actor, request)
				w.wantKind(err, kind)
			}
		}
	}},
	{"what was asked for already is not asked for again when it has ended", func(w *world) {
		w.levered()
		id := w.machine("c1")
		_, err := Operate(w.ctx, w.db, "another", id, fleet.OperationReboot, "mine")
		w.must(err)
		p := w.planned(fleet.VerbReboot, id)
		if done := w.confirmed(p.ID); outcomes(done) != "done" || done.Outcomes[0].Operation != 1 {
			w.Fatalf("outcomes %+v", done.Outcomes)
		}
		w.must(Withdraw(w.ctx, w.db, "another", id, "enough"))
		if again := w.confirmed(p.ID); outcomes(again) != "skipped" || w.record(id).Operation.Number != 1 {
			w.Fatalf("outcomes %+v", again.Outcomes)
		}
	}},
	{"what a plan did is told as that, also where it came across the dead", func(w *world) {
		w.levered()
		id, dead := w.machine("c1"), w.session("dead")
		w.claimOne(dead, fleet.ProcessAgentStart)
		p := w.planned(fleet.VerbReboot, id)
		w.shift.Advance(interval + margin)
		w.faults.LoseReply() // the session ends, and nobody frees its lane
		if _, err := w.db.CollectSessions(w.ctx); err == nil {
			w.Fatal("the lane was freed: the test tests nothing")
		}
		w.confirmed(p.ID)
		if again := w.confirmed(p.ID); !strings.HasPrefix(again.Outcomes[0].Detail, "operation requested: reboot") {
			w.Fatalf("told %q", again.Outcomes[0].Detail)
		}
	}},
	{"history tells what became of an operation in whose place another was asked for", func(w *world) {
		w.levered()
		id := w.machine("c1")
		number, err := Operate(w.ctx, w.db, "ada", id, fleet.OperationPowerCycle, "it hangs")
		w.must(err)
		w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(number, "")))
		// It may be off, and a provider reboots nothing that is off.
		_, err = Operate(w.ctx, w.db, "bob", id, fleet.OperationReboot, "x")
		w.wantKind(err, fleet.KindConflict)
		plan, err := w.db.CreatePlan(w.ctx, "bob", bmdb.PlanRequest{Verb: fleet.VerbPowerOff, Reason: "it smells burnt", Machines: []fleet.MachineID{id}})
		w.must(err)
		if does := plan.Machines[0].Does; !strings.Contains(does, "the power-cycle that ada asked for is called off, unless p1 carries out") {
			w.Fatalf("the plan says %q", does)
		}
		_, err = w.db.ConfirmPlan(w.ctx, "bob", plan.ID)
		w.must(err)
		rows, err := w.db.History(w.ctx, id, 100)
		w.must(err)
		w.wantDetail(rows, fleet.EventOperationWithdrawn,
			"power-cycle (operation 1): power-off was asked for, unless p1 carries out what it may have been asked for already (plan "+plan.ID+")")
	}},
	{"every verb is carried out once, under its plan", func(w *world) { w.everyVerb() }},
	{"an install that is called off ends at its agent without a backoff", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		if off, err := w.db.InstallUnwanted(w.ctx, a.Machine, 1); err != nil || off {
			w.Fatalf("called off %t, %v", off, err)
		}
		for range 2 {
			handedOut, err := CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")
			if err != nil || !handedOut {
				w.Fatalf("handed out %t, %v", handedOut, err)
			}
		}
		if n := w.count(a.Machine, fleet.EventInstallCancelled); n != 1 {
			w.Fatalf("called off %d times", n)
		}
		if off, err := w.db.InstallUnwanted(w.ctx, a.Machine, 1); err != nil || !off {
			w.Fatalf("called off %t, %v", off, err)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "called off"}))
		if r := w.record(a.Machine); len(r.Backoffs) != 0 || w.state(a.Machine) != fleet.StateAvailable {
			w.Fatalf("backoffs %v, state %s", r.Backoffs, w.state(a.Machine))
		}
		// The same install can be asked for again.
		g, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image, FirstBootData: []byte("hello")}, false)
		if err != nil || g != 2 {
			w.Fatalf("generation %d, %v", g, err)
		}
	}},
}

// everyVerb makes and confirms a plan of each verb, on a machine of which it makes sense.
func (w *world) everyVerb() {
	w.levered()
	until := w.now().Add(time.Hour)
	operating := func(o fleet.Operation) func(id fleet.MachineID) {
		return func(id fleet.MachineID) {
			_, err := Operate(w.ctx, w.db, actor, id, o, "before")
			w.must(err)
		}
	}
	for _, verb := range fleet.Verbs() {
		request := bmdb.PlanRequest{Verb: verb, Reason: "why not"}
		prepare, event := func(fleet.MachineID) {}, fleet.EventOperationRequested
		install := false
		switch verb {
		case fleet.VerbWithdraw:
			prepare, event = operating(fleet.OperationReboot), fleet.EventOperationWithdrawn
		case fleet.VerbReinstall:
			request.Install, event = &fleet.InstallRequest{Image: image, FirstBootData: []byte("data")}, fleet.EventInstallRequested
		case fleet.VerbCancelInstall:
			install, event = true, fleet.EventInstallCancelled
		case fleet.VerbQuarantine:
			event = fleet.EventQuarantined
		case fleet.VerbUnquarantine:
			prepare, event = func(id fleet.MachineID) { w.must(Quarantine(w.ctx, w.db, actor, id, "before")) }, fleet.EventUnquarantined
		case fleet.VerbBeginMaintenance:
			request.Until, event = &until, fleet.EventMaintenanceBegun
		case fleet.VerbEndMaintenance:
			prepare = func(id fleet.MachineID) { w.must(BeginMaintenance(w.ctx, w.db, actor, id, nil, "before")) }
			event = fleet.EventMaintenanceEnded
		case fleet.VerbMarkInstalled:
			prepare, event = func(fleet.MachineID) { w.shift.Advance(time.Hour) }, fleet.EventMarkedInstalled
		case fleet.VerbForget:
			prepare, event = w.lose, fleet.EventForgotten
		}
		id := w.ready(fleet.CapacityID(verb), install).Machine
		prepare(id)
		request.Machines = []fleet.MachineID{id}
		p, err := w.db.CreatePlan(w.ctx, actor, request)
		w.must(err)
		if p.Machines[0].Does == "" {
			w.Fatalf("%s: the plan does not say what it does", verb)
		}
		for range 2 {
			if done := w.confirmed(p.ID); outcomes(done) != "done" || done.Outcomes[0].Detail == "" {
				w.Fatalf("%s: %+v", verb, done.Outcomes)
			}
		}
		rows, err := w.db.History(w.ctx, id, 100)
		w.must(err)
		n := 0
		for _, r := range rows {
			if r.Event == event && strings.Contains(r.Detail, "why not") && strings.HasSuffix(r.Detail, " (plan "+p.ID+")") && r.Actor == actor {
				n++
			}
		}
		if n != 1 {
			w.Fatalf("%s: the history tells it %d times: %+v", verb, n, rows)
		}
	}
}

// lose makes the provider say that it does not have the machine.
func (w *world) lose(machine fleet.MachineID) {
	w.Helper()
	s := w.session("updater")
	w.shift.Advance(time.Hour)
	w.must(s.Extend(context.WithoutCancel(w.ctx)))
	work := w.claimOne(s, fleet.ProcessUpdate)
	w.must(work.Finish(w.ctx, bmdb.SetProvided(machine, "", providedAs(fleet.ProviderStatusGone, "gone"))))
	w.must(s.Close(w.ctx, "done"))
}
