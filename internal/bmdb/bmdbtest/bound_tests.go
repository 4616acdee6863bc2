package bmdbtest

import (
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// boundTests are about rule 12: no transaction is the longer the larger the fleet is.
var boundTests = []test{
	{"heartbeats are flushed 2,000 at a time", func(w *world) {
		seen := make([]bmdb.Seen, 4500) // of machines that were given back meanwhile
		for i := range seen {
			seen[i] = bmdb.Seen{Machine: fleet.NewMachineID(), TakeoverGeneration: 1}
		}
		w.must(w.db.FlushSeen(w.ctx, seen))
		w.wantMost("FlushAllSeen", 2000)
	}},
	{"lanes are freed 50 at a time", func(w *world) {
		ids := make([]fleet.MachineID, 120)
		for i := range ids {
			ids[i] = fleet.NewMachineID()
		}
		w.must(Stock(w.ctx, w.db, provider, ids, nil))
		hold := func(s *bmdb.Session) {
			if works := w.claim(s, fleet.ProcessAgentStart, len(ids)); len(works) != len(ids) {
				w.Fatalf("claimed %d of %d", len(works), len(ids))
			}
			w.bounds.Reset()
		}
		ends := w.session("ends")
		hold(ends)
		w.must(ends.Close(w.ctx, "done"))
		w.wantMost("LockMachines", 50)
		hold(w.session("dies"))
		w.shift.Advance(interval + margin)
		if n, err := w.db.CollectSessions(w.ctx); n != 1 || err != nil {
			w.Fatalf("ended %d sessions, %v", n, err)
		}
		w.wantMost("LockMachines", 50)
		w.wantMost("ListAbandoned", 50)
	}},
	{"machines are read 500 at a time", func(w *world) {
		w.sound()
		w.wantMost("ListMachineIDsAfter", 500)
		w.bounds.Reset()
		_, err := w.db.Withheld(w.ctx)
		w.must(err)
		w.wantMost("ListMachineIDsAfter", 500)
	}},
	{"counts are folded 5,000 at a time", func(w *world) {
		w.exec(`INSERT INTO state_count (provider, state, n)
			WITH RECURSIVE rows (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM rows WHERE i < 5200)
			SELECT $1, 'adopted', 0 FROM rows`, string(provider))
		before := w.number("SELECT count(*) FROM state_count")
		_, err := w.db.RecomputeAgenda(w.ctx, 1)
		w.must(err)
		w.wantMost("TakeStateCounts", 5000)
		if after := w.number("SELECT count(*) FROM state_count"); after < before-5000 || after == before {
			w.Errorf("%d rows became %d", before, after)
		}
	}},
}

// wantMost wants some of a kind in one transaction, and no more than that.
func (w *world) wantMost(kind string, most int) {
	w.Helper()
	if got := w.bounds.Most(kind); got == 0 || got > most {
		w.Errorf("%s: up to %d in one transaction, want some, and at most %d", kind, got, most)
	}
}
