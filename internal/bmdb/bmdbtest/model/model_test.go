package model_test

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest/engines"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest/model"
	"github.com/ironherd/ironherd/internal/fleet"
)

func TestMain(m *testing.M) {
	// A sample; `make torture-bmdb` runs many more, and -rapid.seed (printed by a failure) the same
	// ones again.
	for name, value := range map[string]string{"rapid.checks": "8", "rapid.steps": "60"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(engines.Main(m))
}

const (
	// of database time, which stands still; for the process's own clock it never ends
	lease       = time.Hour
	first, most = time.Minute, 5 * time.Minute
	machines    = 4
)

func TestEnginesAgreeWithTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		x := &run{T: r, now: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)}
		x.model = model.World{Now: x.now, First: first, Most: most}
		ids := make([]fleet.MachineID, machines)
		for i := range ids {
			ids[i] = fleet.MachineID(fmt.Sprintf("00000000-0000-7000-8000-%012d", i))
			x.model.Machines = append(x.model.Machines, model.Machine{Holder: model.Nobody})
		}
		round := engines.NewRound(t)
		r.Cleanup(round.End)
		for _, e := range engines.All() {
			x.systems = append(x.systems, newSystem(r, e.Name, e.Open(round), ids, &x.now))
		}
		for range 3 {
			x.start()
		}
		op := func(do func()) func(*rapid.T) { return func(*rapid.T) { do() } }
		r.Repeat(map[string]func(*rapid.T){
			"": op(x.compare), "advance": op(x.advance), "start": op(x.start), "extend": op(x.extend), "close": op(x.close),
			"collect": op(x.collect), "claim": op(x.claim), "claim again": op(x.claim), "claim, once more": op(x.claim),
			"claim, reply lost": op(x.claimLost), "finish": op(x.finish), "finish, again": op(x.finish), "finish, reply lost": op(x.finishLost),
			"take over": op(x.takeOver), "quarantine": op(x.quarantine), "unquarantine": op(x.unquarantine), "retry": op(x.retry),
		})
		for _, s := range x.systems {
			s.sound()
		}
	})
}

// run is one random sequence, on all systems and the model in step.
type run struct {
	*rapid.T
	now     time.Time
	model   model.World
	systems []*system
	works   []model.Work
}

// ask runs an operation on every system; they must answer alike.
func (x *run) ask(do func(s *system) string) string {
	x.Helper()
	answer := ""
	for i, s := range x.systems {
		a := do(s)
		if i > 0 && a != answer {
			x.Fatalf("%s answers %q, %s answers %q", x.systems[0].name, answer, s.name, a)
		}
		answer = a
	}
	return answer
}

// want asks and compares with the model.
func (x *run) want(ok bool, refused fleet.Kind, do func(s *system) string) {
	x.Helper()
	want := "ok"
	if !ok {
		want = refused.String()
	}
	if got := x.ask(do); got != want {
		x.Fatalf("the answer is %q, the model says %q", got, want)
	}
}

func (x *run) session() int { return rapid.IntRange(0, len(x.model.Sessions)-1).Draw(x.T, "session") }

func (x *run) machine() int { return rapid.IntRange(0, machines-1).Draw(x.T, "machine") }

// work is any that there ever was.
func (x *run) work() model.Work {
	if len(x.works) == 0 {
		x.Skip("no work yet")
	}
	return rapid.SampledFrom(x.works).Draw(x.T, "work")
}

func (x *run) advance() {
	by := rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Second, first, lease - time.Microsecond, lease, lease + time.Microsecond,
	}).Draw(x.T, "by")
	x.now = x.now.Add(by)
	x.model.Now = x.now
}

func (x *run) start() {
	x.model.Start(lease)
	for _, s := range x.systems {
		s.start(lease)
	}
}

func (x *run) extend() {
	i := x.session()
	x.want(x.model.Extend(i), fleet.KindLeaseLost, func(s *system) string {
		return s.ok(s.sessions[i].Extend(s.ctx), fleet.KindLeaseLost)
	})
}

func (x *run) close() {
	i := x.session()
	x.model.End(i)
	x.want(true, 0, func(s *system) string { return s.ok(s.sessions[i].Close(s.ctx, "closed"), 0) })
}

func (x *run) collect() {
	n := x.model.Collect()
	got := x.ask(func(s *system) string {
		n, err := s.db.CollectSessions(s.ctx)
		s.must(err)
		return fmt.Sprint(n)
	})
	if got != fmt.Sprint(n) {
		x.Fatalf("%s sessions were ended, the model says %d", got, n)
	}
}

