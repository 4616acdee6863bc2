package bmdbtest

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// heardFor lets time pass while a listener is up.
func (w *world) heardFor(d time.Duration) {
	w.Helper()
	for range int(d / (20 * time.Second)) {
		w.shift.Advance(20 * time.Second)
		w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
	}
}

// lost makes a machine with an install request whose agent fell silent and cannot be started again,
// and returns the recovery work that is due.
func (w *world) lost(policy func(*fleet.Policy)) (fleet.MachineID, *bmdb.Work) {
	w.Helper()
	p := fleet.DefaultPolicy()
	policy(&p)
	_, err := w.db.SetPolicy(w.ctx, p)
	w.must(err)
	w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverReboot, fleet.LeverReinstall}))
	a := w.ready("c1", true)
	return a.Machine, w.falls(p)
}

// falls has the only agent fall silent and not started again, and returns the recovery work that is
// due.
func (w *world) falls(p fleet.Policy) *bmdb.Work {
	w.Helper()
	w.heardFor(p.SilentAfter + time.Minute)
	w.must(w.claimOne(w.lasting("initializer"), fleet.ProcessAgentStart).Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: growing}))
	w.heardFor(p.RecoveryStepTimeout)
	return w.claimOne(w.lasting("recoverer"), fleet.ProcessRecovery)
}

