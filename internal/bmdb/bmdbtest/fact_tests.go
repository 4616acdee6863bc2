package bmdbtest

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// attemptOf is the newest attempt of a machine, and what is known of its end.
func (w *world) attemptOf(id fleet.MachineID) (attempt, reported int) {
	w.Helper()
	r := w.record(id)
	if r.InstallAttempt != nil {
		attempt = r.InstallAttempt.Attempt
	}
	if r.InstallReport != nil {
		reported = r.InstallReport.Attempt
	}
	return attempt, reported
}

var factTests = []test{
	{"a failure that is reported again counts once", func(w *world) { // I5
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		failed := fleet.InstallReport{Generation: 1, Attempt: 1, Error: "digest mismatch"}
		w.must(w.db.RecordInstallReport(w.ctx, a, failed))
		was := w.record(a.Machine).Backoffs[fleet.ProcessInstall]
		if was.Failures != 1 || was.Interval != fleet.DefaultPolicy().InstallRetry.Initial {
			w.Fatalf("backoff %+v", was)
		}
		for _, again := range []fleet.InstallReport{failed, {Generation: 1, Attempt: 1, Error: "in other words"}} {
			w.shift.Advance(time.Second)
			w.must(w.db.RecordInstallReport(w.ctx, a, again))
		}
		if is := w.record(a.Machine).Backoffs[fleet.ProcessInstall]; is != was {
			w.Fatalf("backoff %+v, want it to stay %+v", is, was)
		}
		if n := len(slices.DeleteFunc(w.events(a.Machine), func(e string) bool { return e != "install failed" })); n != 1 {
			w.Fatalf("%d failures in history", n)
		}
	}},
	{"another address ends the wait of an agent start, and keeps what is known of the host", func(w *world) {
		id := w.machine("c1")
		update := w.claimOne(w.lasting("updater"), fleet.ProcessUpdate)
		at := func(address netip.Addr) bmdb.Change {
			is := providedAs(fleet.ProviderStatusActive, "c1")
			is.Address = address
			return bmdb.SetProvided(id, "", is)
		}
		here := w.record(id).Provided.Address
		w.must(w.claimOne(w.session("initializer"), fleet.ProcessAgentStart).Fail(w.ctx,
			bmdb.Failure{Cause: "its key is another", Backoff: hours, Answer: fleet.AnswerOtherKey}))
		failed := w.record(id).Backoffs[fleet.ProcessAgentStart]
		for _, same := range []netip.Addr{here, {}} {
			w.must(update.Note(w.ctx, at(same)))
			if is := w.record(id).Backoffs[fleet.ProcessAgentStart]; is != failed {
				w.Fatalf("at %s the backoff is %+v, want it to stay %+v", same, is, failed)
			}
		}
		w.must(update.Note(w.ctx, at(here)))
		over := w.record(id).Backoffs[fleet.ProcessAgentStart]
		failed.NotBefore, failed.Interval = over.NotBefore, 0
		if over != failed || over.NotBefore.After(w.now()) {
			w.Fatalf("the backoff is %+v, want %+v", over, failed)
		}
		w.shift.Advance(time.Minute)
		w.must(update.Note(w.ctx, at(here.Next())))
		if is := w.record(id).Backoffs[fleet.ProcessAgentStart]; is != over {
			w.Fatalf("the wait had been over, and the backoff is %+v", is)
		}
		work := w.claimOne(w.lasting("initializer"), fleet.ProcessAgentStart)
		longer := fleet.Backoff{Initial: time.Minute, Exponent: 1.5, Maximum: time.Hour}
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "nobody answers", Backoff: hours}))
		w.shift.Advance(2 * time.Hour)
		work = w.claimOne(w.lasting("initializer"), fleet.ProcessAgentStart)
		w.must(update.Note(w.ctx, at(here)))
		w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "nobody answers yet", Backoff: longer}))
		if is := w.record(id).Backoffs[fleet.ProcessAgentStart]; is.Interval != longer.Initial {
			w.Fatalf("the address came while the start was under way, and the next one is %s later", is.Interval)
		}
	}},
	// rule 7: of two agents the one of the newer takeover generation is in charge.
	{"what an older takeover says counts no more", func(w *world) {
		a := w.ready("c1", false)
		w.listening()
		w.shift.Advance(time.Hour)
		work := w.claimOne(w.lasting("recoverer"), fleet.ProcessAgentStart)
		var second, third fleet.TakeoverGeneration
		w.must(work.Note(w.ctx, bmdb.MintTakeover(0, &second)))
		w.must(work.Note(w.ctx, bmdb.MintTakeover(0, &third)))
		start := func(g fleet.TakeoverGeneration) bmdb.Change {
			return bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: g, PublicKey: a.PublicKey, AgentVersion: "2"})
		}
		for _, older := range []fleet.TakeoverGeneration{a.TakeoverGeneration, second, third + 1} {
			w.wantKind(work.Note(w.ctx, start(older)), fleet.KindConflict)
		}
		w.must(work.Finish(w.ctx, start(third)))
		newest := a // with the same key: the generation decides
		newest.TakeoverGeneration = third
		older := newest
		older.TakeoverGeneration = second
		for _, old := range []bmdb.AgentIdentity{a, older} {
			w.wantKind(w.db.RecordSpoken(w.ctx, old, "boot1"), fleet.KindForbidden)
			w.wantKind(w.db.RecordHardware(w.ctx, old, []byte("x"), nil), fleet.KindForbidden)
		}
		silent := w.record(a.Machine).AgentSeen
		w.hear(newest) // before its first words
		if is := w.record(a.Machine).AgentSeen; *is != *silent {
			w.Fatalf("seen %+v, want %+v", is, silent)
		}
		w.must(w.db.RecordSpoken(w.ctx, newest, "boot1"))
		was := w.record(a.Machine).AgentSeen
		w.shift.Advance(time.Minute)
		for _, old := range []bmdb.AgentIdentity{a, older} {
			w.hear(old)
		}
		if is := w.record(a.Machine).AgentSeen; *is != *was {
			w.Fatalf("an older generation was heard: %+v, want %+v", is, was)
		}
		w.hear(newest)
		if is := w.record(a.Machine).AgentSeen; !is.LastAt.After(was.LastAt) {
			w.Fatalf("the newest was not heard: %+v", is)
		}
	}},
	// I9: what ExpireInstalls has listed is judged under the machine's lock.
	{"an attempt that was handed out meanwhile does not expire for the one before", func(w *world) {
		a := w.ready("c1", true)
		w.handOut(a, 0, 0)
		w.shift.Advance(fleet.DefaultPolicy().ReportWithin() + time.Second)
		w.listening()
		w.after = map[string]func(){"overdue installs": func() {
			w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
			w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, Error: "digest mismatch"}))
			if _, err := w.db.Retry(w.ctx, actor, a.Machine, ""); err != nil {
				w.Fatal(err)
			}
			if o := w.handOut(a, 1, 1); o == nil || o.Attempt != 2 {
				w.Fatalf("order %+v", o)
			}
		}}
		if n, err := w.db.ExpireInstalls(w.ctx, 10); n != 0 || err != nil || len(w.after) != 0 {
			w.Fatalf("expired %d, %v", n, err)
		}
		if attempt, reported := w.attemptOf(a.Machine); attempt != 2 || reported != 1 {
			w.Fatalf("attempt %d, reported is %d", attempt, reported)
		}
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 2, OK: true}))
		if b := w.record(a.Machine).Backoffs; len(b) != 0 {
			w.Fatalf("backoffs %v", b)
		}
	}},
	// rules 4 and 7: what is done to the host excludes an install, until the session of who does it
	// has ended. A deadline that has passed is no end.
	{"no install while another session holds the host", func(w *world) {
		a := w.ready("c1", true)
		w.listening()
		w.shift.Advance(time.Hour)
		holder := w.session("recoverer")
		work := w.claimOne(holder, fleet.ProcessAgentStart)
		refused := func(when string) {
			w.Helper()
			if o := w.handOut(a, 0, 0); o != nil {
				w.Fatalf("handed out %s: %+v", when, o)
			}
		}
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1")) // it has come back, and would install
		refused("while the host is held")
		w.shift.Advance(interval + margin)
		w.hear(a)
		refused("past the holder's deadline")
		w.must(holder.Extend(w.ctx))
		refused("to one whose holder came back")
		w.must(work.Cancel(w.ctx, "it speaks"))
		if o := w.handOut(a, 0, 0); o == nil || o.Attempt != 1 {
			w.Fatalf("order %+v", o)
		}
	}},
	{"no install before a dead holder's session has ended", func(w *world) { // rule 4
		a := w.ready("c1", true)
		w.listening()
		w.shift.Advance(time.Hour)
		w.claimOne(w.session("recoverer"), fleet.ProcessAgentStart)
		w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		w.shift.Advance(interval + margin)
		if o := w.handOut(a, 0, 0); o != nil {
			w.Fatalf("order %+v", o)
		}
		if n, err := w.db.CollectSessions(w.ctx); n != 1 || err != nil {
			w.Fatalf("collected %d, %v", n, err)
		}
		if o := w.handOut(a, 0, 0); o == nil {
			w.Fatal("no order after the holder's end")
		}
	}},
	{"a token is its provider's", func(w *world) { // I7
		wanted := newIntents("c1")
		token := wanted[0].Token
		w.must(w.db.RegisterProvider(w.ctx, elsewhere, "test", 0))
		s := w.lasting("other")
		c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Providers: []fleet.ProviderName{elsewhere}, Limit: 1})
		w.must(err)
		other := c.Works[0]
		foreign := func() {
			w.Helper()
			adopt := bmdb.AdoptToken(token, "d9", "c9", providedAs(fleet.ProviderStatusActive, "c9"), bmdb.Configured{})
			w.wantKind(other.Note(w.ctx, adopt), fleet.KindNotFound)
			closed, err := w.db.ClosedTokens(w.ctx, elsewhere, []fleet.Token{token})
			w.must(err)
			if len(closed) != 0 {
				w.Fatalf("closed tokens of another provider: %v", closed)
			}
		}
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened), bmdb.IntentCalled(wanted[0].Machine)))
			foreign()
			if r := w.record(wanted[0].Machine); r.Intent == nil || r.ProviderID != "" {
				w.Fatalf("record %+v", r)
			}
			w.must(work.Note(w.ctx, bmdb.CloseIntentOtherOwner(wanted[0].Machine, "two lists agree")))
			foreign()
			_, err := w.db.Machine(w.ctx, wanted[0].Machine)
			w.wantKind(err, fleet.KindNotFound)
		})
	}},
	{"a penalty lasts as long as it says", func(w *world) { // I10
		w.provisioning(func(work *bmdb.Work) {
			before := w.now()
			w.must(work.Note(w.ctx, bmdb.SetPenalty("c1", time.Hour, "failed")))
			until := func() time.Time {
				v, err := w.db.ViewProvider(w.ctx, provider)
				w.must(err)
				return v.Penalties["c1"].Until
			}
			end := until()
			if end.Before(before.Add(time.Hour)) || end.After(w.now().Add(time.Hour)) {
				w.Fatalf("a penalty of an hour at %s lasts until %s", before, end)
			}
			w.shift.Advance(end.Sub(w.now()) - 30*time.Second)
			if got := until(); !got.Equal(end) {
				w.Fatalf("just before its end it lasts until %s, want %s", got, end)
			}
			// clears those that are over
			w.must(work.Note(w.ctx, bmdb.SetPenalty("c2", time.Hour, "another")))
			if got := until(); !got.Equal(end) {
				w.Fatalf("after another one it lasts until %s, want %s", got, end)
			}
		})
	}},
	// I7: a device may surface with any token that travelled, for as long as there may be one.
	{"tokens are pruned when their machines have gone", func(w *world) {
		wanted := newIntents("c1", "c2", "c3", "c4")
		var tokens []fleet.Token
		for _, i := range wanted {
			tokens = append(tokens, i.Token)
		}
		pruned := func(limit, want int) {
			w.Helper()
			if n, err := w.db.PruneTokens(w.ctx, time.Hour, limit); n != want || err != nil {
				w.Fatalf("pruned %d, %v, want %d", n, err, want)
			}
		}
		closed := func(want ...fleet.Token) {
			w.Helper()
			got, err := w.db.ClosedTokens(w.ctx, provider, append(tokens, fleet.NewToken()))
			w.must(err)
			if len(got) != len(want) {
				w.Fatalf("closed tokens %v, want %v", got, want)
			}
			for _, token := range want {
				if got[token] != (bmdb.ClosedToken{Machine: wanted[slices.Index(tokens, token)].Machine}) {
					w.Fatalf("closed tokens %v, want %v", got, want)
				}
			}
		}
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
			closed()
			w.must(work.Note(w.ctx, bmdb.CloseIntentProvided(wanted[0].Machine, "d1", providedAs(fleet.ProviderStatusActive, "c1")),
				bmdb.CloseIntentRejected(wanted[2].Machine, "no"), bmdb.CloseIntentRejected(wanted[3].Machine, "no")))
		})
		closed(tokens[0], tokens[2], tokens[3])
		// What was asked for of those that never came to be goes with their token.
		for _, i := range wanted {
			w.exec("INSERT INTO install_request (machine, generation, at, actor, image, root_disk, first_boot_data, seen_up) " +
				"VALUES ('" + string(i.Machine) + "', 1, 1, 'a', '{}', '{}', '', '{}')")
			w.exec("INSERT INTO quarantine (machine, at, actor, reason) VALUES ('" + string(i.Machine) + "', 1, 'a', 'b')")
		}
		pruned(10, 0)
		w.wantNumber(4, "SELECT count(*) FROM install_request")
		w.shift.Advance(time.Hour + time.Second)
		pruned(1, 1)
		pruned(10, 1)
		closed(tokens[0])
		w.wantNumber(2, "SELECT count(*) FROM token")
		w.wantNumber(2, "SELECT count(*) FROM install_request")
		w.wantNumber(2, "SELECT count(*) FROM quarantine")
		w.exec("DELETE FROM install_request")
		w.exec("DELETE FROM quarantine")
		w.provisioning(func(work *bmdb.Work) { // the open one is still good for something
			w.must(work.Note(w.ctx, bmdb.AdoptToken(tokens[1], "d2", "c2", providedAs(fleet.ProviderStatusActive, "c2"), bmdb.Configured{})))
		})
		closed(tokens[0], tokens[1])
	}},
}