func (x *run) claim() { x.claimAs(false) }

func (x *run) claimLost() { x.claimAs(true) }

// claimAs claims. An overdue session never does: its trust window has ended long before. (Its claim
// would come to be in its own way.)
func (x *run) claimAs(loseReply bool) {
	i, limit := x.session(), rapid.IntRange(1, machines).Draw(x.T, "limit")
	if x.model.Overdue(i) {
		x.Skip("overdue")
	}
	var works []model.Work
	var ended []int
	lost := false
	answer := x.ask(func(s *system) string {
		t := s.claim(i, limit, loseReply)
		// left by an earlier claim whose reply was lost
		t.works = slices.DeleteFunc(t.works, x.model.Holds)
		slices.SortFunc(t.works, func(a, b model.Work) int { return a.Machine - b.Machine })
		works, ended, lost = t.works, s.newlyEnded(&x.model), t.lost
		return fmt.Sprint(t.answer, t.works, ended)
	})
	if err := x.model.Claim(i, limit, works, ended, lost); err != nil {
		x.Fatalf("claim: %v (the answer was %s)", err, answer)
	}
	if !lost {
		x.works = append(x.works, works...)
	}
}

// newlyEnded returns the sessions that the database has ended and the model has not.
func (s *system) newlyEnded(m *model.World) (ended []int) {
	for _, i := range s.ended() {
		if !m.Sessions[i].Ended {
			ended = append(ended, i)
		}
	}
	return ended
}

func (x *run) finish() { x.finishAs(false) }

func (x *run) finishLost() { x.finishAs(true) }

func (x *run) finishAs(loseReply bool) {
	l := x.work()
	event := rapid.SampledFrom([]string{model.Finished, model.Failed, model.Cancelled}).Draw(x.T, "how")
	x.want(x.model.Finish(l, event), fleet.KindLeaseLost, func(s *system) string { return s.finish(l, event, loseReply) })
}

func (x *run) takeOver() {
	l := x.work()
	x.want(x.model.TakeOver(l), fleet.KindLeaseLost, func(s *system) string { return s.takeOver(l) })
}

func (x *run) quarantine() {
	i := x.machine()
	x.model.Quarantine(i)
	x.want(true, 0, func(s *system) string {
		return s.ok(bmdbtest.Quarantine(s.ctx, s.db, actor, s.machines[i], "drawn"), 0)
	})
}

func (x *run) unquarantine() {
	i := x.machine()
	x.want(x.model.Unquarantine(i), fleet.KindConflict, func(s *system) string {
		return s.ok(bmdbtest.Unquarantine(s.ctx, s.db, actor, s.machines[i], "drawn"), fleet.KindConflict)
	})
}

func (x *run) retry() {
	i := x.machine()
	was := x.model.Retry(i)
	got := x.ask(func(s *system) string {
		retried, err := s.db.Retry(s.ctx, actor, s.machines[i], "")
		s.must(err)
		return fmt.Sprint(len(retried) > 0)
	})
	if got != fmt.Sprint(was) {
		x.Fatalf("a backoff was ended: %s, the model says %t", got, was)
	}
}

// compare holds what is in the databases to the model.
func (x *run) compare() {
	for _, s := range x.systems {
		if ended := s.newlyEnded(&x.model); len(ended) > 0 {
			x.Fatalf("%s: sessions %v have ended", s.name, ended)
		}
		for i, want := range x.model.Machines {
			got, rows := s.machine(i)
			history := want.History
			if want.Holder != model.Nobody && x.model.Sessions[want.Holder].Ended {
				want.Holder = model.Nobody
				if n := len(rows); n > 0 && rows[n-1].Event == model.Expired { // somebody has come across it
					history = slices.Clone(history)
					history[len(history)-1].Event = model.Expired
				}
			}
			if got.Holder == model.Nobody {
				got.Epoch = want.Epoch // the epoch of a free lane shows with the next claim
			}
			want.History, want.Unknown = nil, false
			if !reflect.DeepEqual(got, want) || !slices.EqualFunc(rows, history, sameRow) {
				x.Fatalf("%s: machine %d is\n%+v %v, the model says\n%+v %v", s.name, i, got, rows, want, history)
			}
		}
	}
}

func sameRow(a, b model.Row) bool {
	return a.Epoch == b.Epoch && a.Event == b.Event && a.StartedAt.Equal(b.StartedAt)
}