var handsTests = []test{
	{"a reinstall by recovery is a new install of the same image", func(w *world) {
		id, work := w.lost(func(p *fleet.Policy) { p.RecoveryReboots, p.RecoveryReinstalls = 0, 1 })
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		r := w.record(id)
		if q := r.InstallRequest; q.Generation != 2 || q.Image != image || q.Actor != actor {
			w.Fatalf("wanted is %+v", q)
		}
		w.must(work.Finish(w.ctx))
		w.wantEvents(id, "recovery step", "install requested")
		if r := w.record(id); r.Repair == nil || r.Repair.Steps[fleet.RungReinstall] != 1 || len(r.Backoffs) != 0 {
			w.Fatalf("repair %+v, backoffs %v", r.Repair, r.Backoffs)
		}
		// what it finds on its first boot is the same
		w.heardFor(2 * time.Minute)
		a := w.startAgentAs(id, "boot2")
		w.must(w.db.RecordSpoken(w.ctx, a, "boot2"))
		if o := w.handOut(a, 0, 0); o.Request.Generation != 2 || string(o.Request.FirstBootData) != "hello" {
			w.Fatalf("handed out %+v", o.Request)
		}
	}},
	{"a reinstall that had no effect is taken back whole", func(w *world) {
		id, work := w.lost(func(p *fleet.Policy) { p.RecoveryReboots, p.RecoveryReinstalls = 0, 1 })
		keys := func() fleet.HostKeys {
			k, err := w.db.HostKeys(w.ctx, id)
			w.must(err)
			return k
		}
		w.must(work.Note(w.ctx, bmdb.PinHostKeys(id, []string{"ssh-ed25519 AAAA"})))
		was := bmdb.BeforeStep{Install: w.record(id).InstallRequest, HostKeys: keys()}
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		if q := w.record(id).InstallRequest; q.Generation != 2 || len(keys().Known) != 0 {
			w.Fatalf("wanted is %+v, known are %v", q, keys())
		}
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: growing}, bmdb.UndoStep(fleet.RungReinstall, was)))
		r := w.record(id)
		if r.Repair != nil || r.InstallRequest.Generation != 1 || !reflect.DeepEqual(keys().Known, was.HostKeys.Known) ||
			keys().Source != was.HostKeys.Source {
			w.Fatalf("repair %+v, wanted is %+v, known are %+v", r.Repair, r.InstallRequest, keys())
		}
	}},
	{"host keys that only the reinstall would have made are not known after it is taken back", func(w *world) {
		id, work := w.lost(func(p *fleet.Policy) { p.RecoveryReboots, p.RecoveryReinstalls = 0, 1 })
		was := bmdb.BeforeStep{Install: w.record(id).InstallRequest}
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall), bmdb.InjectHostKey(id, "ssh-ed25519 AAAA", "SHA256:x")))
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: growing}, bmdb.UndoStep(fleet.RungReinstall, was)))
		if keys, err := w.db.HostKeys(w.ctx, id); err != nil || len(keys.Known) != 0 {
			w.Fatalf("known are %+v, %v", keys, err)
		}
	}},
	// rule 8
	{"an install that a person calls off stays so when a reinstall is taken back", func(w *world) {
		id, work := w.lost(func(p *fleet.Policy) { p.RecoveryReboots, p.RecoveryReinstalls = 0, 1 })
		was := bmdb.BeforeStep{Install: w.record(id).InstallRequest}
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		_, err := CancelInstall(w.ctx, w.db, "someone", id, "the wrong image")
		w.must(err)
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: growing}, bmdb.UndoStep(fleet.RungReinstall, was)))
		r := w.record(id)
		if q, off := r.InstallRequest, r.InstallCancel; q.Generation != 1 || off.Generation != 1 || off.Actor != "someone" || off.Reason != "the wrong image" {
			w.Fatalf("wanted is %+v, called off %+v", q, off)
		}
	}},
	{"history names the restart after which an installed system came up", func(w *world) {
		a := w.ready("c1", true)
		w.pulls(fleet.LeverReboot)
		o := w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: o.Request.Generation, Attempt: o.Attempt, OK: true, Disk: "/dev/sda"}))
		w.heardFor(fleet.DefaultPolicy().BootTimeout + fleet.DefaultPolicy().RecoveryStepTimeout + time.Minute)
		w.must(w.claimOne(w.lasting("recoverer"), fleet.ProcessRecovery).Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, o.Request.Generation, o.Attempt, o.Secret, "boot9")))
		w.wantEvents(a.Machine, "recovery step", "recovered", "installed")
		rows, err := w.db.History(w.ctx, a.Machine, 10)
		w.must(err)
		for _, row := range rows {
			if row.Event == fleet.EventRepaired && !strings.Contains(row.Detail, "after the step reboot, with another boot ID") {
				w.Errorf("history says %q", row.Detail)
			}
		}
	}},
	{"machines whose hosts never answered, together, stop recovery", func(w *world) {
		p := fleet.DefaultPolicy()
		p.SuspectLeast, p.RecoveryAtOnce = 2, 1
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		w.pulls(fleet.LeverReboot)
		w.machines(nil, "c1", "c2")
		unanswered := func() {
			for _, work := range w.claim(w.lasting("initializer"), fleet.ProcessAgentStart, 5) {
				w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: fleet.Backoff{Initial: p.SuspectFor}, Answer: fleet.AnswerNone}))
			}
		}
		unanswered()
		w.heardFor(p.NeverSpokeAfter - time.Minute)
		if did, err := w.db.WatchSilence(w.ctx); err != nil || did != "" {
			w.Fatalf("%q, %v", did, err)
		}
		w.heardFor(2 * time.Minute)
		did, err := w.db.WatchSilence(w.ctx)
		if w.must(err); did != "2 of 2 machines are silent, of which 2 have never answered: the fault is probably ours (listener, network, certificate, clock)" {
			w.Fatalf("it did %q", did)
		}
		w.heardFor(p.SuspectFor + p.RecoveryStepTimeout)
		s := w.lasting("recoverer")
		if got := w.claim(s, fleet.ProcessRecovery, 2); len(got) != 0 {
			w.Fatal("restarted, and nobody has asked them since")
		}
		unanswered()
		w.must(w.recover(s, 2, 1)[0].Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.recover(s, 2, 0) // it has its time to answer
		w.heardFor(p.RecoveryStepTimeout + time.Second)
		w.must(w.recover(s, 2, 1)[0].Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		for range 2 {
			// Nobody knows whether they answer now, and until a start of an agent shows it nothing is due.
			c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessRecovery, Limit: 2})
			if w.must(err); len(c.Works) > 0 || !c.NextDue.IsZero() {
				w.Fatalf("claimed %d, and more at %s", len(c.Works), c.NextDue)
			}
			w.heardFor(p.RecoveryStepTimeout + time.Second)
		}
	}},
	{"a host key from user data outlives a reinstall", func(w *world) {
		id, work := w.lost(func(p *fleet.Policy) { p.RecoveryReboots, p.RecoveryReinstalls = 0, 1 })
		w.must(work.Note(w.ctx, bmdb.InjectHostKey(id, "ssh-ed25519 AAAA", "SHA256:x")))
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		if k, err := w.db.HostKeys(w.ctx, id); err != nil || len(k.Known) != 1 || k.Source != fleet.HostKeyInjected {
			w.Fatalf("known are %+v, %v", k, err)
		}
	}},
	{"quarantine withdraws what the provider has not accepted", func(w *world) {
		id := w.machine("c1")
		w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverRelease}))
		number, err := Operate(w.ctx, w.db, actor, id, fleet.OperationRelease, "sold")
		w.must(err)
		w.must(Quarantine(w.ctx, w.db, actor, id, "look at it first"))
		if rep := w.record(id).OperationReport; rep == nil || rep.Number != number || rep.OK {
			w.Fatalf("report %+v", rep)
		}
		if got := w.claim(w.lasting("operations"), fleet.ProcessOperation, 1); len(got) != 0 {
			w.Fatal("the release goes on")
		}
	}},
	{"a machine that was switched off is not restarted by accident", func(w *world) {
		id := w.machine("c1")
		w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverReboot, fleet.LeverPower}))
		number, err := Operate(w.ctx, w.db, actor, id, fleet.OperationPowerOff, "it smells burnt")
		w.must(err)
		w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(number, ""),
			bmdb.AcceptOperation(number), bmdb.EndOperation(number, true, "off", 0)))
		for _, o := range []fleet.Operation{fleet.OperationReboot, fleet.OperationPowerCycle} {
			_, err := Operate(w.ctx, w.db, actor, id, o, "x")
			w.wantKind(err, fleet.KindConflict)
		}
		_, err = Operate(w.ctx, w.db, actor, id, fleet.OperationPowerOn, "the fan was replaced")
		w.must(err)
	}},
	{"a provider that is not there has no levers", func(w *world) {
		w.wantKind(w.db.SetLevers(w.ctx, "nobody", []fleet.Lever{fleet.LeverReboot}), fleet.KindNotFound)
	}},
	{"what is said of a machine that is gone meanwhile is nothing", func(w *world) {
		a, b := w.machine("c1"), w.machine("c2")
		w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverRelease}))
		number, err := Operate(w.ctx, w.db, actor, a, fleet.OperationRelease, "sold")
		w.must(err)
		id := w.record(a).ProviderID
		w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(number, ""),
			bmdb.AcceptOperation(number), bmdb.EndOperation(number, true, "gone", 0)))
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.SetProvided(a, id, providedAs(fleet.ProviderStatusGone, "c1")),
				bmdb.SetProvided(b, "", providedAs(fleet.ProviderStatusOff, "c2"))))
		})
		if p := w.record(b).Provided; p.Status != fleet.ProviderStatusOff {
			w.Fatalf("the other machine is %+v", p)
		}
	}},
	{"a recovery step that had no effect is taken back", func(w *world) {
		id, work := w.lost(func(*fleet.Policy) {})
		// It is not the one that is due.
		w.wantKind(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReinstall)), fleet.KindConflict)
		w.must(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.wantKind(work.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)), fleet.KindConflict) // not twice
		w.wantKind(work.Note(w.ctx, bmdb.UndoStep(fleet.RungReinstall, bmdb.BeforeStep{})), fleet.KindConflict)
		if r := w.record(id).Repair; r == nil || r.Rung != fleet.RungReboot || r.Steps[fleet.RungReboot] != 1 {
			w.Fatalf("repair %+v", r)
		}
		waited := fleet.BackoffState{
			NotBefore: w.now().Truncate(time.Second), Interval: time.Minute, Cause: "no route", Failures: 3, UnansweredSince: w.now().Truncate(time.Second),
		}
		before := bmdb.BeforeStep{AgentStart: &waited}
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: growing}, bmdb.UndoStep(fleet.RungReboot, before)))
		r := w.record(id)
		if r.Repair != nil || r.Backoffs[fleet.ProcessRecovery].Failures != 1 {
			w.Fatalf("repair %+v, backoffs %v", r.Repair, r.Backoffs)
		}
		if got := r.Backoffs[fleet.ProcessAgentStart]; got.Failures != 3 || !got.UnansweredSince.Equal(waited.UnansweredSince) {
			w.Fatalf("the start of an agent waits: %+v", got)
		}
	}},
	{"recovery is stopped by a person, and goes on by one", func(w *world) {
		w.broken("c1")
		w.pulls(fleet.LeverReboot)
		past := w.now().Add(-time.Second)
		w.wantKind(w.db.HoldRecovery(w.ctx, actor, &past, "x"), fleet.KindInvalid)
		w.must(w.db.HoldRecovery(w.ctx, actor, nil, "a network change"))
		w.judgeAgain()
		s := w.sessionFor("recoverer", time.Hour)
		if got := w.claim(s, fleet.ProcessRecovery, 1); len(got) != 0 {
			w.Fatal("claimed while recovery is stopped")
		}
		if h, err := RecoveryHold(w.ctx, w.db); err != nil || h == nil || h.Actor != actor {
			w.Fatalf("hold %+v, %v", h, err)
		}
		w.must(w.db.ResumeRecovery(w.ctx, actor, "all is connected"))
		w.wantKind(w.db.ResumeRecovery(w.ctx, actor, ""), fleet.KindConflict)
		rows, err := w.db.ProviderHistory(w.ctx, provider, 2, false)
		w.must(err)
		for i, want := range []string{"resumed recovery: all is connected", "paused recovery, until somebody ends it: a network change"} {
			if got := fmt.Sprintf("%s %s", rows[i].Event, rows[i].Detail); got != want || rows[i].Actor != actor {
				w.Fatalf("history says %q by %s, want %q", got, rows[i].Actor, want)
			}
		}
		w.judgeAgain()
		w.recover(s, 1, 1)
	}},
	{"the budget of an hour is the fleet's, and stops recovery", func(w *world) {
		w.silent(provider, 3, 0)
		w.must(w.db.ListenerAlive(w.ctx, 1000*time.Hour, 30*time.Second))
		w.pulls(fleet.LeverReboot)
		p := fleet.DefaultPolicy()
		p.NeverSpokeAfter, p.RecoveryStepTimeout, p.RecoveryAtOnce, p.RecoveryPerHour = time.Millisecond, time.Millisecond, 0, 2
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		w.judgeAgain()
		s := w.sessionFor("recoverer", 10*time.Hour)
		works := w.recover(s, 3, 3)
		w.must(works[0].Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		first := w.now()
		w.shift.Advance(time.Minute)
		w.must(works[1].Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		if did, err := w.db.WatchSilence(w.ctx); err != nil || !strings.Contains(did, "restarted 2 machines within an hour") {
			w.Fatalf("%q, %v", did, err)
		}
		if hold, err := RecoveryHold(w.ctx, w.db); err != nil || hold == nil || hold.Actor != fleet.ActorPolicy {
			w.Fatalf("hold %+v, %v", hold, err)
		}
		w.wantKind(works[2].Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)), fleet.KindConflict)
		w.wantKind(w.db.ResumeRecovery(w.ctx, actor, "I want it all the same"), fleet.KindConflict)
		w.must(w.db.HoldRecovery(w.ctx, actor, nil, "mine"))
		w.must(w.db.ResumeRecovery(w.ctx, actor, "enough"))
		err = works[2].Note(w.ctx, bmdb.TakeStep(fleet.RungReboot))
		w.wantKind(err, fleet.KindThrottled) // which does not make the budget larger
		if e := new(fleet.Error); !errors.As(err, &e) || e.RetryAfter <= 0 || e.RetryAfter > 10*time.Minute {
			w.Fatalf("again: %v", err)
		}
		// A step that had no effect costs nothing.
		w.must(works[1].Note(w.ctx, bmdb.UndoStep(fleet.RungReboot, bmdb.BeforeStep{})))
		w.must(works[2].Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		did, err := w.db.WatchSilence(w.ctx)
		if err != nil || did == "" {
			w.Fatalf("%q, %v", did, err)
		}
		hold, err := RecoveryHold(w.ctx, w.db)
		w.must(err)
		if hold == nil || hold.Reason != did || hold.Until.Before(first.Add(time.Hour-time.Minute)) || hold.Until.After(first.Add(time.Hour)) {
			w.Fatalf("hold %+v, the first restart was at %s", hold, first)
		}
		w.shift.Advance(time.Hour)
		w.must(works[0].Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
	}},
	{"a budget that is spent meanwhile does not stop recovery twice for one silence", func(w *world) {
		p := fleet.DefaultPolicy()
		p.SuspectLeast, p.RecoveryPerHour = 2, 1
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		agents := []bmdb.AgentIdentity{w.broken("c1"), w.broken("c2")}
		w.pulls(fleet.LeverReboot)
		watch := func(want string) {
			w.Helper()
			did, err := w.db.WatchSilence(w.ctx)
			if err != nil || (want == "") != (did == "") || !strings.Contains(did, want) {
				w.Fatalf("it did %q, %v, want %q", did, err, want)
			}
		}
		watch("the fault is probably ours")
		w.shift.Advance(p.SuspectFor + time.Second)
		w.judgeAgain()
		work := w.recover(w.sessionFor("recoverer", 10*time.Hour), 1, 1)[0]
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		watch("restarted 1 machines within an hour")
		w.shift.Advance(2 * time.Hour)
		watch("") // they are silent as before
		for _, a := range agents {
			w.must(w.db.RecordSpoken(w.ctx, a, "boot2"))
		}
		watch("recovery goes on")
		w.shift.Advance(2 * time.Hour)
		w.judgeAgain()
		watch("the fault is probably ours") // of another silence
	}},
	{"many that fall silent together stop recovery once", func(w *world) {
		p := fleet.DefaultPolicy()
		p.SuspectLeast = 2
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		a := w.broken("c1")
		w.pulls(fleet.LeverReboot)
		watch := func(want string) {
			w.Helper()
			did, err := w.db.WatchSilence(w.ctx)
			w.must(err)
			if (want == "") != (did == "") || !strings.Contains(did, want) {
				w.Fatalf("it did %q, want %q", did, want)
			}
		}
		watch("") // one is not many
		b := w.broken("c2")
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		watch("") // half of them speak, and one is not many
		w.shift.Advance(time.Hour)
		w.judgeAgain()
		watch("2 of 2 machines with an agent are silent")
		watch("")
		w.judgeAgain()
		s := w.sessionFor("recoverer", 10*time.Hour)
		w.failStarts(1)
		w.recover(s, 2, 0)
		w.shift.Advance(p.SuspectFor + time.Second)
		watch("") // it stops recovery once
		for _, work := range w.recover(s, 2, 2) {
			w.must(work.Cancel(w.ctx, "not now"))
		}
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		w.must(w.db.RecordSpoken(w.ctx, b, "boot1"))
		watch("recovery goes on")
		watch("")
		held := func(want bool) {
			w.Helper()
			h, err := RecoveryHold(w.ctx, w.db)
			w.must(err)
			if (h != nil) != want {
				w.Fatalf("recovery is stopped: %+v, want %t", h, want)
			}
		}
		held(false)

		// they fall silent again, and a person lets recovery go on: it does
		w.shift.Advance(time.Hour)
		w.judgeAgain()
		watch("2 of 2 machines with an agent are silent")
		held(true)
		w.must(w.db.ResumeRecovery(w.ctx, actor, ""))
		watch("")
		held(false)
		w.failStarts(2)
		w.judgeAgain()
		for _, work := range w.recover(s, 2, 2) {
			w.must(work.Cancel(w.ctx, "not now"))
		}
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		watch("") // one of two is silent: fewer than the limit, and more than half of it
		w.must(w.db.RecordSpoken(w.ctx, b, "boot1"))
		watch("recovery goes on")

		// what a person stopped for an hour, a day ago, is no stop
		hour := w.now().Add(time.Hour)
		w.must(w.db.HoldRecovery(w.ctx, actor, &hour, "a network change"))
		w.shift.Advance(24 * time.Hour)
		held(false)
		w.judgeAgain()
		watch("2 of 2 machines with an agent are silent")
		held(true)
	}},
	{"a machine is adopted when an operator asks for it", func(w *world) {
		w.wantKind(w.db.RequestAdoption(w.ctx, actor, provider, "id-x", false, "it is ours"), fleet.KindNotFound)
		unknown := bmdb.Discrepancy{Kind: fleet.DiscrepancyUnknownMachine, ProviderID: "id-x", Evidence: "it is there"}
		w.provisioning(func(work *bmdb.Work) { w.must(work.Note(w.ctx, bmdb.SetDiscrepancies([]bmdb.Discrepancy{unknown}))) })
		for range 2 {
			w.must(w.db.RequestAdoption(w.ctx, actor, provider, "id-x", false, "it is ours"))
		}
		rows, err := w.db.ProviderHistory(w.ctx, provider, 100, false)
		w.must(err)
		w.wantDetail(rows, fleet.EventAdoptionRequested, "id-x; it is ours")
		adoptions := func() map[fleet.ProviderID]string {
			v, err := w.db.ViewProvider(w.ctx, provider)
			w.must(err)
			return v.Adoptions
		}
		if got := adoptions(); len(got) != 1 || got["id-x"] != actor {
			w.Fatalf("adoptions %v", got)
		}
		id := fleet.NewMachineID()
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.AdoptEntry(id, "id-x", "c9", providedAs(fleet.ProviderStatusActive, "c9")),
				bmdb.SetDiscrepancies(nil)))
		})
		if got := adoptions(); len(got) != 0 || w.record(id).ProviderID != "id-x" {
			w.Fatalf("adoptions %v", got)
		}
		if works := w.claim(w.session("initializer"), fleet.ProcessAgentStart, 1); len(works) != 1 {
			w.Fatal("no agent is to be started on it")
		}
	}},
	{"a machine that is adopted as installed is left alone", func(w *world) {
		unknown := bmdb.Discrepancy{Kind: fleet.DiscrepancyUnknownMachine, ProviderID: "id-x", Evidence: "it is there"}
		w.provisioning(func(work *bmdb.Work) { w.must(work.Note(w.ctx, bmdb.SetDiscrepancies([]bmdb.Discrepancy{unknown}))) })
		// Whoever has thought again before it is taken in is heard, also while a list lags.
		for _, installed := range []bool{false, true, true} {
			w.must(w.db.RequestAdoption(w.ctx, actor, provider, "id-x", installed, "it serves the shop"))
			w.provisioning(func(work *bmdb.Work) { w.must(work.Note(w.ctx, bmdb.SetDiscrepancies(nil))) })
		}
		id := fleet.NewMachineID()
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.AdoptEntry(id, "id-x", "c9", providedAs(fleet.ProviderStatusActive, "c9")), bmdb.SetDiscrepancies(nil)))
		})
		for range 2 {
			r := w.record(id)
			if w.state(id) != fleet.StateInstalled || r.Installed == nil || r.Installed.Attempt != 0 {
				w.Fatalf("state %s, installed %+v", w.state(id), r.Installed)
			}
			if works := w.claim(w.session("initializer"), fleet.ProcessAgentStart, 1); len(works) != 0 {
				w.Fatal("an agent is to be started on it")
			}
			w.shift.Advance(24 * time.Hour)
		}
		rows, err := w.db.ProviderHistory(w.ctx, provider, 100, false)
		w.must(err)
		w.wantDetail(rows, fleet.EventAdoptionRequested, "id-x, as installed; it serves the shop")
		rows, err = w.db.History(w.ctx, id, 100)
		w.must(err)
		w.wantDetail(rows, fleet.EventMarkedInstalled, "it was adopted as such")
	}},
	{"a token that was released is told as such", func(w *world) {
		id := w.machine("c1")
		w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverRelease}))
		number, err := Operate(w.ctx, w.db, actor, id, fleet.OperationRelease, "sold")
		w.must(err)
		w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(number, ""),
			bmdb.AcceptOperation(number), bmdb.EndOperation(number, true, "gone", 0)))
		v, err := w.db.ViewProvider(w.ctx, provider)
		w.must(err)
		if p := v.Penalties["c1"]; len(v.Machines) != 0 || !p.ForEver() {
			w.Fatalf("machines %v, penalty %+v", v.Machines, p)
		}
		w.must(w.claimOne(w.session("p"), fleet.ProcessProvision).Fail(w.ctx, bmdb.Failure{Cause: "no quota", Backoff: growing}))
		for _, want := range []string{"[provision] 0 1", "[] 0 1"} {
			retried, n, kept, err := w.db.RetryProvider(w.ctx, actor, provider, "the quota was raised")
			if got := fmt.Sprint(retried, n, kept); err != nil || got != want {
				w.Fatalf("ended %s, %v, want %s", got, err, want)
			}
		}
	}},
}
