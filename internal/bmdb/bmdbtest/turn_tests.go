package bmdbtest

import (
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// turns asks for turns, and wants no error.
func (w *world) turns(r fleet.TurnRequest) fleet.TurnGrant {
	w.Helper()
	grant, err := w.db.ReserveTurns(w.ctx, r)
	w.must(err)
	return grant
}

// about says whether two instants are the same, but for what reading two clocks takes.
func about(a, b time.Time) bool { return a.Sub(b).Abs() < 10*time.Second }

const (
	limit  = "limit one"
	minute = time.Minute
)

var turnTests = []test{
	// I10
	{"a turn is handed out once, whoever asks at the same time", func(w *world) {
		const askers, each, spacing = 8, 15, 15 * time.Second
		var mu sync.Mutex
		var all []time.Time
		var asking sync.WaitGroup
		failed := make(chan error, askers*each)
		for asker := range askers {
			asking.Go(func() {
				for n := range each {
					r := fleet.TurnRequest{Limit: limit, Spacing: spacing, Count: 1 + (asker+n)%4}
					grant, err := w.db.ReserveTurns(w.ctx, r)
					if err != nil {
						failed <- err
						return
					}
					mu.Lock()
					for i := range r.Count {
						all = append(all, grant.First.Add(time.Duration(i)*spacing))
					}
					mu.Unlock()
				}
			})
		}
		asking.Wait()
		close(failed)
		for err := range failed {
			w.must(err)
		}
		slices.SortFunc(all, time.Time.Compare)
		for i, turn := range all[1:] {
			if between := turn.Sub(all[i]); between < spacing-5*time.Second { // what two clocks may differ
				w.Fatalf("turns %d and %d are %s apart", i, i+1, between)
			}
		}
		if took := all[len(all)-1].Sub(all[0]); took > time.Duration(len(all))*spacing {
			w.Fatalf("%d turns take %s: some are lost", len(all), took)
		}
		if next := w.turns(fleet.TurnRequest{Limit: limit}).Next; !about(next, all[len(all)-1].Add(spacing)) {
			w.Fatalf("the next turn is said to be at %s, after the last one at %s", next, all[len(all)-1])
		}
		if other := w.turns(fleet.TurnRequest{Limit: "limit two", Spacing: spacing, Count: 1}).First; !about(other, time.Now()) {
			w.Fatalf("the first turn of another limit is at %s", other)
		}
	}},
	{"turns that nobody has used are not made up for", func(w *world) {
		w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 1})
		w.shift.Advance(time.Hour)
		a := w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 2})
		b := w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 1})
		if !about(a.First, time.Now()) || !about(b.First, a.First.Add(2*minute)) {
			w.Fatalf("turns at %s and %s, and it is %s", a.First, b.First, time.Now())
		}
	}},
	{"a turn that comes too late is not taken, and one has time to get there", func(w *world) {
		w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 10})
		for range 3 {
			late := w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 5, Latest: time.Now().Add(9 * minute)})
			if !late.First.IsZero() || !about(late.Next, time.Now().Add(10*minute)) {
				w.Fatalf("turns at %s, the next at %s", late.First, late.Next)
			}
		}
		in := w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 1, Latest: time.Now().Add(11 * minute)})
		if !about(in.First, time.Now().Add(10*minute)) {
			w.Fatalf("a turn at %s", in.First)
		}
		led := w.turns(fleet.TurnRequest{Limit: "limit two", Spacing: minute, Count: 1, Lead: minute})
		if !about(led.First, time.Now().Add(minute)) {
			w.Fatalf("with a lead of a minute, a turn at %s", led.First)
		}
		none := w.turns(fleet.TurnRequest{Limit: "limit two", Spacing: minute, Count: 1, Lead: time.Hour, Latest: time.Now().Add(minute)})
		if !none.First.IsZero() {
			w.Fatalf("a turn at %s, which nobody can use", none.First)
		}
	}},
	// I10
	{"what the provider asks one for is told to all, and no turn comes before", func(w *world) {
		before := w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 3})
		until := time.Now().Add(30 * minute)
		w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, NotBefore: until})
		if got := w.turns(fleet.TurnRequest{Limit: limit}).NotBefore; !about(got, until) {
			w.Fatalf("nobody may call before %s, and is told %s", until, got)
		}
		// a shorter one takes nothing back, and a turn that is asked for with it obeys
		after := w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 1, NotBefore: time.Now().Add(minute)})
		if !before.NotBefore.IsZero() || !about(after.NotBefore, until) || !about(after.First, until) {
			w.Fatalf("before: %+v, after: %+v, not before %s", before, after, until)
		}
		if got := w.turns(fleet.TurnRequest{Limit: "limit two"}); got != (fleet.TurnGrant{}) {
			w.Fatalf("of another limit: %+v", got)
		}
		w.shift.Advance(time.Hour)
		if got := w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 1}).First; !about(got, time.Now()) {
			w.Fatalf("after the pause, a turn at %s", got)
		}
	}},
	{"a clock that was ahead stops no calls", func(w *world) {
		w.turns(fleet.TurnRequest{Limit: limit, Spacing: 3 * time.Hour, Count: 1, NotBefore: time.Now().Add(minute)})
		if got := w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 1}).First; !about(got, time.Now()) {
			w.Fatalf("behind a turn that is too far ahead to be one, a turn at %s", got)
		}
	}},
	{"a limit that nobody uses any more is forgotten", func(w *world) {
		w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 1})
		prune := func(want int64) {
			w.Helper()
			if _, err := w.db.PruneTokens(w.ctx, time.Hour, 10); err != nil {
				w.Fatal(err)
			}
			w.wantNumber(want, "SELECT count(*) FROM call_turn")
		}
		w.shift.Advance(23 * time.Hour)
		w.turns(fleet.TurnRequest{Limit: "limit two", Spacing: minute, Count: 1})
		prune(2)
		w.shift.Advance(2 * time.Hour)
		prune(1)
	}},
	// I10
	{"a pause that a clock which was ahead has written stops no calls", func(w *world) {
		w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, NotBefore: time.Now().Add(3 * time.Hour)})
		again := w.turns(fleet.TurnRequest{Limit: limit, Spacing: minute, Count: 1})
		if again.NotBefore.After(time.Now().Add(minute)) || !about(again.First, time.Now()) {
			w.Fatalf("a turn at %s, and no call before %s", again.First, again.NotBefore)
		}
	}},
}
