package bmdbtest

import (
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// release gives a machine back to its provider.
func (w *world) release(id fleet.MachineID) {
	w.Helper()
	w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverRelease}))
	number, err := w.db.RequestOperation(w.ctx, actor, id, fleet.OperationRelease, "sold")
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
		rows, err := w.db.ProviderHistory(w.ctx, provider, 100)
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
}
