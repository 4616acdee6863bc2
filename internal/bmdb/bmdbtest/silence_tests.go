package bmdbtest

import (
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// suspecting sets the policy: so many that are silent together make the fault ours, and recovery
// has no other limit.
func (w *world) suspecting(least int) fleet.Policy {
	w.Helper()
	p := fleet.DefaultPolicy()
	p.SuspectLeast, p.RecoveryAtOnce = least, 0
	_, err := w.db.SetPolicy(w.ctx, p)
	w.must(err)
	w.must(w.db.SetLevers(w.ctx, provider, everyLever))
	return p
}

// written makes machines whose disk was written, and returns what makes their system come up.
func (w *world) written(capacities ...fleet.CapacityID) (comeUp []func()) {
	w.Helper()
	for _, c := range capacities {
		a := w.ready(c, true)
		o := w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
		comeUp = append(comeUp, func() {
			w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot2")))
		})
	}
	return comeUp
}

// watch wants that whoever watches the silence does that; "": nothing.
func (w *world) watch(want string) {
	w.Helper()
	did, err := w.db.WatchSilence(w.ctx)
	if w.must(err); did != want {
		w.Fatalf("it did %q, want %q", did, want)
	}
}

var silenceTests = []test{
	{"hosts that recovery would not restart do not stop recovery", func(w *world) {
		p := w.suspecting(2)
		w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverRelease}))
		w.machines(nil, "c1", "c2", "c3")
		for _, work := range w.claim(w.lasting("initializer"), fleet.ProcessAgentStart, 5) {
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours, Answer: fleet.AnswerNone}))
		}
		w.shift.Advance(p.NeverSpokeAfter + time.Minute)
		w.watch("")
		w.exec("UPDATE provider SET levers = 'power'")
		w.exec("INSERT INTO fact_agent_started (machine, at, takeover_generation, public_key, agent_version, boot_id) "+
			"SELECT id, 1, 1, $1, '', '' FROM machine WHERE id <> (SELECT min(id) FROM machine)", []byte("key"))
		w.watch("") // two had an agent
		w.exec("DELETE FROM fact_agent_started")
		w.watch("3 of 3 machines are silent, of which 3 have never answered: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"dead machines that recovery cannot restart stop recovery once, and keep it from no later stop", func(w *world) {
		w.suspecting(2)
		var agents []bmdb.AgentIdentity
		for _, c := range []fleet.CapacityID{"c1", "c2", "c3", "c4"} {
			agents = append(agents, w.ready(c, false))
		}
		w.silent(elsewhere, 5, 0)
		w.must(w.db.SetLevers(w.ctx, elsewhere, []fleet.Lever{fleet.LeverRelease}))
		p := w.suspecting(2)
		speak := func() {
			for _, a := range agents {
				w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
			}
		}
		w.shift.Advance(p.NeverSpokeAfter + time.Minute)
		speak()
		w.judgeAgain()
		w.wantNumber(5, "SELECT count(*) FROM machine_state WHERE state = 'silent'")
		w.watch("5 of 9 machines with an agent are silent: the fault is probably ours (listener, network, certificate, clock)")
		w.shift.Advance(p.SuspectFor + time.Minute)
		speak()
		w.judgeAgain()
		const left = ", without 5 that have been silent for long, and that recovery cannot restart: "
		w.watch("0 of 4 machines with an agent are silent" + left + "recovery goes on")
		w.shift.Advance(p.SilentAfter + time.Minute)
		for _, work := range w.claim(w.lasting("initializer"), fleet.ProcessAgentStart, 9) {
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours}))
		}
		w.watch("4 of 4 machines with an agent are silent" + left + "the fault is probably ours (listener, network, certificate, clock)")
		speak()
		w.watch("0 of 4 machines with an agent are silent" + left + "recovery goes on")
	}},
	{"hosts that refuse us stop recovery once, and keep it from no later stop, while they are on", func(w *world) {
		w.suspecting(2)
		var agents []bmdb.AgentIdentity
		for _, c := range []fleet.CapacityID{"c1", "c2", "c3", "c4"} {
			agents = append(agents, w.ready(c, false))
		}
		w.silent(elsewhere, 5, 0)
		p := w.suspecting(2)
		w.judgeAgain() // under this policy they are not silent yet
		w.wantNumber(0, "SELECT count(*) FROM machine_state WHERE state = 'silent'")
		speak := func() {
			for _, a := range agents {
				w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
			}
		}
		w.shift.Advance(2 * time.Hour)
		speak()
		day := fleet.Backoff{Initial: 24 * time.Hour, Maximum: 24 * time.Hour}
		claimed, err := w.lasting("initializer").Claim(w.ctx, bmdb.ClaimRequest{
			Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{elsewhere}, Limit: 9,
		})
		w.must(err)
		for _, work := range claimed.Works {
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "another host key", Backoff: day, Answer: fleet.AnswerOtherKey}))
		}
		w.judgeAgain()
		w.wantNumber(5, "SELECT count(*) FROM machine_state WHERE state = 'silent'")
		w.watch("5 of 9 machines with an agent are silent: the fault is probably ours (listener, network, certificate, clock)")
		w.shift.Advance(p.SuspectFor + time.Minute)
		speak()
		w.judgeAgain()
		const left = ", without 5 that have been silent for long, and that recovery cannot restart: "
		w.watch("0 of 4 machines with an agent are silent" + left + "recovery goes on")
		w.shift.Advance(p.SilentAfter + time.Minute)
		for _, work := range w.claim(w.lasting("initializer"), fleet.ProcessAgentStart, 9) {
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours, Answer: fleet.AnswerNone}))
		}
		w.watch("4 of 4 machines with an agent are silent" + left + "the fault is probably ours (listener, network, certificate, clock)")
		speak()
		w.watch("0 of 4 machines with an agent are silent" + left + "recovery goes on")
		w.exec("UPDATE fact_provided SET status = 'off' WHERE provider = 'p2'") // these are switched on
		w.watch("5 of 9 machines with an agent are silent: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"of machines that fall silent together all count, whether recovery can restart them or not", func(w *world) {
		w.suspecting(2)
		w.silent(provider, 1, 0)
		w.silent(elsewhere, 5, 0)
		w.must(w.db.SetLevers(w.ctx, elsewhere, []fleet.Lever{fleet.LeverRelease}))
		p := w.suspecting(3)
		w.shift.Advance(p.NeverSpokeAfter + time.Minute)
		w.judgeAgain()
		w.watch("6 of 6 machines with an agent are silent: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"installed systems that do not come up, together, stop recovery before one is restarted", func(w *world) {
		p := w.suspecting(2)
		w.listening()
		comeUp := w.written("c1", "c2", "c3")
		w.shift.Advance(p.BootTimeout - time.Minute)
		w.watch("")
		w.shift.Advance(2 * time.Minute)
		s := w.lasting("recoverer")
		w.recover(s, 5, 0)
		w.watch("3 of 3 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
		w.judgeAgain()
		w.shift.Advance(p.RecoveryStepTimeout)
		w.recover(s, 5, 0)
		w.watch("")
		w.shift.Advance(p.SuspectFor)
		w.watch("") // recovery stops once
		for _, work := range w.recover(s, 5, 3) {
			w.must(work.Cancel(w.ctx, "not now"))
		}
		for _, up := range comeUp {
			up()
		}
		w.watch("0 of 0 machines with an agent are silent: recovery goes on")
	}},
	{"installed systems that came up beside them show that the fault is not ours", func(w *world) {
		p := w.suspecting(2)
		w.listening()
		comeUp := w.written("c1", "c2", "c3", "c4", "c5")
		w.shift.Advance(2 * time.Minute)
		for _, up := range comeUp[2:] {
			up()
		}
		w.shift.Advance(p.BootTimeout)
		w.watch("")
		w.shift.Advance(p.RecoveryStepTimeout)
		for _, work := range w.recover(w.lasting("recoverer"), 5, 2) {
			w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		}
		w.shift.Advance(time.Hour) // the others came up long ago, but after these were written
		w.watch("")
		w.written("c6", "c7", "c8")
		w.shift.Advance(p.BootTimeout + time.Minute)
		w.watch("5 of 8 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"installed systems whose time ends while a listener has no room say nothing", func(w *world) {
		p := w.suspecting(2)
		w.listening()
		w.written("c1", "c2")
		w.shift.Advance(p.BootTimeout - time.Minute)
		w.must(w.db.ListenerFull(w.ctx, 5*time.Minute))
		w.shift.Advance(4 * time.Minute)
		w.watch("")
		w.shift.Advance(2 * time.Minute)
		w.watch("2 of 2 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"installed systems whose time was over before a listener had no room say as much as ever", func(w *world) {
		p := w.suspecting(2)
		w.listening()
		w.written("c1", "c2")
		w.shift.Advance(p.BootTimeout + time.Minute)
		w.must(w.db.ListenerFull(w.ctx, 5*time.Minute))
		w.watch("2 of 2 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"agents that speak do not excuse installed systems that do not come up", func(w *world) {
		p := w.suspecting(2)
		w.listening()
		w.written("c1", "c2")
		agents := []bmdb.AgentIdentity{w.ready("c3", false), w.ready("c4", false), w.ready("c5", false)}
		w.shift.Advance(p.BootTimeout + time.Minute)
		for _, a := range agents {
			w.hear(a)
		}
		w.watch("2 of 2 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"an installed system that has its time still does not stop recovery", func(w *world) {
		p := w.suspecting(1)
		w.listening()
		a := w.ready("c1", true)
		id := a.Machine
		w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
		late := func(do func()) {
			w.Helper()
			w.shift.Advance(p.BootTimeout - time.Minute)
			do()
			w.shift.Advance(2 * time.Minute)
			w.watch("")
		}
		late(func() { w.must(BeginMaintenance(w.ctx, w.db, actor, id, nil, "a new fan")) })
		late(func() { w.must(EndMaintenance(w.ctx, w.db, actor, id, "it turns")) })
		late(func() {
			number := w.ask(a, fleet.OperationReboot)
			w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(number, ""),
				bmdb.AcceptOperation(number), bmdb.EndOperation(number, true, "done", 0)))
		})
		w.shift.Advance(p.BootTimeout)
		w.watch("1 of 1 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"who is silent still when a silence ends has the time of a step", func(w *world) {
		p := w.suspecting(2)
		var agents []bmdb.AgentIdentity
		for _, c := range []fleet.CapacityID{"c1", "c2", "c3", "c4", "c5"} {
			agents = append(agents, w.broken(c))
		}
		const ours = "5 of 5 machines with an agent are silent: the fault is probably ours (listener, network, certificate, clock)"
		const rest = "1 of 5 machines with an agent are silent; the others were heard again, and these still have time"
		othersSpeak := func() {
			for _, a := range agents[1:] {
				w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
			}
		}
		judgeAll := func() { // as their starts of agents do
			w.suspecting(2)
			w.judgeAgain()
		}
		judgeAll()
		w.watch(ours)
		w.shift.Advance(p.RecoveryStepTimeout) // the time of all is over, but for the stop
		othersSpeak()
		w.watch(rest)
		w.judgeAgain()
		s := w.lasting("recoverer")
		w.shift.Advance(p.RecoveryStepTimeout - time.Minute)
		othersSpeak()
		w.watch("")
		w.recover(s, 5, 0)
		w.shift.Advance(2 * time.Minute)
		w.watch("") // their time is over
		w.must(w.recover(s, 5, 1)[0].Cancel(w.ctx, "not now"))

		// It is another silence when many fall silent again in that time, and nobody needs time who
		// was heard.
		w.shift.Advance(time.Hour)
		judgeAll()
		w.watch(ours)
		othersSpeak()
		w.watch(rest)
		w.shift.Advance(p.SilentAfter + time.Second)
		judgeAll()
		w.watch(ours)
		othersSpeak()
		w.watch(rest)
		w.must(w.db.RecordSpoken(w.ctx, agents[0], "boot1"))
		w.watch("0 of 5 machines with an agent are silent: recovery goes on")
	}},
	{"a silence that ends leaves the stop for a spent budget", func(w *world) {
		p := fleet.DefaultPolicy()
		p.SuspectLeast, p.RecoveryPerHour = 2, 1
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		agents := []bmdb.AgentIdentity{w.broken("c1"), w.broken("c2")}
		w.pulls(fleet.LeverReboot)
		watch := func(want fleet.StopCause) {
			w.Helper()
			_, err := w.db.WatchSilence(w.ctx)
			w.must(err)
			if h, err := RecoveryHold(w.ctx, w.db); err != nil || h == nil || h.Cause != want {
				w.Fatalf("hold %+v, %v; want the cause %s", h, err, want)
			}
		}
		watch(fleet.StopSilence)
		w.shift.Advance(p.SuspectFor + time.Second)
		w.judgeAgain()
		work := w.recover(w.sessionFor("recoverer", 10*time.Hour), 1, 1)[0]
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		watch(fleet.StopBudget)
		for _, a := range agents {
			w.must(w.db.RecordSpoken(w.ctx, a, "boot2"))
		}
		watch(fleet.StopBudget)
		w.wantKind(w.db.ResumeRecovery(w.ctx, actor, "all are heard"), fleet.KindConflict)
	}},
	{"a stop that ends in a silence is followed by the guard's without a gap, and is not cut short by it", func(w *world) {
		p := w.suspecting(2)
		agents := []bmdb.AgentIdentity{w.broken("c1"), w.broken("c2")}
		const ours = "2 of 2 machines with an agent are silent: the fault is probably ours (listener, network, certificate, clock)"
		s := w.lasting("recoverer")
		for name, pause := range map[string]func(end time.Time){
			"a person's":   func(end time.Time) { w.must(w.db.HoldRecovery(w.ctx, actor, &end, "a network change")) },
			"the budget's": func(end time.Time) { w.must(w.db.HoldRecovery(w.ctx, fleet.ActorPolicy, &end, "it is spent")) },
		} {
			end := w.now().Add(3 * time.Hour).Truncate(time.Microsecond)
			pause(end)
			w.judgeAgain()
			w.watch("") // it is stopped anyway
			w.shift.Advance(end.Add(-50 * time.Second).Sub(w.now()))
			w.watch(ours)
			h, err := RecoveryHold(w.ctx, w.db)
			w.must(err)
			if h == nil || !h.Until.Equal(end.Add(p.SuspectFor)) {
				w.Fatalf("%s stop ends at %s, and after it %+v", name, end, h)
			}
			w.watch("")
			w.failStarts(2)
			w.shift.Advance(end.Add(time.Second).Sub(w.now())) // nobody has looked again
			w.recover(s, 2, 0)
			w.must(w.db.ResumeRecovery(w.ctx, actor, "I have looked"))
			w.judgeAgain()
			for _, work := range w.recover(s, 2, 2) {
				w.must(work.Cancel(w.ctx, "not now"))
			}
			w.watch("") // that silence is known

			pause(w.now().Add(30 * time.Second))
			w.watch(ours)
			for _, a := range agents {
				w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
			}
			w.watch("") // recovery is stopped until then
			w.shift.Advance(31 * time.Second)
			w.watch("0 of 2 machines with an agent are silent: recovery goes on")
			w.shift.Advance(p.SilentAfter + time.Second)
			w.judgeAgain()
		}
	}},
	{"a silence during a stop without an end is left to whoever ends it", func(w *world) {
		w.suspecting(2)
		w.broken("c1")
		w.broken("c2")
		w.must(w.db.HoldRecovery(w.ctx, actor, nil, "a network change"))
		w.judgeAgain()
		w.shift.Advance(time.Hour)
		w.watch("")
		if h, err := RecoveryHold(w.ctx, w.db); err != nil || h == nil || h.Actor != actor {
			w.Fatalf("hold %+v, %v", h, err)
		}
	}},
	{"who lets recovery go on without such a silence leaves the guard as it was", func(w *world) {
		p := w.suspecting(2)
		w.listening()
		w.must(w.db.HoldRecovery(w.ctx, actor, nil, "a rack moves"))
		w.must(w.db.ResumeRecovery(w.ctx, actor, "it stands"))
		w.written("c1", "c2", "c3")
		w.shift.Advance(p.BootTimeout + time.Minute)
		w.watch("3 of 3 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
		w.must(w.db.ResumeRecovery(w.ctx, actor, "it is not"))
		w.watch("") // that silence is known
	}},
	{"systems that wait for probes say nothing while the database looks restored", func(w *world) {
		p := w.suspecting(1)
		w.listening()
		w.unseen(fleet.SeenUp{By: fleet.SeenBySSH})
		w.putBack()
		w.judgeAgain()
		w.shift.Advance(p.BootTimeout + time.Minute)
		w.watch("")
	}},
	{"no installed system had its time while nobody listened", func(w *world) {
		p := w.suspecting(1)
		w.written("c1")
		w.shift.Advance(p.BootTimeout + time.Minute)
		w.watch("")
		w.listening()
		w.shift.Advance(p.BootTimeout - time.Minute)
		w.watch("")
		w.shift.Advance(2 * time.Minute)
		w.watch("1 of 1 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"an installed system that is to be probed has not come up only when a probe says so", func(w *world) {
		p := w.suspecting(1)
		w.listening()
		w.unseen(fleet.SeenUp{By: fleet.SeenBySSH})
		w.shift.Advance(p.BootTimeout + time.Minute)
		w.watch("")
		w.probe(w.sessionFor("prober", 10*time.Hour), 0, false)
		w.watch("1 of 1 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
	}},
	{"what failures say of a host is remembered", func(w *world) {
		id, s := w.machine("c1"), w.lasting("initializer")
		fail := func(answer fleet.Answer) fleet.BackoffState {
			w.shift.Advance(2 * time.Minute)
			w.must(w.claimOne(s, fleet.ProcessAgentStart).Fail(w.ctx, bmdb.Failure{Cause: "x", Backoff: fleet.Backoff{Initial: time.Minute}, Answer: answer}))
			return w.record(id).Backoffs[fleet.ProcessAgentStart]
		}
		if b := fail(fleet.AnswerUnknown); !b.UnansweredSince.IsZero() || b.Answered {
			w.Fatalf("nobody tried: %+v", b)
		}
		first, again := fail(fleet.AnswerNone), fail(fleet.AnswerNone)
		if first.UnansweredSince.IsZero() || first.Answered || !again.UnansweredSince.Equal(first.UnansweredSince) || !again.UnansweredAt.After(first.UnansweredAt) {
			w.Fatalf("it did not answer since %s: %+v", first.UnansweredSince, again)
		}
		if b := fail(fleet.AnswerUnknown); b.UnansweredSince != again.UnansweredSince || b.UnansweredAt != again.UnansweredAt {
			w.Fatalf("nobody tried since %s: %+v", again.UnansweredAt, b)
		}
		if b := fail(fleet.AnswerRefused); !b.UnansweredSince.IsZero() || !b.Answered || !b.Refused {
			w.Fatalf("it refused us: %+v", b)
		}
		if b := fail(fleet.AnswerUnknown); !b.Answered || !b.Refused || b.OtherKey {
			w.Fatalf("nobody tried since it refused us: %+v", b)
		}
		if b := fail(fleet.AnswerOtherKey); !b.Answered || !b.Refused || !b.OtherKey {
			w.Fatalf("it showed another key: %+v", b)
		}
		if b := fail(fleet.AnswerGiven); !b.UnansweredSince.IsZero() || !b.UnansweredAt.IsZero() || !b.Answered || b.Refused || b.OtherKey {
			w.Fatalf("it answered: %+v", b)
		}
		if b := fail(fleet.AnswerNone); !b.UnansweredSince.After(first.UnansweredSince) || b.Answered || b.Refused {
			w.Fatalf("it does not answer again: %+v", b)
		}
	}},
	{"since when work fails is remembered, but for waits for a turn", func(w *world) {
		id, s := w.machine("c1"), w.lasting("initializer")
		fail := func(queued bool) time.Time {
			w.shift.Advance(2 * time.Minute)
			failure := bmdb.Failure{Cause: "x", Backoff: fleet.Backoff{Initial: time.Minute}, Queued: queued}
			w.must(w.claimOne(s, fleet.ProcessAgentStart).Fail(w.ctx, failure))
			return w.record(id).Backoffs[fleet.ProcessAgentStart].Since
		}
		if since := fail(true); !since.IsZero() {
			w.Fatalf("nothing was tried, and it fails since %s", since)
		}
		first := fail(false)
		if now := w.now(); now.Sub(first) < 0 || now.Sub(first) > time.Minute {
			w.Fatalf("it fails since %s, and it is %s", first, now)
		}
		for _, queued := range []bool{false, true, false} {
			if since := fail(queued); !since.Equal(first) {
				w.Fatalf("it fails since %s, want %s", since, first)
			}
		}
	}},
	{"an agent start does not wait for a machine that is back, or on", func(w *world) {
		id := w.machine("c1")
		update := w.claimOne(w.lasting("updater"), fleet.ProcessUpdate)
		for _, is := range []struct {
			status fleet.ProviderStatus
			waits  bool
		}{
			{fleet.ProviderStatusOff, true},
			{fleet.ProviderStatusPowering, true},
			{fleet.ProviderStatusActive, false},
			{fleet.ProviderStatusGone, true},
			{fleet.ProviderStatusOff, false},
			{fleet.ProviderStatusActive, false},
		} {
			if w.record(id).Provided.Status == fleet.ProviderStatusActive {
				w.must(w.claimOne(w.session("initializer"), fleet.ProcessAgentStart).Fail(w.ctx, bmdb.Failure{Cause: "not known", Backoff: hours}))
			}
			before := w.record(id).Backoffs[fleet.ProcessAgentStart].Failures
			w.must(update.Note(w.ctx, bmdb.SetProvided(id, "", providedAs(is.status, "c1"))))
			want := 0
			if is.waits {
				want = before
			}
			if b := w.record(id).Backoffs[fleet.ProcessAgentStart]; b.Failures != want {
				w.Fatalf("when the provider says %s, the backoff is %+v", is.status, b)
			}
		}
		w.must(w.claimOne(w.session("initializer"), fleet.ProcessAgentStart).Finish(w.ctx))
	}},
}
