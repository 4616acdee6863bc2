package provider

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// I10: a process that is stopped while the database is asked may see the answer before it sees that
// its patience is over. The answer counts as none all the same, and the calls of other processes do
// not wait as long as the stop was.
func TestAStoppedProcessStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const stopped = 10 * time.Minute
		l := newLimited(t, time.Second)
		one, other := l.process(l.db), l.process(l.db)
		q := one.queue
		q.mu.Lock()
		asked := time.Now().Add(-stopped)
		q.answered(t.Context(), fleet.TurnRequest{Spacing: l.spacing, Count: 1}, fleet.TurnGrant{First: asked, Next: asked.Add(l.spacing)}, asked)
		q.mu.Unlock()
		if said := one.pacing(); !strings.Contains(said, "the database hands out no turns") {
			t.Errorf("calls are said to be paced with %q", said)
		}
		time.Sleep(turnsRetry)
		var callers sync.WaitGroup
		for _, p := range []*Pacer{one, other} {
			callers.Go(func() {
				at := time.Now()
				if err := p.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				if waited := time.Since(at); waited > 2*turnsPatience {
					t.Errorf("a call waits %s for its turn", waited)
				}
			})
			time.Sleep(time.Second)
		}
		callers.Wait()
		time.Sleep(2 * turnsPatience)
	})
}

// I10: however long the database took to answer one process, the turns of the others come a few
// seconds later at most.
func TestNoTurnIsFarAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, time.Second)
		x := &trouble{Turns: l.db}
		x.takes.Store(int64(turnsPatience - 10*time.Millisecond))
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		var callers sync.WaitGroup
		for range 3 {
			p := l.process(x)
			callers.Go(func() {
				for p.Wait(ctx) == nil {
					l.started()
				}
			})
		}
		for range 50 {
			time.Sleep(5 * time.Second)
			at := time.Now()
			grant, err := l.db.ReserveTurns(ctx, fleet.TurnRequest{Limit: "the limit", Spacing: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			// Behind what the answers take are the turns that the three have: one each.
			if ahead, most := grant.Next.Sub(at), turnsPatience+3*l.spacing; ahead > most {
				t.Errorf("the next turn is in %s, want %s at most", ahead, most)
			}
		}
		callers.Wait()
		time.Sleep(2 * turnsPatience)
		l.kept(4)
	})
}

// I10: one answer that took long is not remembered while nobody calls, and soon forgotten where
// somebody does: it costs nobody a turn that is to be had.
func TestOneSlowAnswerIsForgotten(t *testing.T) {
	t.Parallel()
	const slow = 3900 * time.Millisecond
	for _, c := range []struct {
		idle, between time.Duration
		slowCalls     int
	}{
		{5 * time.Minute, 10 * time.Second, 0}, {time.Second, time.Second, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimited(t, 100*time.Millisecond)
			x := &trouble{Turns: l.db}
			p := l.process(x)
			x.takes.Store(int64(slow))
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			x.takes.Store(0)
			if said := p.pacing(); !strings.Contains(said, "the database took up to 3.9s lately") {
				t.Errorf("calls are said to be paced with %q after an answer of %s", said, slow)
			}
			time.Sleep(c.idle)
			for i := range 8 {
				at := time.Now()
				said := p.pacing()
				if err := p.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				if waited := time.Since(at); i >= c.slowCalls && waited > 200*time.Millisecond {
					t.Errorf("call %d after an idle time of %s waits %s for its turn", i, c.idle, waited)
				}
				if i > c.slowCalls && strings.Contains(said, "the database") {
					t.Errorf("before call %d after an idle time of %s, calls are said to be paced with %q", i, c.idle, said)
				}
				time.Sleep(c.between)
			}
			time.Sleep(2 * turnsPatience)
		})
	}
}
