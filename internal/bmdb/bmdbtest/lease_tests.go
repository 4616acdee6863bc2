package bmdbtest

import (
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var leaseTests = []test{
	// rule 4: a deadline frees nothing, only the end of the session does. The holder comes back
	// between the transaction of the claim that finds it overdue and the one that would end it.
	{"an overdue session keeps its lanes until it has ended", func(w *world) {
		id := w.machine("c1")
		late, heir := w.session("late"), w.lasting("heir")
		work, pass := w.claimOne(late, fleet.ProcessAgentStart), w.claimOne(late, fleet.ProcessProvision)
		for _, process := range []fleet.Process{fleet.ProcessAgentStart, fleet.ProcessProvision} {
			w.shift.Advance(interval + margin)
			w.must(w.claimOne(heir, fleet.ProcessUpdate).Cancel(w.ctx, "a fact of the machine",
				bmdb.SetProvided(id, "", fleet.Provided{Status: fleet.ProviderStatusActive, Detail: string(process)})))
			w.after = map[string]func(){"claim": func() { w.must(late.Extend(w.ctx)) }}
			if got := w.claim(heir, process, 5); len(got) != 0 {
				w.Fatalf("claimed %s of a session that has not ended", process)
			}
			if len(w.after) != 0 {
				w.Fatal("nobody came across the session: the test tests nothing")
			}
		}
		w.must(work.Finish(w.ctx))
		w.must(pass.Finish(w.ctx))
	}},
	// rule 4, for the lanes of providers
	{"a claim takes over what a dead session holds of a provider", func(w *world) {
		dead, heir := w.session("dead"), w.lasting("heir")
		was := w.claimOne(dead, fleet.ProcessProvision)
		if got := w.claim(heir, fleet.ProcessProvision, 1); len(got) != 0 {
			w.Fatal("claimed what is held")
		}
		w.shift.Advance(interval + margin)
		if is := w.claimOne(heir, fleet.ProcessProvision); is.Epoch <= was.Epoch {
			w.Fatalf("epoch %d after %d", is.Epoch, was.Epoch)
		}
		w.wantKind(was.Finish(w.ctx), fleet.KindLeaseLost)
		w.wantNumber(1, "SELECT count(*) FROM history WHERE process = 'provision' AND event = 'expired'")
	}},
	// rules 4 and 12, I4: the janitor needs no claim for it, and frees batch after batch.
	{"what the dead hold is freed without a claim, in a large fleet", func(w *world) {
		ids := make([]fleet.MachineID, 120) // of two batches and a half
		for i := range ids {
			ids[i] = fleet.NewMachineID()
		}
		w.must(Stock(w.ctx, w.db, elsewhere, ids, nil))
		dead := w.session("dead")
		w.claimOne(dead, fleet.ProcessProvision)
		w.claimOne(dead, fleet.ProcessUpdate)
		c, err := dead.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: len(ids)})
		w.must(err)
		if len(c.Works) != len(ids) {
			w.Fatalf("claimed %d, want all %d", len(c.Works), len(ids))
		}
		w.wantNumber(int64(len(ids)+2), heldLanes)
		w.shift.Advance(interval + margin)
		if n, err := w.db.CollectSessions(w.ctx); n != 1 || err != nil {
			w.Fatalf("collected %d, %v", n, err)
		}
		w.wantNumber(0, heldLanes)
		w.wantNumber(int64(len(ids)+2), "SELECT count(*) FROM history WHERE event = 'expired'")
		w.wantNumber(1, "SELECT count(*) FROM session WHERE id = $1 AND freed = 1", string(dead.ID()))
	}},
	// I2: an extension hands back what nobody here knows. What a claim has taken and not yet told of
	// is known to nobody, but not lost.
	{"an extension during a claim hands back nothing that the claim takes", func(w *world) {
		id := w.machine("c1")
		s := w.session("a")
		w.faults.FailStatement(1)
		if _, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1}); err == nil || w.faults.Clear() != 1 {
			w.Fatalf("the claim did not fail: %v", err)
		}
		// committed, its work not known yet
		w.after = map[string]func(){"claim": func() { w.must(s.Extend(w.ctx)) }}
		work := w.claimOne(s, fleet.ProcessAgentStart)
		if len(w.after) != 0 {
			w.Fatal("nothing was extended")
		}
		w.must(s.Extend(w.ctx))
		w.must(work.Finish(w.ctx))
		if got := w.events(id); slices.Contains(got, "cancelled") {
			w.Fatalf("history %q", got)
		}
	}},
	// rule 3: a commit names session and epoch. A standby that took over without the last commits
	// knows nothing of a claim whose holder goes on, and gives the same epoch to somebody else.
	{"a claim that was lost in a failover commits nothing", func(w *world) {
		id := w.machine("c1")
		work, ended := w.claimOne(w.session("a"), fleet.ProcessAgentStart), "must not be there"
		b := w.sessionFor("b", interval+margin) // its deadline is later
		w.exec("UPDATE machine SET session = $1 WHERE id = $2", string(b.ID()), string(id))
		w.wantKind(work.Note(w.ctx, bmdb.RecordHistory("late", ended)), fleet.KindLeaseLost)
		w.wantKind(work.Finish(w.ctx, bmdb.RecordHistory("late", ended)), fleet.KindLeaseLost)
		w.wantKind(work.Cancel(w.ctx, ended), fleet.KindLeaseLost)
		w.wantKind(work.Fail(w.ctx, bmdb.Failure{Cause: ended, Backoff: growing}), fleet.KindLeaseLost)
		r := w.record(id)
		if h := r.Holds[fleet.LaneHost]; h.Session != b.ID() || h.Epoch != work.Epoch || len(r.Backoffs) != 0 {
			w.Fatalf("held by %+v, backoffs %v", h, r.Backoffs)
		}
		for _, event := range []string{"late", "finished", "cancelled", "failed"} {
			if slices.Contains(w.events(id), event) {
				w.Fatalf("history %q", w.events(id))
			}
		}
	}},
	{"epochs grow when a machine goes and comes back with its token", func(w *world) { // I3
		wanted := newIntents("c1")
		id := wanted[0].Machine
		var was int64
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened), bmdb.IntentCalled(id)))
			for range 3 { // each voids the epoch that there is
				w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, id, fleet.InstallRequest{Image: image}, true)))
			}
			if was = w.number("SELECT epoch FROM machine WHERE id = $1", string(id)); was < 3 {
				w.Fatalf("epoch %d: the test tests nothing", was)
			}
			w.must(work.Note(w.ctx, bmdb.CloseIntentOtherOwner(id, "two lists agree")))
			w.wantNumber(0, "SELECT count(*) FROM machine")
			w.must(work.Note(w.ctx, bmdb.AdoptToken(wanted[0].Token, "d1", "c1", providedAs(fleet.ProviderStatusActive, "c1"), bmdb.Configured{})))
		})
		if work := w.claimOne(w.session("a"), fleet.ProcessAgentStart); work.Subject.Machine != id || int64(work.Epoch) <= was {
			w.Fatalf("%s has epoch %d, and %s had %d", work.Subject, work.Epoch, id, was)
		}
	}},
	{"the start of work that runs is not pruned", func(w *world) { // I4
		id := w.machine("c1")
		work := w.claimOne(w.lasting("a"), fleet.ProcessAgentStart)
		began := w.record(id).Holds[fleet.LaneHost].Since
		w.shift.Advance(48 * time.Hour)
		if n, err := w.db.PruneHistory(w.ctx, time.Hour, 1000); n == 0 || err != nil {
			w.Fatalf("pruned %d, %v", n, err)
		}
		if got := w.events(id); !slices.Equal(got, []string{"started"}) {
			w.Fatalf("history %q", got)
		}
		if h := w.record(id).Holds[fleet.LaneHost]; !h.Since.Equal(began) || h.Epoch != work.Epoch {
			w.Fatalf("held since %s by epoch %d", h.Since, h.Epoch)
		}
		w.must(work.Finish(w.ctx))
		rows, err := w.db.History(w.ctx, id, 10)
		w.must(err)
		if len(rows) == 0 || rows[0].Event != fleet.EventFinished || !rows[0].StartedAt.Equal(began) {
			w.Fatalf("history %+v", rows)
		}
	}},
}
