package bmdbtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// SilenceAt stocks a provider with machines that want recovery, the n-th in a location, and limits
// how many of them may be under recovery at once there, and in all.
func SilenceAt(
	ctx context.Context, db *bmdb.DB, name fleet.ProviderName, machines []fleet.MachineID, location func(n int) string, there, all int,
) error {
	if err := StockAt(ctx, db, name, machines, nil, location); err != nil {
		return err
	}
	if err := Silence(ctx, db, name, all); err != nil {
		return err
	}
	return setThere(ctx, db, there, all)
}

func setThere(ctx context.Context, db *bmdb.DB, there, all int) error {
	env, err := db.Environment(ctx)
	if err != nil {
		return err
	}
	p := env.Policy
	p.RecoveryAtOnce, p.RecoveryAtOncePerLocation = all, there
	_, err = db.SetPolicy(ctx, p)
	return err
}

// silentAt stocks a provider with machines that want recovery, one for each of the locations.
func (w *world) silentAt(name fleet.ProviderName, there, all int, locations ...string) []fleet.MachineID {
	w.Helper()
	ids := make([]fleet.MachineID, len(locations))
	for i := range ids {
		ids[i] = fleet.NewMachineID()
	}
	w.must(SilenceAt(w.ctx, w.db, name, ids, func(n int) string { return locations[n] }, there, all))
	w.shift.Advance(time.Second)
	return ids
}

// at counts the works in each location.
func (w *world) at(works []*bmdb.Work) map[string]int {
	w.Helper()
	n := make(map[string]int)
	for _, work := range works {
		n[w.record(work.Subject.Machine).Provided.Location]++
	}
	return n
}

func (w *world) wantAt(works []*bmdb.Work, want string) {
	w.Helper()
	if got := fmt.Sprint(w.at(works)); got != "map["+want+"]" {
		w.Fatalf("under recovery: %s, want %s", got, want)
	}
}

func in(location string, n int) []string { return slices.Repeat([]string{location}, n) }

