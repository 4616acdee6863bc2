package bmdbtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// release gives a machine back to its provider.
func (w *world) release(id fleet.MachineID) {
	w.Helper()
	w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverRelease}))
	number, err := Operate(w.ctx, w.db, actor, id, fleet.OperationRelease, "sold")
	w.must(err)
	w.must(w.claimOne(w.lasting("operations"), fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(number, ""),
		bmdb.AcceptOperation(number), bmdb.EndOperation(number, true, "gone", 0)))
}

var releaseTests = []test{
	{"a pass that knows nothing of a release does not let its capacity be used again", func(w *world) {
		w.release(w.machine("c1"))
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.SetPenalty("c1", time.Hour, "its machine has failed")))
		})
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.SetPenalty("c2", time.Hour, "its machine has failed")))
		})
		v, err := w.db.ViewProvider(w.ctx, provider)
		w.must(err)
		if p := v.Penalties["c1"]; !p.ForEver() || p.Cause != "release, asked for by "+actor+": sold" {
			w.Errorf("penalty %+v", p)
		}
		if p, there := v.Penalties["c2"]; !there || p.ForEver() {
			w.Errorf("penalty %+v, %t", p, there)
		}
		rows, err := w.db.ProviderHistory(w.ctx, provider, 100, false)
		w.must(err)
		told := 0
		for _, row := range rows {
			if row.Event == fleet.EventPenalty {
				told++
			}
		}
		if told != 1 {
			w.Errorf("history tells of %d penalties, not of the one that was made", told)
		}
	}},
	{"the capacity of a machine that is forgotten while it is being released is kept out as that of a released one", func(w *world) {
		ids := w.machines(nil, "c1", "c2")
		w.pulls(fleet.LeverRelease)
		_, err := Operate(w.ctx, w.db, actor, ids[0], fleet.OperationRelease, "sold")
		w.must(err)
		for i, id := range ids {
			capacity := fleet.CapacityID([]string{"c1", "c2"}[i])
			w.provisioning(func(work *bmdb.Work) {
				w.must(work.Note(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusGone, capacity))))
			})
			p := w.planned(fleet.VerbForget, id)
			if says := strings.Contains(p.Machines[0].Does, "its capacity c1 is not used again until"); says != (id == ids[0]) {
				w.Errorf("the plan says %q", p.Machines[0].Does)
			}
			if done := w.confirmed(p.ID); outcomes(done) != "done" {
				w.Fatalf("%+v", done.Outcomes)
			}
		}
		penalties, err := w.db.Penalties(w.ctx, provider)
		w.must(err)
		if p := penalties["c1"]; len(penalties) != 1 || !p.ForEver() || p.Cause != "release, asked for by "+actor+": sold" {
			w.Errorf("kept out are %+v", penalties)
		}
	}},
	{"the token of a machine is kept from its release on, however old it is", func(w *world) {
		wanted := newIntents("c1")
		id, token := wanted[0].Machine, wanted[0].Token
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened), bmdb.IntentCalled(id)))
			w.must(work.Note(w.ctx, bmdb.CloseIntentProvided(id, "d1", providedAs(fleet.ProviderStatusActive, "c1"))))
		})
		w.shift.Advance(48 * time.Hour)
		w.release(id)
		kept := func(want int) {
			w.Helper()
			_, err := w.db.PruneTokens(w.ctx, 24*time.Hour, 10)
			w.must(err)
			closed, err := w.db.ClosedTokens(w.ctx, provider, []fleet.Token{token})
			w.must(err)
			if len(closed) != want {
				w.Fatalf("%d tokens are kept, want %d", len(closed), want)
			}
		}
		kept(1)
		w.shift.Advance(23 * time.Hour)
		kept(1)
		w.shift.Advance(2 * time.Hour)
		kept(0)
	}},
	{"the plan of a release or a replace tells what follows for the capacity", func(w *world) {
		id := w.machine("c1")
		says := func(verb fleet.Verb, want string) {
			w.Helper()
			if got := w.planned(verb, id).Machines[0].Does; got != "it is given back to p1; "+want {
				w.Errorf("a %s: %q, want %q", verb, got, want)
			}
		}
		w.pulls(fleet.LeverRelease)
		says(fleet.VerbRelease, "its capacity c1 is not used again until `ironherd provider retry p1 --capacity ID --reason WHY`")
		says(fleet.VerbReplace, "another one may be created at once, on the same hardware, too (quarantine this one first if it is broken)")
		w.pulls(fleet.LeverRelease, fleet.LeverClean)
		says(fleet.VerbReplace, "the next pass may take the same host in again (quarantine the machine first if it is broken)")
		w.must(Quarantine(w.ctx, w.db, actor, id, "it corrupts data"))
		says(fleet.VerbReplace, "its capacity sits out `provisioner.penalty`, and then may be used again")
	}},
	{"a host key that is accepted lets the release go on that waits for it, and no other operation", func(w *world) {
		id := w.machine("c1")
		waits := func(o fleet.Operation, levers ...fleet.Lever) bool {
			w.Helper()
			w.pulls(levers...)
			w.must(errorOf2(Operate(w.ctx, w.db, actor, id, o, "sold")))
			w.must(w.claimOne(w.session("a"), fleet.ProcessOperation).Fail(w.ctx, bmdb.Failure{Cause: "another key", Backoff: growing},
				bmdb.RefuseHostKey("ssh-ed25519 CCCC", "SHA256:C")))
			w.must(w.db.AcceptHostKey(w.ctx, actor, id, "ssh-ed25519 CCCC", "SHA256:C", "seen on the console"))
			_, waits := w.record(id).Backoffs[fleet.ProcessOperation]
			return waits
		}
		if !waits(fleet.OperationReboot, fleet.LeverReboot) || !waits(fleet.OperationPowerCycle, fleet.LeverPower) {
			w.Error("a restart waits for no host key, and was tried anew")
		}
		if waits(fleet.OperationRelease, fleet.LeverRelease, fleet.LeverClean) {
			w.Error("the release waits still")
		}
	}},
	{"a person's replace takes the place of the policy's, until the provider has accepted that", func(w *world) {
		w.pulls(fleet.LeverRelease)
		p := fleet.DefaultPolicy()
		p.ReplaceFailed = true
		w.must(errorOf2(w.db.SetPolicy(w.ctx, p)))
		says := func(id fleet.MachineID, status fleet.ProviderStatus) {
			capacity := w.record(id).Provided.Capacity
			w.provisioning(func(work *bmdb.Work) {
				w.must(work.Note(w.ctx, bmdb.SetProvided(id, fleet.ProviderID("id-"+capacity), providedAs(status, capacity))))
			})
		}
		s := w.lasting("operations")
		failed := func(capacity fleet.CapacityID) fleet.MachineID {
			id := w.machine(capacity)
			says(id, fleet.ProviderStatusFailed)
			w.shift.Advance(time.Minute) // a pass has told of all by then
			w.must(w.claimOne(s, fleet.ProcessOperation).Finish(w.ctx, bmdb.ReplaceByPolicy()))
			return id
		}
		id := failed("c1")
		w.must(w.claimOne(s, fleet.ProcessOperation).Fail(w.ctx, bmdb.Failure{Cause: "throttled", Backoff: hours}))
		says(id, fleet.ProviderStatusActive)
		plan := w.planned(fleet.VerbReplace, id)
		if does := plan.Machines[0].Does; !strings.Contains(does, "its capacity sits out `provisioner.penalty`") {
			w.Errorf("the plan says %q", does)
		}
		done := w.confirmed(plan.ID)
		if o := done.Outcomes[0]; o.Operation != 2 || o.Detail != "replace is asked for (operation 2)" {
			w.Fatalf("outcome %+v", o)
		}
		if q := w.record(id).OpenOperation(); q == nil || q.Number != 2 || q.Actor != actor || q.Reason != "why not" {
			w.Fatalf("asked for: %+v", q)
		}
		if n, err := Operate(w.ctx, w.db, "bob", id, fleet.OperationReplace, "it hums"); n != 2 || err != nil {
			w.Fatalf("operation %d, %v", n, err)
		}
		w.must(w.claimOne(s, fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(2, ""), bmdb.AcceptOperation(2),
			bmdb.EndOperation(2, true, "gone", time.Hour)))
		if penalties, err := w.db.Penalties(w.ctx, provider); err != nil || len(penalties) != 1 {
			w.Fatalf("the capacity was given up: %+v, %v", penalties, err)
		}

		id = failed("c2")
		w.must(w.claimOne(s, fleet.ProcessOperation).Finish(w.ctx, bmdb.BeginOperation(1, ""), bmdb.AcceptOperation(1)))
		if n, err := Operate(w.ctx, w.db, actor, id, fleet.OperationReplace, "bad RAM"); n != 1 || err != nil {
			w.Fatalf("operation %d, %v", n, err)
		}
	}},
	{"a retry lets released capacity be used only where it is named", func(w *world) {
		released := w.machines(nil, "c1", "c2", "c3")
		for _, id := range released {
			w.release(id)
		}
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.SetPenalty("failed", time.Hour, "it failed"), bmdb.SetPenalty("failed2", time.Hour, "it failed"),
				bmdb.SetPenalty("over", time.Minute, "it failed")))
		})
		w.shift.Advance(2 * time.Minute)
		w.must(w.claimOne(w.lasting("p"), fleet.ProcessProvision).Fail(w.ctx, bmdb.Failure{Cause: "no quota", Backoff: growing}))
		waits := func() bool {
			rows, err := w.db.Providers(w.ctx)
			w.must(err)
			_, waits := rows[0].Backoffs[fleet.ProcessProvision]
			return waits
		}
		kept := func(want ...fleet.CapacityID) {
			w.Helper()
			penalties, err := w.db.Penalties(w.ctx, provider)
			w.must(err)
			if got := slices.Sorted(maps.Keys(penalties)); !slices.Equal(got, want) {
				w.Fatalf("kept out are %v, want %v", got, want)
			}
		}
		told := func() (all []string) {
			rows, err := w.db.ProviderHistory(w.ctx, provider, 100, false)
			w.must(err)
			for _, row := range rows {
				if row.Event == fleet.EventRetryRequested {
					all = append(all, row.Actor+": "+row.Detail)
				}
			}
			return all
		}
		kept("c1", "c2", "c3", "failed", "failed2")

		// One that is not kept out, and nothing is done.
		err := w.db.RetryCapacity(w.ctx, actor, provider, []fleet.CapacityID{"c1", "c9", "over"}, "it is ours again")
		w.wantKind(err, fleet.KindConflict)
		if !strings.Contains(err.Error(), "c9, over") || strings.Contains(err.Error(), "c1") {
			w.Errorf("refused: %v", err)
		}
		kept("c1", "c2", "c3", "failed", "failed2")
		if all := told(); len(all) != 0 {
			w.Errorf("told %q", all)
		}

		// Those that are named, and no backoff.
		w.must(w.db.RetryCapacity(w.ctx, actor, provider, []fleet.CapacityID{"c1", "failed", "c1"}, "it is ours again"))
		kept("c2", "c3", "failed2")
		if !waits() {
			w.Error("the backoff was ended, too")
		}
		want := []string{
			actor + ": capacity failed may be used again (it failed); it is ours again",
			actor + ": capacity c1 may be used again (release, asked for by " + actor + ": sold); it is ours again",
		}
		if all := told(); !slices.Equal(all, want) {
			w.Errorf("told %q, want %q", all, want)
		}

		// Without a name, what has an end.
		for _, want := range []string{"[provision], 1 ended, 2 kept", "[], 0 ended, 2 kept"} {
			retried, ended, stay, err := w.db.RetryProvider(w.ctx, actor, provider, "the quota was raised")
			w.must(err)
			if got := fmt.Sprintf("%v, %d ended, %d kept", retried, ended, stay); got != want {
				w.Errorf("a retry: %s, want %s", got, want)
			}
			kept("c2", "c3")
		}
		if waits() {
			w.Error("the backoff stays")
		}
		w.wantKind(w.db.RetryCapacity(w.ctx, actor, "nowhere", []fleet.CapacityID{"c2"}, "why not"), fleet.KindNotFound)
	}},
}
