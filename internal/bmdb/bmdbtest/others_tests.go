package bmdbtest

import (
	"reflect"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// othersTests are of what one person asks for where another has asked for something else.
var othersTests = []test{
	{"nobody takes the place of the maintenance or quarantine of another", func(w *world) {
		id := w.machine("c1")
		for verb, c := range map[fleet.Verb]struct {
			begin func(actor, reason string) error
			end   fleet.Verb
			what  string
			ends  string
		}{
			fleet.VerbBeginMaintenance: {
				func(actor, reason string) error { return BeginMaintenance(w.ctx, w.db, actor, id, nil, reason) }, fleet.VerbEndMaintenance,
				"maintenance", "`ironherd machine maintenance end " + string(id) + " --reason WHY` ends that first",
			},
			fleet.VerbQuarantine: {
				func(actor, reason string) error { return Quarantine(w.ctx, w.db, actor, id, reason) }, fleet.VerbUnquarantine,
				"quarantine", "`ironherd machine unquarantine " + string(id) + " --reason WHY` ends that first",
			},
		} {
			w.must(c.begin("ada", "hands in it"))
			w.must(c.begin("ada", "hands in it")) // the reply was lost
			err := c.begin("bob", "a kernel")
			if w.wantKind(err, fleet.KindConflict); !strings.Contains(err.Error(), " by ada: hands in it") || !strings.HasSuffix(err.Error(), c.ends) {
				w.Errorf("%s: %v", verb, err)
			}
			plan, err := w.db.CreatePlan(w.ctx, "bob", bmdb.PlanRequest{Verb: verb, Machines: []fleet.MachineID{id}, Reason: "a kernel"})
			if fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(plan.Machines[0].Refused, " by ada: hands in it") {
				w.Errorf("%s: %+v, %v", verb, plan.Machines, err)
			}
			// One's own may have another reason, and what it was is told.
			w.sayTold("ada", verb, id, "a new board", "; it takes the place of the "+c.what+" by ada: hands in it")
			w.sayTold("ada", verb, id, "a new board", "")
			// Whoever confirms a plan of hers may be another.
			plan, err = w.db.CreatePlan(w.ctx, "ada", bmdb.PlanRequest{Verb: verb, Machines: []fleet.MachineID{id}, Reason: "a new board"})
			w.must(err)
			if done, err := w.db.ConfirmPlan(w.ctx, "bob", plan.ID); err != nil || outcomes(done) != "done" {
				w.Errorf("%s, confirmed by another: %+v, %v", verb, done.Outcomes, err)
			}
			w.must(c.begin("bob", "a new board")) // it is his by now
			plan, err = w.db.CreatePlan(w.ctx, "bob", bmdb.PlanRequest{Verb: verb, Machines: []fleet.MachineID{id}, Reason: "a new board"})
			w.must(err)
			done, err := w.db.ConfirmPlan(w.ctx, "ada", plan.ID)
			if err != nil || outcomes(done) != "done" {
				w.Errorf("%s, confirmed by ada again: %+v, %v", verb, done.Outcomes, err)
			}
			w.sayTold("bob", c.end, id, "it is late", "the "+c.what+" by ada ends (a new board), and ")
		}
	}},
	{"a maintenance of another whose time is over keeps nobody from beginning one", func(w *world) {
		id, until := w.machine("c1"), w.now().Add(time.Hour)
		w.must(BeginMaintenance(w.ctx, w.db, "ada", id, &until, "hands in it"))
		err := BeginMaintenance(w.ctx, w.db, "bob", id, nil, "a kernel")
		if w.wantKind(err, fleet.KindConflict); !strings.Contains(err.Error(), " by ada until "+fleet.Instant(until)+": hands in it") {
			w.Error(err)
		}
		w.shift.Advance(time.Hour)
		w.must(BeginMaintenance(w.ctx, w.db, "bob", id, nil, "a kernel"))
	}},
	{"a stop of recovery that takes the place of another's tells of that", func(w *world) {
		now := w.now()
		hold := func(actor string, lasts time.Duration, want string) {
			w.Helper()
			until := now.Add(lasts)
			w.must(w.db.HoldRecovery(w.ctx, actor, &until, "of "+actor))
			if h, err := RecoveryHold(w.ctx, w.db); err != nil || h == nil || h.Actor != actor || h.Reason != want || !h.Until.Equal(until) {
				w.Fatalf("hold %+v, %v; want %q", h, err, want)
			}
		}
		until := func(lasts time.Duration) string { return " until " + fleet.Instant(now.Add(lasts)) }
		hold("ada", time.Hour, "of ada")
		same := now.Add(time.Hour)
		err := w.db.HoldRecovery(w.ctx, "bob", &same, "of bob")
		if w.wantKind(err, fleet.KindConflict); !strings.Contains(err.Error(), " already by ada"+until(time.Hour)+": of ada; `ironherd recovery resume` ends that first") {
			w.Error(err)
		}
		hold("bob", 2*time.Hour, "of bob; also stopped by ada"+until(time.Hour)+": of ada")
		hold("bob", 3*time.Hour, "of bob; also stopped by ada"+until(time.Hour)+": of ada") // once more
		hold("cyd", 4*time.Hour, "of cyd; also stopped by bob"+until(3*time.Hour)+": of bob; also stopped by ada"+until(time.Hour)+": of ada")
		hold("ada", 5*time.Hour, "of ada; also stopped by cyd"+until(4*time.Hour)+": of cyd; also stopped by bob"+until(3*time.Hour)+": of bob")
		w.must(w.db.ResumeRecovery(w.ctx, "ada", "it is over"))
		hold("bob", time.Hour, "of bob")
		hold(fleet.ActorPolicy, 2*time.Hour, "of policy; also stopped by bob"+until(time.Hour)+": of bob")
		hold("ada", 3*time.Hour, "of ada; also stopped by bob"+until(time.Hour)+": of bob")
	}},
	{"a person takes over what recovery has quarantined", func(w *world) {
		a := w.broken("c1")
		w.pulls(fleet.LeverReboot)
		for _, rung := range []fleet.Rung{fleet.RungReboot, fleet.RungReboot, fleet.RungQuarantine} {
			s := w.session("recoverer")
			work := w.claimOne(s, fleet.ProcessRecovery)
			w.must(work.Note(w.ctx, bmdb.TakeStep(rung)))
			w.must(work.Finish(w.ctx))
			w.must(s.Close(w.ctx, "done"))
			w.shift.Advance(fleet.DefaultPolicy().RecoveryStepTimeout + time.Second)
		}
		w.sayTold("ada", fleet.VerbQuarantine, a.Machine, "bad memory", "; it takes the place of the quarantine by recovery: recovery found no other step")
		if q := w.record(a.Machine).Quarantine; q.Actor != "ada" || q.Reason != "bad memory" {
			w.Errorf("quarantine %+v", q)
		}
	}},
	{"what calls off the operation of another wants a confirmation, and tells whose it was", func(w *world) {
		w.levered()
		id := w.machine("c1")
		ask := func(actor string, verb fleet.Verb, needs bool, told string) {
			w.Helper()
			p, err := w.db.CreatePlan(w.ctx, actor, bmdb.PlanRequest{Verb: verb, Machines: []fleet.MachineID{id}, Reason: "r"})
			w.must(err)
			read, err := w.db.Plan(w.ctx, p.ID)
			w.must(err)
			if p.NeedsConfirmation != needs || read.NeedsConfirmation != needs {
				w.Errorf("%s of %s needs a confirmation: %t, read %t, want %t", verb, actor, p.NeedsConfirmation, read.NeedsConfirmation, needs)
			}
			done, err := w.db.ConfirmPlan(w.ctx, actor, p.ID)
			w.must(err)
			if o := done.Outcomes[0]; o.Outcome != bmdb.OutcomeDone || strings.Contains(o.Detail, "is called off") != (told != "") || !strings.Contains(o.Detail, told) {
				w.Errorf("%s of %s: %+v, want %q", verb, actor, o, told)
			}
		}
		ask("ada", fleet.VerbPowerOff, true, "")
		ask("bob", fleet.VerbReboot, true, ", and the power-off that ada asked for is called off")
		ask("ada", fleet.VerbReboot, false, "") // it is asked for already
		ask("bob", fleet.VerbPowerOn, false, ", and the reboot that bob asked for is called off")
		ask("ada", fleet.VerbWithdraw, true, "the power-on that bob asked for is called off")
		ask("bob", fleet.VerbPowerOn, false, "")
		ask("ada", fleet.VerbQuarantine, false, ", and the power-on that bob asked for is called off")
	}},
	{"an attempt that had no effect leaves that at what was asked for before", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(everyLever...)
		for _, changes := range [][]bmdb.Change{{bmdb.BeginOperation(1, "boot1")}, {bmdb.BeginOperation(3, "boot1"), bmdb.AcceptOperation(3)}} {
			w.ask(a, fleet.OperationReboot)
			w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, changes...))
			was := w.record(a.Machine).OperationAttempt
			w.shift.Advance(time.Second)
			number := w.ask(a, fleet.OperationPowerCycle)
			work := w.claimOne(w.lasting("operations"), fleet.ProcessOperation)
			w.must(work.Note(w.ctx, bmdb.BeginOperation(number, "boot1")))
			for range 2 { // the reply was lost
				w.must(work.Note(w.ctx, bmdb.UndoAttempt(number, was)))
			}
			w.must(work.Finish(w.ctx))
			if is := w.record(a.Machine).OperationAttempt; !reflect.DeepEqual(is, was) {
				w.Errorf("attempt %+v, want %+v", is, was)
			}
		}
	}},
	{"a maintenance and a quarantine tell what may still be done to the host", func(w *world) {
		a := w.broken("c1")
		w.pulls(everyLever...)
		w.pending(a.Machine, "")
		s := w.session("recoverer")
		work := w.claimOne(s, fleet.ProcessRecovery)
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.must(work.Finish(w.ctx))
		w.must(s.Close(w.ctx, "done"))
		w.pending(a.Machine, ", but the reboot by recovery may still come")
		w.must(Quarantine(w.ctx, w.db, actor, a.Machine, "why not"))
		w.pending(a.Machine, ", but the reboot by recovery may still come")
		w.shift.Advance(time.Minute)
		w.must(w.db.RecordSpoken(w.ctx, a, "boot2"))
		w.pending(a.Machine, "") // it has come
		w.must(Unquarantine(w.ctx, w.db, actor, a.Machine, "enough"))

		number := w.ask(a, fleet.OperationRelease)
		w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(number, "boot2")))
		w.must(Withdraw(w.ctx, w.db, actor, a.Machine, "no"))
		w.pending(a.Machine, ", but the release that "+actor+" asked for may still come")
		w.shift.Advance(fleet.DefaultPolicy().OperationTimeout)
		w.pending(a.Machine, "")

		number = w.ask(a, fleet.OperationPowerOff)
		w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(number, "boot2"), bmdb.AcceptOperation(number)))
		if does := w.planned(fleet.VerbQuarantine, a.Machine).Machines[0].Does; !strings.HasSuffix(does, ", but the power-off that "+actor+" asked for, which p1 has accepted, goes on") {
			w.Errorf("quarantine: %q", does)
		}
	}},
}