var placeTests = []test{
	{"no more at once in a location than its limit, and a full one hides no other", func(w *world) {
		// all of a was due before any of b
		w.silentAt(provider, 2, 0, slices.Concat(in("a", 30), in("b", 4), in("c⟩", 1))...)
		a, b := w.session("a"), w.session("b")
		works := w.recover(a, 10, 5)
		w.wantAt(works, "a:2 b:2 c⟩:1")
		w.recover(b, 10, 0)
		for _, work := range works {
			location := w.record(work.Subject.Machine).Provided.Location
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "x", Backoff: hours}))
			if location == "c⟩" {
				w.recover(b, 10, 0)
				continue
			}
			w.wantAt(w.recover(b, 10, map[string]int{"a": 1, "b": 1}[location]), location+":1")
		}
	}},
	{"a claim that looks for one finds it behind a full location", func(w *world) {
		w.silentAt(provider, 1, 0, slices.Concat(in("a", 20), in("b", 2))...)
		a, b := w.session("a"), w.session("b")
		w.wantAt(w.recover(a, 1, 1), "a:1")
		w.wantAt(w.recover(b, 1, 1), "b:1")
		w.recover(a, 1, 0)
	}},
	{"a look passes what is due in a full location without its entries", func(w *world) {
		w.silentAt(provider, 2, 0, slices.Concat(in("a", 50), in("b", 1))...)
		s := w.session("a")
		n := w.cost("look for due work", func() { w.wantAt(w.recover(s, 3, 3), "a:2 b:1") })
		// The first look: a page, the environment with its policy, who holds what. The second knows
		// that a is full: the same, for b, the policy apart. What is full costs no other page.
		if n > 7 {
			w.Errorf("the claim looked at the agenda by %d statements", n)
		}
		w.must(w.shift.View(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
			for places, want := range map[string]int{
				"": 51, "⟨p1│a⟩": 1, "⟨p1│b⟩": 50, "⟨p2│a⟩⟨p1│b⟩⟨p1│a⟩": 0, "⟨p1│⟩": 0, "⟨p2│⟩": 51, "⟨p1│aa⟩": 51,
			} {
				rows, err := statement.New(tx).ListAgendaLimited(ctx, statement.ListAgendaLimitedParams{
					Process: string(fleet.ProcessRecovery), Places: places, MaxRows: 100,
				})
				if err != nil {
					return err
				}
				if len(rows) != want {
					w.Errorf("without %q, there are %d entries, want %d", places, len(rows), want)
				}
			}
			return nil
		}))
	}},
	{"the limit of the provider holds besides that of the location", func(w *world) {
		w.silentAt(provider, 2, 3, slices.Concat(in("a", 5), in("b", 5), in("c", 5))...)
		w.silentAt(elsewhere, 2, 3, in("a", 5)...)
		s := w.session("a")
		works := w.recover(s, 20, 5)
		here := 0
		for _, work := range works {
			if w.record(work.Subject.Machine).Provider == provider {
				here++
			}
		}
		if here != 3 || w.at(works)["a"] != 4 { // two of each provider
			w.Fatalf("%d at the first provider; by location: %v", here, w.at(works))
		}
	}},
	{"machines whose location nobody knows have no limit of their own", func(w *world) {
		w.silentAt(provider, 1, 0, slices.Concat(in("", 4), in("b", 2))...)
		w.wantAt(w.recover(w.session("a"), 9, 5), ":4 b:1")
	}},
	{"the limit of a location is raised, lowered and lifted, and wakes", func(w *world) {
		w.silentAt(provider, 2, 0, in("a", 9)...)
		s := w.session("a")
		works := w.recover(s, 9, 2)
		wake := w.db.Wake(fleet.ProcessRecovery)
		w.drain(wake)
		w.must(setThere(w.ctx, w.db, 4, 0))
		select {
		case <-wake:
		default:
			w.Fatal("nobody was woken")
		}
		works = append(works, w.recover(s, 9, 2)...)
		w.must(setThere(w.ctx, w.db, 1, 0))
		for _, work := range works {
			w.recover(s, 9, 0)
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "x", Backoff: hours}))
		}
		w.recover(s, 9, 1)
		w.must(setThere(w.ctx, w.db, 0, 0))
		w.recover(s, 9, 4)
	}},
	{"the dead keep no place in a location", func(w *world) {
		w.silentAt(provider, 2, 0, slices.Concat(in("a", 10), in("b", 1))...)
		dead, s := w.session("dead"), w.session("heir")
		w.recover(dead, 3, 3)
		w.shift.Advance(interval + margin)
		w.must(s.Extend(w.ctx))
		w.wantAt(w.recover(s, 10, 3), "a:2 b:1")
	}},
	{"a machine that has moved counts where it is", func(w *world) {
		ids := w.silentAt(provider, 1, 0, in("a", 3)...)
		s := w.session("a")
		held := w.recover(s, 3, 1)[0].Subject.Machine
		ids = slices.DeleteFunc(ids, func(id fleet.MachineID) bool { return id == held })
		work := w.claimOne(w.session("updater"), fleet.ProcessUpdate)
		moved := providedAs(fleet.ProviderStatusActive, "c-"+fleet.CapacityID(ids[1]))
		moved.Location = "b"
		w.must(work.Note(w.ctx, bmdb.SetProvided(ids[1], "id-c-"+fleet.ProviderID(ids[1]), moved)))
		if got := w.recover(s, 3, 1)[0].Subject.Machine; got != ids[1] {
			w.Fatalf("claimed %s, not %s, which has moved to where there is room", got, ids[1])
		}
	}},
	{"what waits for room is due, and told apart from what nobody does", func(w *world) {
		w.silentAt(provider, 2, 3, slices.Concat(in("a", 5), in("b", 1), in("", 2))...)
		w.silentAt(elsewhere, 2, 3, in("a", 1)...)
		s := w.session("a")
		expect := func(when string, due, noRoom int, overdue bool) {
			w.Helper()
			summary, err := w.db.Summary(w.ctx)
			w.must(err)
			p := summary.OfRole(fleet.RoleRecoverer)
			if p.Due != due || p.NoRoom != noRoom || p.Startable() != due-noRoom || p.OldestDue.IsZero() == overdue {
				w.Errorf("%s: %+v, want %d due, %d of them without room, and what has room in OldestDue", when, p, due, noRoom)
			}
		}
		expect("nothing is under recovery", 9, 0, true)
		works := w.recover(s, 2, 2, provider)
		w.wantAt(works, "a:2")
		expect("a location is at its limit", 7, 3, true)
		w.recover(s, 2, 1, provider)
		expect("the provider is, too", 6, 5, true)
		w.recover(s, 2, 1, elsewhere)
		expect("nothing can start", 5, 5, false)
		w.must(works[0].Cancel(w.ctx, "x"))
		expect("there is room again", 6, 0, true)
	}},
	{"an explanation says that the location is at its limit", func(w *world) {
		ids := w.silentAt(provider, 1, 0, in("rack 7", 2)...)
		s := w.session("a")
		reason := func(id fleet.MachineID) string {
			d, err := w.db.MachineDetails(w.ctx, id)
			w.must(err)
			return lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessRecovery).Reason
		}
		work := w.recover(s, 3, 1)[0]
		if work.Subject.Machine == ids[0] {
			slices.Reverse(ids)
		}
		const want = "; its location is at its limit: it waits until fewer than 1 machines of p1 in rack 7 are under recovery"
		if got := reason(ids[0]); !strings.HasSuffix(got, want) {
			w.Errorf("it waits for room in its location, and is said to: %s", got)
		}
		w.must(work.Cancel(w.ctx, "x"))
		if got := reason(ids[0]); strings.Contains(got, "limit") {
			w.Errorf("there is room, and it is said to: %s", got)
		}
	}},
	{"whatever fails in a claim, no place in a location is lost and none taken twice", func(w *world) {
		w.silentAt(provider, 1, 0, in("a", 3)...)
		s := w.session("a")
		for n := 1; ; n++ {
			w.faults.FailStatement(n)
			c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessRecovery, Limit: 3})
			if hits := w.faults.Clear(); hits == 0 && n > 10 {
				return
			}
			if err == nil && len(c.Works) != 1 {
				w.Fatalf("claimed %d at fault %d", len(c.Works), n)
			}
			w.must(s.Extend(w.ctx)) // hands back what nobody learned of
			for _, work := range c.Works {
				w.recover(s, 3, 0)
				w.must(work.Cancel(w.ctx, "x"))
			}
			w.must(w.recover(s, 3, 1)[0].Cancel(w.ctx, "x"))
		}
	}},
}
