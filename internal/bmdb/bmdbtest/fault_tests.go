package bmdbtest

import (
	"reflect"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// step is one writing operation. It is tried with a fault at each of its statements in turn.
type step struct {
	name string
	run  func() error
}

var faultTests = []test{
	{"whatever statement fails, nothing is half done, and the same again works", func(w *world) {
		for _, reply := range []bool{false, true} {
			w.wayWithFaults(reply, false)
			w.wayWithFaults(reply, true)
		}
	}},
}

// wayWithFaults goes the whole way of one machine, each step with faults: at every statement, or
// with the reply lost. Its installed system calls in, or is probed.
func (w *world) wayWithFaults(reply, probed bool) {
	w.Helper()
	capacity := fleet.CapacityID("s")
	if reply {
		capacity = "r"
	}
	if probed {
		capacity += "p"
	}
	s := w.sessionFor("way", time.Hour)
	wanted := newIntents(capacity)
	wanted[0].Install = &fleet.InstallRequest{Image: image, Actor: actor}
	if probed {
		wanted[0].Install.SeenUp = fleet.SeenUp{By: fleet.SeenBySSH, Watch: true}
	}
	id := wanted[0].Machine
	a := bmdb.AgentIdentity{Machine: id, PublicKey: []byte("k")}
	var opened []fleet.Intent
	var work *bmdb.Work
	var order *bmdb.InstallOrder
	active := providedAs(fleet.ProviderStatusActive, capacity)
	claim := func(process fleet.Process) func() error {
		return func() error {
			if err := s.Extend(w.ctx); err != nil { // hands back what a lost reply left
				return err
			}
			c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: process, Limit: 1})
			if err == nil && len(c.Works) == 1 {
				work = c.Works[0]
			}
			return err
		}
	}
	steps := []step{
		{"claim provision", claim(fleet.ProcessProvision)},
		{"open", func() error { return work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)) }},
		{"called", func() error { return work.Note(w.ctx, bmdb.IntentCalled(id)) }},
		{"provided", func() error {
			return work.Note(w.ctx, bmdb.CloseIntentProvided(id, fleet.ProviderID(capacity), active))
		}},
		{"hand back", func() error { return work.Cancel(w.ctx, "so that the next way finds it") }},
		{"claim agent start", claim(fleet.ProcessAgentStart)},
		{"mint", func() error { return work.Note(w.ctx, bmdb.MintTakeover(0, &a.TakeoverGeneration)) }},
		{"started", func() error {
			return work.Finish(w.ctx, bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: a.TakeoverGeneration, PublicKey: a.PublicKey}))
		}},
		{"listener", func() error { return w.db.ListenerAlive(w.ctx, time.Hour, time.Minute) }},
		{"listener full", func() error { return w.db.ListenerFull(w.ctx, time.Minute) }},
		{"spoken", func() error { return w.db.RecordSpoken(w.ctx, a, "b1") }},
		{"hardware", func() error { return w.db.RecordHardware(w.ctx, a, []byte("r"), nil) }},
		{"hand out", func() (err error) {
			o, err := w.db.HandOutInstall(w.ctx, a, 0, 0)
			if o != nil {
				order = o
			}
			return err
		}},
		{"report", func() error {
			return w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: order.Attempt, OK: true})
		}},
		{"installed", func() error { return errorOf(w.db.RecordInstalled(w.ctx, id, 1, order.Attempt, order.Secret, "b2")) }},
		{"quarantine", func() error { return Quarantine(w.ctx, w.db, actor, id, "q") }},
	}
	if probed {
		steps = probeInstead(steps, claim(fleet.ProcessProbe), func() error {
			return work.Finish(w.ctx, bmdb.RecordProbe(bmdb.ProbeResult{Generation: 1, Attempt: order.Attempt, Answered: true, Detail: "it answers SSH"}))
		})
	}
	w.runWithFaults(steps, id, reply)
	if got := w.state(id); got != fleet.StateQuarantined {
		w.Fatalf("the way ended in %s", got)
	}
	if w.record(id).Installed == nil {
		w.Fatal("the way ended without an installed system")
	}
}

// probeInstead puts a probe into the place of the unit that calls in, which is the last step but
// one.
func probeInstead(steps []step, claim, probe func() error) []step {
	last := len(steps) - 1
	return append(steps[:last-1], step{"claim probe", claim}, step{"probe", probe}, steps[last])
}

// runWithFaults runs each step with its faults, and then without.
func (w *world) runWithFaults(steps []step, id fleet.MachineID, reply bool) {
	w.Helper()
	for _, step := range steps {
		if reply {
			w.faults.LoseReply()
			_ = step.run()
		} else {
			w.failEach(step, id)
		}
		w.faults.Clear()
		if err := step.run(); err != nil {
			w.Fatalf("%s after its faults: %v", step.name, err)
		}
	}
}

// failEach runs the step with a fault at its first statement, its second, and so on, until a run
// meets none; each time that the step failed, nothing may have changed.
func (w *world) failEach(step step, id fleet.MachineID) {
	w.Helper()
	for n := 1; ; n++ {
		before := w.seenOf(id)
		w.faults.FailStatement(n)
		err := step.run()
		if w.faults.Clear() == 0 {
			if n < 3 {
				w.Fatalf("%s runs %d statements only: the test tests nothing", step.name, n-1)
			}
			if err != nil {
				w.Fatalf("%s without a fault: %v", step.name, err)
			}
			return
		}
		if err == nil {
			w.Fatalf("%s: the fault at statement %d was swallowed", step.name, n)
		}
		if after := w.seenOf(id); !reflect.DeepEqual(before, after) {
			w.Fatalf("%s: a fault at statement %d left half of it:\n%+v\n%+v", step.name, n, before, after)
		}
		if n > 200 {
			w.Fatalf("%s never ends", step.name)
		}
	}
}

// seenOf is what can be seen of a machine, but for the deadlines of sessions.
func (w *world) seenOf(id fleet.MachineID) any {
	w.Helper()
	events := w.events(id)
	r, err := w.db.Machine(w.ctx, id)
	if fleet.KindOf(err) == fleet.KindNotFound {
		return events
	}
	w.must(err)
	for lane, h := range r.Holds {
		h.Deadline = time.Time{}
		r.Holds[lane] = h
	}
	return []any{events, r}
}