// sayTold makes and confirms a plan of the actor, and checks that what it does and what was done
// tell something; "": that they tell of no other.
func (w *world) sayTold(actor string, verb fleet.Verb, machine fleet.MachineID, reason, told string) {
	w.Helper()
	p, err := w.db.CreatePlan(w.ctx, actor, bmdb.PlanRequest{Verb: verb, Machines: []fleet.MachineID{machine}, Reason: reason})
	w.must(err)
	done, err := w.db.ConfirmPlan(w.ctx, actor, p.ID)
	w.must(err)
	if outcomes(done) != "done" || p.NeedsConfirmation {
		w.Errorf("%s: %+v", verb, done)
	}
	for _, text := range []string{p.Machines[0].Does, done.Outcomes[0].Detail} {
		if !strings.Contains(text, told) || told == "" && strings.Contains(text, "takes the place") {
			w.Errorf("%s says %q, want %q", verb, text, told)
		}
	}
}

// pending checks what plans to keep everything away from a machine say of what may still be done to
// it, and that neither waits for a confirmation: begun at once, they keep further steps away; "":
// nothing.
func (w *world) pending(machine fleet.MachineID, told string) {
	w.Helper()
	for _, verb := range []fleet.Verb{fleet.VerbBeginMaintenance, fleet.VerbQuarantine} {
		p := w.planned(verb, machine)
		if does := p.Machines[0].Does; strings.Contains(does, ", but ") != (told != "") || !strings.HasSuffix(does, told) {
			w.Errorf("%s does %q, want %q", verb, does, told)
		}
		if p.NeedsConfirmation {
			w.Errorf("%s needs a confirmation", verb)
		}
	}
}
