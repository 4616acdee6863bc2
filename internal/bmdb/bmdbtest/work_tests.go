package bmdbtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var growing = fleet.Backoff{Initial: time.Minute, Exponent: 1.5, Maximum: 5 * time.Minute}

var workTests = []test{
	{"a check finds work that ended twice, and an end without a start", func(w *world) { // I4
		id := w.machine("c1")
		w.must(w.claimOne(w.lasting("a"), fleet.ProcessAgentStart).Cancel(w.ctx, "not now"))
		wants := func(details ...string) {
			w.Helper()
			findings, err := w.db.Check(w.ctx)
			w.must(err)
			var got []string
			for _, f := range findings {
				if f.Invariant == "I4" && f.Subject == string(id) {
					got = append(got, f.Detail)
				}
			}
			if len(got) != len(findings) || !slices.Equal(got, details) {
				w.Fatalf("findings %+v, want %q", findings, details)
			}
		}
		wants()
		w.exec("UPDATE history SET started_at = 0 WHERE subject = $1 AND event = 'cancelled'", string(id))
		wants("agent-start epoch 1 has an end and no start")
		w.exec(`INSERT INTO history (subject, at, actor, process, epoch, started_at, why, event, detail, retry_at, session)
			SELECT subject, at, actor, process, epoch, at, why, event, detail, retry_at, session FROM history
			WHERE subject = $1 AND event = 'cancelled'`, string(id))
		wants("agent-start epoch 1 has 2 ends", "agent-start epoch 1 has an end and no start")
		w.exec("DELETE FROM history WHERE subject = $1 AND event = 'cancelled' AND started_at = 0", string(id))
		wants()
	}},
	{"a write in the middle that fails leaves nothing behind in its holder", func(w *world) {
		id := w.machine("c1")
		updater, s := w.session("updater"), w.session("a")
		update := w.claimOne(updater, fleet.ProcessUpdate)
		said := providedAs(fleet.ProviderStatusActive, "c1")
		failed := false
		for n := 1; ; n++ {
			work := w.claimOne(s, fleet.ProcessAgentStart)
			w.faults.FailStatement(n)
			err := work.Note(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusFailed, "c1")))
			if w.faults.Clear(); err == nil {
				break
			}
			failed = true
			// now there has been one write since the claim, another one
			said.Hostname = fmt.Sprintf("host-%d", n)
			w.must(update.Note(w.ctx, bmdb.SetProvided(id, "", said)))
			w.must(work.Cancel(w.ctx, "test"))
			if got := w.state(id); got != fleet.StateProvided {
				w.Fatalf("after the failure of statement %d the machine is %s", n, got)
			}
		}
		if !failed {
			w.Fatal("nothing failed")
		}
	}},
	{"a list says who is being worked on, and the state stays what the facts make it", func(w *world) {
		ids := w.machines(nil, "c1", "c2")
		before, err := w.db.ListMachines(w.ctx, bmdb.MachineFilter{})
		w.must(err)
		work := w.claimOne(w.session("a"), fleet.ProcessAgentStart)
		for _, f := range []bmdb.MachineFilter{{}, {States: []fleet.State{fleet.StateProvided}}} {
			rows, err := w.db.ListMachines(w.ctx, f)
			w.must(err)
			for i, r := range rows {
				want := before[i]
				if r.ID == work.Subject.Machine {
					want.Reason = "agent-start is under way"
				}
				if len(rows) != len(ids) || !reflect.DeepEqual(r, want) {
					w.Fatalf("%d rows; row %d is\n%+v, want\n%+v", len(rows), i, r, want)
				}
			}
		}
		w.must(work.Cancel(w.ctx, "enough"))
		after, err := w.db.ListMachines(w.ctx, bmdb.MachineFilter{})
		w.must(err)
		if !reflect.DeepEqual(after, before) {
			w.Fatalf("%+v, want\n%+v", after, before)
		}
	}},
	{"the reason of a state is as new as the last end", func(w *world) {
		w.machine("c1")
		reason := func() string {
			rows, err := w.db.ListMachines(w.ctx, bmdb.MachineFilter{})
			w.must(err)
			return rows[0].Reason
		}
		first := reason()
		for _, cause := range []string{"it broke", "it broke otherwise"} {
			work := w.claimOne(w.session("a"), fleet.ProcessAgentStart)
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: cause, Backoff: growing}))
			if got := reason(); !strings.Contains(got, cause) {
				w.Fatalf("after %q: %q", cause, got)
			}
			w.shift.Advance(2 * growing.Maximum)
		}
		w.must(w.claimOne(w.session("a"), fleet.ProcessAgentStart).Finish(w.ctx))
		if got := reason(); got != first {
			w.Fatalf("after a success: %q, and at first %q", got, first)
		}
	}},
	{"failures back off, grow to the maximum, and a success resets", func(w *world) { // I5
		id := w.machine("c1")
		s := w.session("a")
		last := time.Duration(0)
		for i := range 8 {
			work := w.claimOne(s, fleet.ProcessAgentStart)
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "it broke", Backoff: growing}))
			b := w.record(id).Backoffs[fleet.ProcessAgentStart]
			if b.Interval < last || b.Interval < growing.Initial || b.Interval > growing.Maximum || b.Interval%time.Second != 0 {
				w.Fatalf("interval %s after %s", b.Interval, last)
			}
			if b.Failures != i+1 || b.Cause != "it broke" {
				w.Fatalf("backoff %+v", b)
			}
			wait := b.NotBefore.Sub(w.now())
			if wait > b.Interval+b.Interval/4 || wait < b.Interval-time.Second {
				w.Fatalf("waits %s for an interval of %s", wait, b.Interval)
			}
			last = b.Interval
			if got := w.claim(s, fleet.ProcessAgentStart, 1); len(got) != 0 {
				w.Fatal("claimed in backoff")
			}
			w.shift.Advance(wait + time.Second)
			w.must(s.Extend(w.ctx))
		}
		if last != growing.Maximum {
			w.Fatalf("ended at %s, want the maximum", last)
		}
		work := w.claimOne(s, fleet.ProcessAgentStart)
		w.must(work.Finish(w.ctx))
		if b := w.record(id).Backoffs; len(b) != 0 {
			w.Fatalf("backoffs after a success: %v", b)
		}
	}},
	{"RetryAfter is waited at least", func(w *world) {
		id := w.machine("c1")
		work := w.claimOne(w.session("a"), fleet.ProcessAgentStart)
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: fleet.Backoff{Initial: time.Second}, RetryAfter: time.Hour}))
		if b := w.record(id).Backoffs[fleet.ProcessAgentStart]; b.NotBefore.Sub(w.now()) < 59*time.Minute || b.Interval != time.Second {
			w.Fatalf("backoff %+v", b)
		}
	}},
	{"cancelled, it is due again", func(w *world) {
		w.machine("c1")
		s := w.session("a")
		first := w.claimOne(s, fleet.ProcessAgentStart)
		w.must(first.Cancel(w.ctx, "draining"))
		second := w.claimOne(s, fleet.ProcessAgentStart)
		if second.Epoch <= first.Epoch { // I3
			w.Fatalf("epoch %d after %d", second.Epoch, first.Epoch)
		}
	}},
	{"it ends once", func(w *world) {
		id := w.machine("c1")
		s := w.session("a")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		w.must(work.Finish(w.ctx))
		w.must(work.Finish(w.ctx)) // the same again is no loss
		w.wantKind(work.Fail(w.ctx, bmdb.Failure{Cause: "x", Backoff: growing}), fleet.KindLeaseLost)
		w.wantKind(work.Note(w.ctx), fleet.KindLeaseLost)
		if n := len(slices.DeleteFunc(w.events(id), func(e string) bool { return e != "finished" })); n != 1 {
			w.Fatalf("%d ends in history", n)
		}
	}},
	{"the same end again is no loss even when somebody else holds the lane", func(w *world) {
		w.machine("c1")
		s := w.session("a")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		w.faults.LoseReply()
		if err := work.Cancel(w.ctx, "x"); !errors.Is(err, ErrInjected) {
			w.Fatalf("the reply was not lost: %v", err)
		}
		w.claimOne(w.session("b"), fleet.ProcessAgentStart)
		w.must(work.Cancel(w.ctx, "x"))
	}},
	{"changes are all or none", func(w *world) {
		id := w.machine("c1")
		work := w.claimOne(w.session("a"), fleet.ProcessAgentStart)
		var minted fleet.TakeoverGeneration
		err := work.Finish(w.ctx, bmdb.MintTakeover(0, &minted), bmdb.RecordHistory("one", ""),
			bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: 99, PublicKey: []byte("k")}))
		w.wantKind(err, fleet.KindConflict)
		if r := w.record(id); r.TakeoverGeneration != 0 || r.AgentStarted != nil || len(r.Holds) != 1 {
			w.Fatalf("half of it was written: %+v", r)
		}
		if slices.Contains(w.events(id), "one") {
			w.Fatal("history of what was undone")
		}
		w.must(work.Finish(w.ctx, bmdb.MintTakeover(0, &minted)))
		if minted != 1 {
			w.Fatalf("minted %d", minted)
		}
	}},
	{"after a note whose reply was lost the work can end, and whoever is next sees what was noted", func(w *world) {
		id := w.machine("c1")
		s := w.session("a")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		var minted fleet.TakeoverGeneration
		w.faults.LoseReply()
		if err := work.Note(w.ctx, bmdb.MintTakeover(0, &minted)); !errors.Is(err, ErrInjected) {
			w.Fatalf("the reply was not lost: %v", err)
		}
		w.must(work.Cancel(w.ctx, "x"))
		work = w.claimOne(s, fleet.ProcessAgentStart)
		w.must(work.Note(w.ctx, bmdb.MintTakeover(0, &minted)))
		if minted != 2 || w.record(id).TakeoverGeneration != 2 {
			w.Fatalf("minted %d, the machine has %d", minted, w.record(id).TakeoverGeneration)
		}
	}},
	{"the guard ends when people void the lease", func(w *world) { // rule 8
		id := w.machine("c1")
		s := w.session("a")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		guarded, cancel := work.Guard(w.ctx)
		defer cancel()
		w.must(Quarantine(w.ctx, w.db, actor, id, "smells odd"))
		if guarded.Err() != nil {
			w.Fatal("cancelled before anybody could know")
		}
		w.must(s.Extend(w.ctx))
		<-guarded.Done()
		if !errors.Is(context.Cause(guarded), fleet.ErrLeaseLost) {
			w.Fatalf("cancelled with %v", context.Cause(guarded))
		}
		if !s.Trusted() {
			w.Fatal("the session itself was lost")
		}
		w.wantKind(work.Finish(w.ctx), fleet.KindLeaseLost)
		w.wantEvents(id, "revoked")
	}},
	// rule 8: what was voided is the older lease, and the session goes on with the newer one
	{"a machine that is taken again before the session learns that its lease is void", func(w *world) {
		id := w.machine("c1")
		s := w.session("a")
		old := w.claimOne(s, fleet.ProcessAgentStart)
		w.must(Quarantine(w.ctx, w.db, actor, id, "smells odd"))
		w.must(Unquarantine(w.ctx, w.db, actor, id, "it was the coffee"))
		work := w.claimOne(s, fleet.ProcessAgentStart)
		guarded, cancel := work.Guard(w.ctx)
		defer cancel()
		w.must(s.Extend(w.ctx))
		if guarded.Err() != nil {
			w.Fatal("the newer lease was given up with the older one")
		}
		w.wantKind(old.Finish(w.ctx), fleet.KindLeaseLost)
		w.must(Quarantine(w.ctx, w.db, actor, id, "smells odd again"))
		w.must(s.Extend(w.ctx))
		<-guarded.Done()
		w.must(Unquarantine(w.ctx, w.db, actor, id, "nothing"))
		w.claimOne(s, fleet.ProcessAgentStart)
		w.must(s.Close(w.ctx, "done"))
		w.claimOne(w.session("b"), fleet.ProcessAgentStart) // it was freed, and is due at once
	}},
	{"a commit after people won changes nothing", func(w *world) {
		id := w.machine("c1")
		work := w.claimOne(w.session("a"), fleet.ProcessAgentStart)
		_, err := w.db.RequestInstall(w.ctx, actor, id, fleet.InstallRequest{Image: image}, false)
		w.must(err)
		w.wantKind(work.Note(w.ctx, bmdb.RecordHistory("late", "")), fleet.KindLeaseLost)
		if slices.Contains(w.events(id), "late") {
			w.Fatal("a late commit wrote")
		}
	}},
	{"an old epoch of the same session is refused", func(w *world) { // rule 3
		id := w.machine("c1")
		s := w.session("a")
		old := w.claimOne(s, fleet.ProcessAgentStart)
		w.must(Quarantine(w.ctx, w.db, actor, id, "for a moment"))
		w.must(Unquarantine(w.ctx, w.db, actor, id, "over"))
		w.claimOne(s, fleet.ProcessAgentStart)
		w.wantKind(old.Note(w.ctx, bmdb.RecordHistory("late", "")), fleet.KindLeaseLost)
		w.wantKind(old.Cancel(w.ctx, "late"), fleet.KindLeaseLost)
		if got := w.record(id).Holds[fleet.LaneHost].Epoch; got <= old.Epoch {
			w.Fatalf("held by epoch %d", got)
		}
	}},
	// rule 3. The locks keep everybody away, so only who passes by them shows that the write of a lane
	// names what it replaces.
	{"a lane that changed since it was read is not written over", func(w *world) {
		id := w.machine("c1")
		s := w.sessionFor("a", time.Hour)
		works := map[string]*bmdb.Work{
			"machine": w.claimOne(s, fleet.ProcessAgentStart), "provider_lane": w.claimOne(s, fleet.ProcessProvision),
		}
		for table, work := range works {
			for _, change := range []string{"epoch = epoch + 1", "session = 'x'", "revision = revision + 1"} {
				w.faults.Meddle("UPDATE "+table+" SET epoch", "UPDATE "+table+" SET "+change+" WHERE session = $1", string(s.ID()))
				err := work.Finish(w.ctx)
				if w.faults.Clear() != 1 {
					w.Fatalf("nobody wrote to %s: the test tests nothing", table)
				}
				if fleet.KindOf(err) != fleet.KindTemporary {
					w.Errorf("%s of %s came between its read and its write: %v", change, table, err)
				}
			}
			w.must(work.Finish(w.ctx)) // all of that was undone
		}
		if n := len(slices.DeleteFunc(w.events(id), func(e string) bool { return e != "finished" })); n != 1 {
			w.Errorf("%d ends in history", n)
		}
	}},
	{"history says when and why each work started", func(w *world) { // I4
		a := w.ready("c1", false)
		w.must(w.db.ListenerAlive(w.ctx, 1000*time.Hour, 30*time.Second))
		w.shift.Advance(time.Hour)
		work := w.claimOne(w.session("recoverer"), fleet.ProcessAgentStart)
		began := w.record(a.Machine).Holds[fleet.LaneHost].Since
		w.shift.Advance(time.Second)
		w.must(work.Finish(w.ctx))
		rows, err := w.db.History(w.ctx, a.Machine, 100)
		w.must(err)
		last := rows[0]
		i := slices.IndexFunc(rows, func(r bmdb.HistoryRow) bool {
			return r.Process == fleet.ProcessAgentStart && r.Epoch != 0 && r.Epoch != work.Epoch
		})
		if i < 0 || rows[i].Why == "" || rows[i].Why == work.Decision.Reason {
			w.Fatalf("the work before is not there, or started for the same reason: %+v", rows)
		}
		if last.Process != fleet.ProcessAgentStart || last.Why != work.Decision.Reason || !last.StartedAt.Equal(began) || !last.At.After(began) {
			w.Fatalf("history has %+v, want a start at %s: %s", last, began, work.Decision.Reason)
		}
	}},
	{"facts of one provider list reach their machines", func(w *world) {
		ids := w.machines(nil, "c1", "c2")
		s := w.session("updater")
		work := w.claimOne(s, fleet.ProcessUpdate)
		before := w.record(ids[1]).Provided.At
		w.shift.Advance(time.Second)
		w.must(work.Finish(w.ctx, bmdb.SetProvided(ids[0], "id-c1", providedAs(fleet.ProviderStatusFailed, "c1")),
			bmdb.SetProvided(ids[1], "id-c2", providedAs(fleet.ProviderStatusActive, "c2"))))
		if w.state(ids[0]) != fleet.StateFailed || w.state(ids[1]) != fleet.StateProvided {
			w.Fatalf("states %s, %s", w.state(ids[0]), w.state(ids[1]))
		}
		if !w.record(ids[1]).Provided.At.Equal(before) {
			w.Fatal("an unchanged fact was written")
		}
	}},
	// Else a detail that changes has a failed machine replaced whose release a person has withdrawn.
	{"what a provider says of a machine counts from its status, whatever else changes", func(w *world) {
		id := w.machine("c1")
		since := func(status fleet.ProviderStatus, detail string) time.Time {
			w.shift.Advance(time.Hour)
			p := providedAs(status, "c1")
			p.Detail = detail
			w.must(w.claimOne(w.session("updater"), fleet.ProcessUpdate).Finish(w.ctx, bmdb.SetProvided(id, "id-c1", p)))
			if got := w.record(id).Provided; got.Detail != detail {
				w.Fatalf("provided is %+v", got)
			}
			return w.record(id).Provided.At
		}
		failed := since(fleet.ProviderStatusFailed, "no power")
		if again := since(fleet.ProviderStatusFailed, "no network"); !again.Equal(failed) {
			w.Fatalf("failed since %s, and since %s when asked again", failed, again)
		}
		if active := since(fleet.ProviderStatusActive, ""); !active.After(failed.Add(time.Hour)) {
			w.Fatalf("active since %s", active)
		}
	}},
	{"a provider ID never changes and belongs to one machine", func(w *world) {
		ids := w.machines(nil, "c1", "c2")
		work := w.claimOne(w.session("updater"), fleet.ProcessUpdate)
		p := providedAs(fleet.ProviderStatusActive, "c1")
		w.wantKind(work.Note(w.ctx, bmdb.SetProvided(ids[0], "id-c9", p)), fleet.KindConflict)
		w.wantKind(work.Note(w.ctx, bmdb.SetProvided(ids[0], "id-c2", p)), fleet.KindConflict)
		// of a machine that was forgotten meanwhile nothing is recorded
		nobody := fleet.NewMachineID()
		w.must(work.Note(w.ctx, bmdb.SetProvided(nobody, "id-c3", p)))
		_, err := w.db.Machine(w.ctx, nobody)
		w.wantKind(err, fleet.KindNotFound)
	}},
	{"host keys are remembered", func(w *world) {
		id := w.machine("c1")
		work := w.claimOne(w.session("a"), fleet.ProcessAgentStart)
		w.must(work.Note(w.ctx, bmdb.PinHostKeys(id, []string{"ssh-ed25519 AAAA", "ssh-rsa BBBB"})))
		keys, err := w.db.HostKeys(w.ctx, id)
		w.must(err)
		if !slices.Equal(keys.Known, []string{"ssh-ed25519 AAAA", "ssh-rsa BBBB"}) || keys.Source != fleet.HostKeyFirstUse || keys.Refused != "" {
			w.Fatalf("keys %+v", keys)
		}
	}},
	{"a host key that was refused is accepted by a person, that very key", func(w *world) {
		id := w.machine("c1")
		w.wantKind(w.db.AcceptHostKey(w.ctx, actor, id, "", "SHA256:0", "seen on the console"), fleet.KindConflict)
		work := w.claimOne(w.session("a"), fleet.ProcessAgentStart)
		w.must(work.Note(w.ctx, bmdb.PinHostKeys(id, []string{"ssh-ed25519 AAAA"})))
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "another key", Backoff: growing}, bmdb.RefuseHostKey("ssh-ed25519 CCCC", "SHA256:C")))
		w.wantKind(w.db.AcceptHostKey(w.ctx, actor, id, "ssh-ed25519 DDDD", "SHA256:D", "seen on the console"), fleet.KindConflict)
		keys, err := w.db.HostKeys(w.ctx, id)
		w.must(err)
		if !slices.Equal(keys.Known, []string{"ssh-ed25519 AAAA"}) || keys.Refused != "ssh-ed25519 CCCC" || keys.RefusedAt.IsZero() {
			w.Fatalf("keys %+v", keys)
		}
		w.must(w.db.AcceptHostKey(w.ctx, actor, id, "ssh-ed25519 CCCC", "SHA256:C", "seen on the console"))
		if keys, err = w.db.HostKeys(w.ctx, id); err != nil || !slices.Equal(keys.Known, []string{"ssh-ed25519 CCCC"}) ||
			keys.Source != fleet.HostKeyAccepted || keys.Refused != "" {
			w.Fatalf("keys %+v, %v", keys, err)
		}
		w.claimOne(w.session("b"), fleet.ProcessAgentStart) // at once
		w.wantEvents(id, "host keys pinned", "host key refused", "failed", "host key accepted", "started")
		rows, err := w.db.History(w.ctx, id, 100)
		w.must(err)
		w.wantDetail(rows, fleet.EventHostKeyAccepted, "SHA256:C; seen on the console")
	}},
	{"machines whose host key is refused are counted, and those whose host refuses us", func(w *world) {
		want := func(n int, first fleet.MachineID, refusing int) {
			w.Helper()
			s, err := w.db.Summary(w.ctx)
			w.must(err)
			if s.HostKeyRefused.N != n || s.HostKeyRefused.First != first || s.LoginRefused.N != refusing {
				w.Fatalf("%d machines, %q first, %d refuse us, want %d, %q, %d", s.HostKeyRefused.N, s.HostKeyRefused.First, s.LoginRefused.N, n, first, refusing)
			}
		}
		ids := w.machines(nil, "c1", "c2", "c3", "c4")
		want(0, "", 0)
		works := w.claim(w.session("a"), fleet.ProcessAgentStart, 4)
		for _, work := range works {
			failure := bmdb.Failure{Cause: "another host key", Backoff: growing, Answer: fleet.AnswerOtherKey}
			var shown []bmdb.Change
			switch work.Record.ID {
			case ids[2]: // which answers nobody, and has shown that key before
				failure.Cause, failure.Answer = "connection refused", fleet.AnswerNone
				shown = append(shown, bmdb.RefuseHostKey("ssh-ed25519 CCCC", "SHA256:C"))
			case ids[3]: // which has shown that key before, too
				failure.Cause, failure.Answer = "it refuses our key", fleet.AnswerRefused
				shown = append(shown, bmdb.RefuseHostKey("ssh-ed25519 CCCC", "SHA256:C"))
			default:
				shown = append(shown, bmdb.RefuseHostKey("ssh-ed25519 CCCC", "SHA256:C"))
			}
			w.must(work.Fail(w.ctx, failure, shown...))
		}
		want(2, min(ids[0], ids[1]), 1)
		w.must(Quarantine(w.ctx, w.db, actor, min(ids[0], ids[1]), "an intruder?")) // its state says more
		want(1, max(ids[0], ids[1]), 1)
		w.must(w.db.AcceptHostKey(w.ctx, actor, max(ids[0], ids[1]), "ssh-ed25519 CCCC", "SHA256:C", "seen on the console"))
		want(0, "", 1)
		_, err := w.db.Retry(w.ctx, actor, ids[3], fleet.ProcessAgentStart)
		w.must(err)
		want(0, "", 0)
	}},
	{"the host keys that went with requests to create a machine are remembered", func(w *world) {
		// What a machine said itself is better than what was meant for it.
		a := w.ready("c3", true)
		o := w.handOut(a, 0, 0)
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9", "ssh-ed25519 EEEE")))
		intents := newIntents("c1", "c2")
		made, refused := intents[0].Machine, intents[1].Machine
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, intents, &opened)))
			// What makes keys was changed between two calls, and changed back.
			for _, key := range []string{"ssh-ed25519 AAAA", "ssh-ed25519 BBBB", "ssh-ed25519 AAAA"} {
				w.must(work.Note(w.ctx, bmdb.InjectHostKey(made, key, "SHA256:A"), bmdb.IntentCalled(made)))
			}
			w.must(work.Note(w.ctx, bmdb.InjectHostKey(refused, "ssh-ed25519 CCCC", "SHA256:C"), bmdb.IntentCalled(refused)))
			w.must(work.Note(w.ctx, bmdb.IntentAnswered(refused, nil), bmdb.CloseIntentRejected(refused, "taken")))
			w.must(work.Note(w.ctx, bmdb.InjectHostKey(a.Machine, "ssh-ed25519 AAAA", "SHA256:A")))
		})
		for machine, want := range map[fleet.MachineID]fleet.HostKeys{
			made:      {Known: []string{"ssh-ed25519 AAAA", "ssh-ed25519 BBBB"}, Source: fleet.HostKeyInjected},
			refused:   {},
			a.Machine: {Known: []string{"ssh-ed25519 EEEE"}, Source: fleet.HostKeyInstalled},
		} {
			keys, err := w.db.HostKeys(w.ctx, machine)
			if err != nil || !slices.Equal(keys.Known, want.Known) || keys.Source != want.Source {
				w.Errorf("keys %+v, want %+v; %v", keys, want, err)
			}
		}
	}},
	{"an installed system says by which host keys it is known", func(w *world) {
		a := w.ready("c1", true)
		o := w.handOut(a, 0, 0)
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9", "ssh-ed25519 EEEE")))
		if keys, err := w.db.HostKeys(w.ctx, a.Machine); err != nil || !slices.Equal(keys.Known, []string{"ssh-ed25519 EEEE"}) ||
			keys.Source != fleet.HostKeyInstalled {
			w.Fatalf("keys %+v, %v", keys, err)
		}
	}},
}
