package bmdbtest

import (
	"bytes"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var agentTests = []test{
	{"only the agent in charge is heard", func(w *world) {
		a := w.ready("c1", true)
		wrongKey, oldGeneration, wrongMachine := a, a, a
		wrongKey.PublicKey = []byte("another")
		oldGeneration.TakeoverGeneration--
		wrongMachine.Machine = fleet.NewMachineID()
		for _, bad := range []bmdb.AgentIdentity{wrongKey, oldGeneration, wrongMachine} {
			w.wantKind(w.db.RecordSpoken(w.ctx, bad, "b"), fleet.KindForbidden)
			w.wantKind(w.db.RecordHardware(w.ctx, bad, []byte("x"), nil), fleet.KindForbidden)
			w.wantKind(w.db.RecordInstallReport(w.ctx, bad, fleet.InstallReport{}), fleet.KindForbidden)
			_, err := w.db.HandOutInstall(w.ctx, bad, 0, 0)
			w.wantKind(err, fleet.KindForbidden)
		}
		got, err := w.db.Agent(w.ctx, a.Machine)
		w.must(err)
		if got.TakeoverGeneration != a.TakeoverGeneration || !bytes.Equal(got.PublicKey, a.PublicKey) {
			w.Fatalf("agent %+v", got)
		}
		_, err = w.db.Agent(w.ctx, wrongMachine.Machine)
		w.wantKind(err, fleet.KindNotFound)
	}},
	{"first words, restarts and returns are facts", func(w *world) { // rule 9
		id := w.machine("c1")
		a := w.startAgent(id)
		if w.state(id) != fleet.StateStarted {
			w.Fatalf("state %s", w.state(id))
		}
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 30*time.Second))
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		first := w.record(id).AgentSeen.FirstAt
		w.shift.Advance(time.Minute)
		w.must(w.db.RecordSpoken(w.ctx, a, "boot2"))
		if s := w.record(id).AgentSeen; s.BootID != "boot2" || !s.FirstAt.Equal(first) || !s.LastAt.After(first) {
			w.Fatalf("seen %+v", s)
		}
		w.shift.Advance(time.Hour)
		if _, err := w.db.RecomputeAgenda(w.ctx, 100); err != nil {
			w.Fatal(err)
		}
		if w.state(id) != fleet.StateSilent {
			w.Fatalf("state %s after an hour of silence", w.state(id))
		}
		w.must(w.db.RecordSpoken(w.ctx, a, "boot2"))
		if w.state(id) == fleet.StateSilent {
			w.Fatal("still silent")
		}
		w.wantEvents(id, "agent started", "agent spoke", "machine restarted", "agent returned")
	}},
	{"repetition touches no agenda and never goes back", func(w *world) {
		a := w.ready("c1", false)
		w.shift.Advance(time.Minute)
		before := w.now()
		w.must(w.db.FlushSeen(w.ctx, []bmdb.Seen{{Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration, Age: 5 * time.Second}}))
		after, last := w.now(), w.record(a.Machine).AgentSeen.LastAt
		if said := last.Add(5 * time.Second); said.Before(before.Add(-time.Second)) || said.After(after.Add(time.Second)) {
			w.Fatalf("last seen at %s, and written from %s to %s", last, before, after)
		}
		w.must(w.db.FlushSeen(w.ctx, []bmdb.Seen{{Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration, Age: time.Minute}, {Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration + 1}}))
		if !w.record(a.Machine).AgentSeen.LastAt.Equal(last) {
			w.Fatal("went back, or believed another generation")
		}
	}},
	{"a heartbeat before the first words of a generation is ignored", func(w *world) {
		a := w.startAgent(w.machine("c1"))
		w.must(w.db.FlushSeen(w.ctx, []bmdb.Seen{{Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration, Age: 0}}))
		if w.record(a.Machine).AgentSeen != nil {
			w.Fatal("repetition made a fact")
		}
	}},
	{"silence counts only while a listener was up", func(w *world) {
		a := w.ready("c1", false)
		w.shift.Advance(2 * time.Hour) // nobody listened
		w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
		env, err := w.db.Environment(w.ctx)
		w.must(err)
		if up := w.now().Sub(env.ListenerUpSince); up > margin {
			w.Fatalf("the listener is said to be up for %s", up)
		}
		if _, err := w.db.RecomputeAgenda(w.ctx, 100); err != nil {
			w.Fatal(err)
		}
		if w.state(a.Machine) == fleet.StateSilent {
			w.Fatal("declared silent for a time when nobody listened")
		}
		since := env.ListenerUpSince
		w.shift.Advance(20 * time.Second)
		w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
		env, err = w.db.Environment(w.ctx)
		w.must(err)
		if !env.ListenerUpSince.Equal(since) || env.PromisedInterval != 30*time.Second {
			w.Fatalf("environment %+v", env)
		}
		w.shift.Advance(time.Minute)
		env, err = w.db.Environment(w.ctx)
		w.must(err)
		if !env.ListenerUpSince.IsZero() {
			w.Fatal("a listener that stopped counts as up")
		}
	}},
	{"silence is not declared while a listener has no room", func(w *world) {
		a := w.ready("c1", false)
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 30*time.Second))
		state := func() fleet.State {
			w.judgeAgain()
			return w.state(a.Machine)
		}
		full := func(since, until time.Duration) {
			w.Helper()
			env, err := w.db.Environment(w.ctx)
			w.must(err)
			now := w.now()
			if s, u := now.Sub(env.ListenerFullSince), env.ListenerFullUntil.Sub(now); (s-since).Abs() > margin || (u-until).Abs() > margin {
				w.Fatalf("no room for %s, and for %s more; want %s and %s", s, u, since, until)
			}
		}
		w.shift.Advance(9 * time.Minute)
		w.must(w.db.ListenerFull(w.ctx, 4*time.Minute))
		full(0, 4*time.Minute)
		w.shift.Advance(3 * time.Minute)
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 30*time.Second)) // another one, or the same
		w.must(w.db.ListenerFull(w.ctx, 2*time.Minute))
		full(3*time.Minute, 2*time.Minute)
		w.must(w.db.ListenerFull(w.ctx, time.Second)) // another one has room sooner
		full(3*time.Minute, 2*time.Minute)
		if s := state(); s != fleet.StateAvailable {
			w.Fatalf("it is %s because it found no room", s)
		}
		w.shift.Advance(2*time.Minute + time.Second)
		if s := state(); s != fleet.StateSilent {
			w.Fatalf("there was room for long enough, and it is %s", s)
		}
		w.must(w.db.ListenerFull(w.ctx, 2*time.Minute))
		full(0, 2*time.Minute)
	}},
	{"a shorter promise makes silence due earlier, everywhere", func(w *world) {
		a := w.startAgent(w.machine("c1"))
		due := func() time.Duration {
			s := w.session("recoverer")
			c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
			w.must(err)
			w.must(s.Close(w.ctx, "done"))
			return c.NextDue.Sub(w.now())
		}
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, time.Hour))
		w.must(w.db.RecordSpoken(w.ctx, a, "b"))
		if d := due(); d < 2*time.Hour {
			w.Fatalf("silence is due in %s, below three promised hours", d)
		}
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 50*time.Minute)) // not worth judging everything again
		if _, err := w.db.RecomputeAgenda(w.ctx, 100); err != nil {
			w.Fatal(err)
		}
		if d := due(); d < 2*time.Hour {
			w.Fatalf("silence is due in %s", d)
		}
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 30*time.Second)) // agents follow the longer one
		if _, err := w.db.RecomputeAgenda(w.ctx, 100); err != nil {
			w.Fatal(err)
		}
		if d := due(); d < 2*time.Hour {
			w.Fatalf("silence is due in %s", d)
		}
		w.shift.Advance(4*time.Hour + time.Minute)
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 30*time.Second))
		if _, err := w.db.RecomputeAgenda(w.ctx, 100); err != nil {
			w.Fatal(err)
		}
		if d := due(); d > 10*time.Minute {
			w.Fatalf("silence is due in %s", d)
		}
	}},
	{"listeners do not undo each other's promises", func(w *world) { // rule 9
		want := func(promised time.Duration, policy int64) {
			w.Helper()
			env, err := w.db.Environment(w.ctx)
			w.must(err)
			if env.PromisedInterval != promised || env.Policy.Number != policy {
				w.Fatalf("%s are promised under policy %d, want %s under %d", env.PromisedInterval, env.Policy.Number, promised, policy)
			}
		}
		alive := func(promised time.Duration) { w.must(w.db.ListenerAlive(w.ctx, 5*time.Second, promised)) }
		before, err := w.db.Environment(w.ctx)
		w.must(err)
		number := before.Policy.Number
		for range 10 {
			alive(80 * time.Second)
			want(80*time.Second, number)
			alive(30 * time.Second)
			want(80*time.Second, number)
			w.shift.Advance(20 * time.Second)
		}
		alive(80 * time.Second)
		for range 12 { // the agents of the one follow it still, and it has fewer by now
			alive(39 * time.Second)
			alive(30 * time.Second)
			want(80*time.Second, number)
			w.shift.Advance(5 * time.Second)
		}
		w.shift.Advance(time.Minute)
		alive(30 * time.Second)
		want(39*time.Second, number+1)
		alive(39 * time.Second)
		want(39*time.Second, number+1)
	}},
	{"hardware is stored by digest", func(w *world) {
		a := w.ready("c1", false)
		h := w.record(a.Machine).Hardware
		w.shift.Advance(time.Minute)
		w.must(w.db.RecordHardware(w.ctx, a, []byte("report"), nil))
		if got := w.record(a.Machine).Hardware; *got != *h {
			w.Fatalf("the same report changed %+v to %+v", h, got)
		}
		w.must(w.db.RecordHardware(w.ctx, a, []byte("another"), nil))
		got := w.record(a.Machine).Hardware
		if got.Digest == h.Digest || !got.FirstAt.Equal(h.FirstAt) || !got.At.After(h.At) {
			w.Fatalf("hardware %+v after %+v", got, h)
		}
		report, err := w.db.HardwareReport(w.ctx, a.Machine)
		w.must(err)
		if string(report) != "another" {
			w.Fatalf("report %q", report)
		}
		w.wantEvents(a.Machine, "hardware reported", "hardware changed")
		_, err = w.db.HardwareReport(w.ctx, fleet.NewMachineID())
		w.wantKind(err, fleet.KindNotFound)
	}},
	{"a hardware report that is alike is stored, and no history", func(w *world) {
		a := w.ready("c1", false)
		for _, sent := range []string{"report, and warmer", "report, and hotter", "another"} {
			alike := func(before []byte) bool { return before[0] == sent[0] }
			was := w.record(a.Machine).Hardware.At
			w.shift.Advance(time.Minute)
			w.must(w.db.RecordHardware(w.ctx, a, []byte(sent), alike))
			if report, err := w.db.HardwareReport(w.ctx, a.Machine); err != nil || string(report) != sent || !w.record(a.Machine).Hardware.At.After(was) {
				w.Fatalf("report %q, %v, not %q", report, err, sent)
			}
		}
		changed := func(event string) bool { return event != string(fleet.EventHardwareChanged) }
		if events := w.events(a.Machine); len(slices.DeleteFunc(events, changed)) != 1 {
			w.Fatalf("history %q", w.events(a.Machine))
		}
	}},
	{"a later takeover supersedes", func(w *world) {
		a := w.ready("c1", false)
		w.must(w.db.ListenerAlive(w.ctx, 24*time.Hour, 30*time.Second))
		w.shift.Advance(time.Hour)
		s := w.session("recoverer")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		var g fleet.TakeoverGeneration
		w.must(work.Note(w.ctx, bmdb.MintTakeover(0, &g)))
		next := bmdb.AgentIdentity{Machine: a.Machine, TakeoverGeneration: g, PublicKey: []byte("second key")}
		w.must(work.Finish(w.ctx, bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: g, PublicKey: next.PublicKey})))
		w.wantKind(w.db.RecordSpoken(w.ctx, a, "boot1"), fleet.KindForbidden)
		w.must(w.db.RecordSpoken(w.ctx, next, "boot1"))
		if got := w.record(a.Machine).AgentSeen; got.TakeoverGeneration != g {
			w.Fatalf("seen %+v", got)
		}
		if n := len(slices.DeleteFunc(w.events(a.Machine), func(e string) bool { return e != "agent spoke" })); n != 2 {
			w.Fatalf("%d generations spoke", n)
		}
	}},
	// rule 9
	{"an agent that is heard by a process whose clock lags was heard after its start", func(w *world) {
		w.listening()
		a := w.ready("c1", false)
		w.pulls(fleet.LeverReboot)
		w.shift.Advance(fleet.DefaultPolicy().SilentAfter + time.Minute)
		next := w.startAgent(a.Machine)
		step := w.record(a.Machine).Repair
		if step == nil || step.Rung != fleet.RungAgentStart {
			w.Fatalf("step %+v", step)
		}
		w.shift.Advance(step.At.Sub(w.now()) - time.Second)
		w.must(w.db.RecordSpoken(w.ctx, next, "boot1"))
		if w.count(a.Machine, fleet.EventRepaired) != 1 || w.state(a.Machine) != fleet.StateAvailable {
			w.Fatalf("state %s, history %q", w.state(a.Machine), w.events(a.Machine))
		}
		if r := w.record(a.Machine); r.AgentSeen.LastAt.Before(r.AgentStarted.At) || r.AgentSeen.FirstAt.Before(r.AgentStarted.At) {
			w.Fatalf("started %+v, seen %+v", r.AgentStarted, r.AgentSeen)
		}
	}},
	{"an agent that shows a restart to a process whose clock lags was heard after it", func(w *world) {
		a := w.broken("c1")
		w.pulls(fleet.LeverReboot)
		w.shift.Advance(24 * time.Hour)
		work := w.claimOne(w.lasting("recoverer"), fleet.ProcessRecovery)
		w.must(work.Finish(w.ctx, bmdb.TakeStep(work.Decision.Rung)))
		w.shift.Advance(w.record(a.Machine).Repair.At.Sub(w.now()) - time.Second)
		w.must(w.db.RecordSpoken(w.ctx, a, "boot2"))
		if w.count(a.Machine, fleet.EventRepaired) != 1 || w.state(a.Machine) != fleet.StateAvailable {
			w.Fatalf("state %s, history %q", w.state(a.Machine), w.events(a.Machine))
		}
	}},
	{"a start that fails when its agent was heard meanwhile leaves nothing behind", func(w *world) {
		a := w.broken("c1")
		w.pulls(fleet.LeverReboot)
		w.judgeAgain()
		w.shift.Advance(2 * time.Hour)
		work := w.claimOne(w.lasting("initializer"), fleet.ProcessAgentStart)
		if b := work.Record.Backoffs[fleet.ProcessAgentStart]; b.Failures != 1 {
			w.Fatalf("backoff %+v", b)
		}
		w.shift.Advance(time.Minute)
		w.hear(a)
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no route to host", Backoff: hours}))
		if r := w.record(a.Machine); len(r.Backoffs) != 0 || w.state(a.Machine) != fleet.StateAvailable {
			w.Fatalf("state %s, backoffs %+v", w.state(a.Machine), r.Backoffs)
		}
		if got := w.claim(w.lasting("initializer"), fleet.ProcessAgentStart, 1); len(got) != 0 {
			w.Fatalf("claimed: %s", got[0].Decision.Reason)
		}
		// It counts what fails from here on.
		w.shift.Advance(time.Hour)
		w.failStarts(1)
		if b := w.record(a.Machine).Backoffs[fleet.ProcessAgentStart]; b.Failures != 1 || w.now().Sub(b.Since) > time.Minute {
			w.Fatalf("backoff %+v", b)
		}
	}},
	{"a failure to take an agent off counts, though the agent speaks", func(w *world) {
		a, _ := w.reinstalling()
		w.must(w.db.RecordSpoken(w.ctx, a, "boot3"))
		w.must(errorOf2(CancelInstall(w.ctx, w.db, actor, a.Machine, "the wrong image")))
		work := w.claimOne(w.lasting("initializer"), fleet.ProcessAgentStart)
		w.shift.Advance(time.Minute)
		w.hear(a)
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no route to host", Backoff: hours}))
		if b := w.record(a.Machine).Backoffs[fleet.ProcessAgentStart]; b.Failures != 1 {
			w.Fatalf("backoff %+v", b)
		}
	}},
}
