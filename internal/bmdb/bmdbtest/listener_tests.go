package bmdbtest

import (
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// beside is the engine of a process beside the one under test.
type beside struct{ bmdb.Engine }

func (b beside) Properties() bmdb.Properties {
	p := b.Engine.Properties()
	p.SingleProcess = false
	return p
}

// Close leaves the engine to the other process.
func (beside) Close() error { return nil }

// upgraded is a control plane that comes back after so long, and has the whole fleet judged again.
func (w *world) upgraded(after time.Duration) {
	w.Helper()
	w.shift.Advance(after)
	w.must(w.db.ListenerAlive(w.ctx, 20*time.Minute, 30*time.Second))
	env, err := w.db.Environment(w.ctx)
	w.must(err)
	env.Policy.OperationTimeout += time.Minute
	_, err = w.db.SetPolicy(w.ctx, env.Policy)
	w.must(err)
	w.judgeAgain()
}

const ours = ": the fault is probably ours (listener, network, certificate, clock)"

var listenerTests = []test{
	{"agents that are silent when a listener goes away are so until they are heard, and suspect us once", func(w *world) {
		p := w.suspecting(2)
		w.must(w.db.ListenerAlive(w.ctx, 20*time.Minute, 30*time.Second))
		agents := []bmdb.AgentIdentity{w.ready("c1", false), w.ready("c2", false), w.ready("c3", false)}
		w.shift.Advance(p.NeverSpokeAfter + time.Minute)
		w.judgeAgain()
		w.watch("3 of 3 machines with an agent are silent" + ours)
		w.must(w.db.ResumeRecovery(w.ctx, actor, "the rack burns"))
		for range 3 {
			w.upgraded(2 * time.Hour)
			w.wantNumber(3, "SELECT count(*) FROM machine_state WHERE state = 'silent'")
			w.watch("")
			w.shift.Advance(p.SilentAfter + time.Minute)
			w.watch("")
		}
		for _, a := range agents {
			w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		}
		w.watch("0 of 3 machines with an agent are silent: recovery goes on")
	}},
	{"agents that were heard until a listener went away are not silent when it comes back", func(w *world) {
		p := w.suspecting(2)
		w.must(w.db.ListenerAlive(w.ctx, 20*time.Minute, 30*time.Second))
		agents := []bmdb.AgentIdentity{w.ready("c1", false), w.ready("c2", false)}
		w.shift.Advance(time.Hour - p.SilentAfter/2)
		for _, a := range agents {
			w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		}
		w.upgraded(2 * time.Hour)
		w.wantNumber(0, "SELECT count(*) FROM machine_state WHERE state = 'silent'")
		w.shift.Advance(p.SilentAfter + time.Minute)
		w.watch("")
	}},
	{"installed systems that had not come up when a listener went away suspect us once", func(w *world) {
		p := w.suspecting(2)
		w.must(w.db.ListenerAlive(w.ctx, 20*time.Minute, 30*time.Second))
		w.written("c1", "c2")
		w.shift.Advance(p.NeverSpokeAfter + time.Minute)
		w.watch("2 of 2 installed systems did not come up" + ours)
		w.must(w.db.ResumeRecovery(w.ctx, actor, "the image is broken"))
		w.shift.Advance(2 * time.Hour)
		w.watch("")
		w.must(w.db.ListenerAlive(w.ctx, 20*time.Minute, 30*time.Second))
		w.watch("") // nobody has judged them since they were written
		w.upgraded(2 * time.Hour)
		w.watch("")
		w.shift.Advance(p.BootTimeout + time.Minute)
		w.watch("")
	}},
	{"a process that has just started neither stops recovery nor lets it go on", func(w *world) {
		w.suspecting(2)
		a := w.ready("c1", false)
		w.silent(elsewhere, 5, 0)
		w.must(w.db.SetLevers(w.ctx, elsewhere, everyLever))
		p := w.suspecting(2)
		w.serveAlone(provider)
		for range 2 { // those of the other provider count no more after a stop
			w.shift.Advance(max(p.NeverSpokeAfter, p.SuspectFor) + time.Minute)
			w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
			w.judgeAgain()
			_, err := w.db.WatchSilence(w.ctx)
			w.must(err)
		}
		w.watch("")
		young, err := bmdb.Open(w.ctx, beside{w.shift}, bmdb.Options{})
		w.must(err)
		for range 3 {
			did, err := young.WatchSilence(w.ctx)
			if w.must(err); did != "" {
				w.Fatalf("it did %q", did)
			}
			w.watch("")
			w.shift.Advance(25 * time.Second)
		}
		did, err := young.WatchSilence(w.ctx)
		if w.must(err); did != "" {
			w.Fatalf("a minute later it did %q", did)
		}
	}},
	{"a process that has just started lets nothing go on", func(w *world) {
		w.suspecting(2)
		a := w.ready("c1", false)
		w.silent(elsewhere, 5, 0)
		w.must(w.db.SetLevers(w.ctx, elsewhere, everyLever))
		p := w.suspecting(2)
		pass := func() {
			w.shift.Advance(max(p.NeverSpokeAfter, p.SuspectFor) + time.Minute)
			w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
			w.judgeAgain()
		}
		pass()
		w.watch("5 of 6 machines with an agent are silent" + ours)
		pass()
		w.serveAlone(provider) // who serves the other one is not back yet
		young, err := bmdb.Open(w.ctx, beside{w.shift}, bmdb.Options{})
		w.must(err)
		did, err := young.WatchSilence(w.ctx)
		if w.must(err); did != "" {
			w.Fatalf("it did %q", did)
		}
		w.watch("0 of 1 machines with an agent are silent, without 5 that have been silent for long, and that recovery cannot restart: recovery goes on")
	}},
	{"a process that has just started follows a stop that ends", func(w *world) {
		w.suspecting(2)
		w.broken("c1")
		w.broken("c2")
		s := w.lasting(fleet.RoleRecoverer.Component())
		end := w.now().Add(3 * time.Hour).Truncate(time.Microsecond)
		w.must(w.db.HoldRecovery(w.ctx, actor, &end, "works at the network"))
		w.judgeAgain()
		w.shift.Advance(end.Add(-30 * time.Second).Sub(w.now()))
		young, err := bmdb.Open(w.ctx, beside{w.shift}, bmdb.Options{})
		w.must(err)
		for range 17 {
			_, err := young.WatchSilence(w.ctx)
			w.must(err)
			w.shift.Advance(2 * time.Second)
		}
		w.recover(s, 2, 0)
	}},
	{"agents that found no room when a listener went away are not silent when it comes back without room", func(w *world) {
		w.suspecting(2)
		agents := []bmdb.AgentIdentity{w.ready("c1", false), w.ready("c2", false), w.ready("c3", false)}
		minutes := func(n int, full bool) {
			for range 2 * n {
				if full {
					w.must(w.db.ListenerFull(w.ctx, 4*time.Minute))
				}
				w.must(w.db.ListenerAlive(w.ctx, 15*time.Second, 30*time.Second))
				w.shift.Advance(30 * time.Second)
			}
		}
		for range 40 {
			minutes(1, false)
			for _, a := range agents {
				w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
			}
		}
		minutes(15, true)
		w.shift.Advance(5 * time.Minute)
		w.must(w.db.ListenerFull(w.ctx, 4*time.Minute))
		w.upgraded(0)
		w.wantNumber(0, "SELECT count(*) FROM machine_state WHERE state = 'silent'")
		w.watch("")
	}},
}
