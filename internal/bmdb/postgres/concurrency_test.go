package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

var backoff = fleet.Backoff{Initial: time.Hour, Maximum: time.Hour}

func events(t *testing.T, p *party, id fleet.MachineID) []string {
	t.Helper()
	rows, err := p.History(t.Context(), id, 100)
	p.must(err)
	list := make([]string, len(rows))
	for i, r := range rows {
		list[len(rows)-1-i] = string(r.Event)
	}
	return list
}

// TestClaimDecidesUnderItsLock: what a claimer decides on is read after the machine was locked.
// Here a backoff ends between its look at the agenda and its lock; deciding on what was there
// before would put the row off for an hour.
func TestClaimDecidesUnderItsLock(t *testing.T) {
	t.Parallel()
	for _, serializable := range []bool{false, true} {
		t.Run(fmt.Sprint("serializable=", serializable), func(t *testing.T) {
			t.Parallel()
			a, url, ids := stocked(t, 1, postgres.Options{Serializable: serializable})
			b := join(t, url, postgres.Options{Serializable: serializable, Silent: true})
			a.must(a.claim(a.session("a", time.Minute), 1)[0].Fail(t.Context(), bmdb.Failure{Cause: "x", Backoff: backoff}))
			b.shift.Advance(time.Minute)
			heir := b.session("b", 3*time.Hour)
			// The row is looked at too early, which it may be: rows are hints.
			server := pgserver.Shared(t)
			a.must(server.Exec(t.Context(), url[strings.LastIndexByte(url, '/')+1:strings.IndexByte(url, '?')], "UPDATE agenda SET due_at = 1 WHERE process = 'agent-start'"))
			b.pause.beforeLock(func() {
				if _, err := a.Retry(t.Context(), "op", ids[0], ""); err != nil {
					t.Error(err)
				}
			})
			if got := b.claim(heir, 5); len(got) != 1 {
				t.Errorf("claimed %d of what is not in backoff any more", len(got))
			}
			b.sound()
		})
	}
}

// TestClaimWhileAFactIsWritten: a claim does not wait for a machine that somebody is writing about;
// it is told when that is over, and finds the machine although it is now due since long before its
// floor.
func TestClaimWhileAFactIsWritten(t *testing.T) {
	t.Parallel()
	a, url, ids := stocked(t, 1, postgres.Options{})
	b := join(t, url, postgres.Options{})
	s, other := a.session("a", time.Minute), b.session("b", 3*time.Hour)
	a.must(a.claim(s, 1)[0].Fail(t.Context(), bmdb.Failure{Cause: "x", Backoff: backoff}))
	for range 3 { // floors rise
		if got := b.claim(other, 5); len(got) != 0 {
			t.Fatalf("claimed %d in backoff", len(got))
		}
		b.shift.Advance(10 * time.Minute)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := a.pause.next()
	defer stop.goOn()
	wg.Go(func() {
		if _, err := a.Retry(t.Context(), "op", ids[0], ""); err != nil {
			t.Error(err)
		}
	})
	<-stop.reached
	b.shift.Advance(time.Hour) // the backoff is over, by this clock
	if got := b.claim(other, 5); len(got) != 0 {
		t.Fatalf("claimed %d while a fact of it is being written", len(got))
	}
	if n := blocked(t, url); n != 0 {
		t.Fatalf("%d connections wait for a lock", n)
	}
	wake := b.Wake(fleet.ProcessAgentStart)
	stop.goOn()
	wg.Wait()
	for patience := time.After(30 * time.Second); ; {
		select {
		case <-wake:
		case <-patience:
			t.Fatal("nobody told that it is due")
		}
		if len(b.claim(other, 5)) == 1 {
			break
		}
	}
	b.sound()
}

// TestWritersMissNobody: two writers of facts about one machine, the second of which had to wait,
// leave the agenda that both facts together want.
func TestWritersMissNobody(t *testing.T) {
	t.Parallel()
	for _, serializable := range []bool{false, true} {
		t.Run(fmt.Sprint("serializable=", serializable), func(t *testing.T) {
			t.Parallel()
			a, url, ids := stocked(t, 1, postgres.Options{Serializable: serializable})
			b := join(t, url, postgres.Options{Serializable: serializable})
			var wg sync.WaitGroup
			defer wg.Wait()
			stop := a.pause.nextLocking()
			defer stop.goOn()
			wg.Go(func() {
				if err := bmdbtest.Quarantine(t.Context(), a.DB, "op", ids[0], "smells"); err != nil {
					t.Error(err)
				}
			})
			<-stop.reached
			wg.Go(func() {
				_, err := b.RequestInstall(t.Context(), "op", ids[0], fleet.InstallRequest{Image: fleet.Image{URL: "http://x", Digest: "sha256:0"}}, false)
				if err != nil {
					t.Error(err)
				}
			})
			await(t, "the second writer waits", func() bool { return blocked(t, url) == 1 })
			stop.goOn()
			wg.Wait()
			r, err := b.Machine(t.Context(), ids[0])
			b.must(err)
			if r.Quarantine == nil || r.InstallRequest == nil {
				t.Errorf("a fact is missing: %+v", r)
			}
			if got := b.claim(b.session("s", time.Minute), 5); len(got) != 0 {
				t.Error("claimed what is in quarantine")
			}
			b.sound()
		})
	}
}

// TestEndAgainstAnExtension: a session that is extended between being found overdue and being
// locked is not ended: its deadline is judged by a later statement than the one that locked it.
func TestEndAgainstAnExtension(t *testing.T) {
	t.Parallel()
	for _, serializable := range []bool{false, true} {
		t.Run(fmt.Sprint("serializable=", serializable), func(t *testing.T) {
			t.Parallel()
			a, url, _ := stocked(t, 1, postgres.Options{Serializable: serializable})
			b := join(t, url, postgres.Options{Serializable: serializable})
			s := a.session("late", time.Minute)
			work := a.claim(s, 1)[0]
			a.shift.Advance(2 * time.Minute) // but nobody has ended it
			b.shift.Advance(2 * time.Minute)
			extended := false
			b.pause.beforeEnd(func() {
				extended = true
				a.must(s.Extend(t.Context()))
			})
			if n, err := b.CollectSessions(t.Context()); n != 0 || err != nil || !extended {
				t.Errorf("ended %d sessions, %v (extended meanwhile: %t)", n, err, extended)
			}
			a.must(work.Finish(t.Context()))
			a.sound()
		})
	}
}

// TestEndAgainstALateCommit: a session is not ended while a commit of its holder is under way, and
// a commit that comes while it is being ended is refused.
func TestEndAgainstALateCommit(t *testing.T) {
	t.Parallel()
	t.Run("the commit is first", func(t *testing.T) {
		t.Parallel()
		a, url, ids := stocked(t, 1, postgres.Options{})
		b := join(t, url, postgres.Options{})
		work := a.claim(a.session("dead", 30*time.Second), 1)[0]
		b.shift.Advance(time.Minute)
		heir := b.session("heir", time.Hour)
		var wg sync.WaitGroup
		defer wg.Wait()
		stop := a.pause.next()
		defer stop.goOn()
		wg.Go(func() {
			if err := work.Cancel(t.Context(), "in time"); err != nil {
				t.Error(err)
			}
		})
		<-stop.reached
		if got := b.claim(heir, 1); len(got) != 0 {
			t.Error("took over what is being committed")
		}
		wg.Go(func() {
			if n, err := b.CollectSessions(t.Context()); n != 1 || err != nil {
				t.Errorf("collected %d, %v", n, err)
			}
		})
		await(t, "the end waits for the commit", func() bool { return blocked(t, url) == 1 })
		stop.goOn()
		wg.Wait()
		await(t, "it is told that the machine is due", func() bool { return len(b.claim(heir, 1)) == 1 })
		if got := events(t, b, ids[0]); slices.Contains(got, "expired") || !slices.Contains(got, "cancelled") {
			t.Errorf("history %q", got)
		}
		b.sound()
	})
	t.Run("the end is first", func(t *testing.T) {
		t.Parallel()
		a, url, ids := stocked(t, 1, postgres.Options{})
		b := join(t, url, postgres.Options{})
		work := a.claim(a.session("dead", 30*time.Second), 1)[0]
		b.shift.Advance(time.Minute)
		var wg sync.WaitGroup
		defer wg.Wait()
		stop := b.pause.next()
		defer stop.goOn()
		wg.Go(func() {
			if n, err := b.CollectSessions(t.Context()); n != 1 || err != nil {
				t.Errorf("collected %d, %v", n, err)
			}
		})
		<-stop.reached
		wg.Go(func() {
			err := work.Finish(t.Context(), bmdb.RecordHistory("late", "must not be there"))
			if !errors.Is(err, fleet.ErrLeaseLost) {
				t.Errorf("a late commit: %v", err)
			}
		})
		await(t, "the commit waits for the end", func() bool { return blocked(t, url) == 1 })
		stop.goOn()
		wg.Wait()
		_, err := b.CollectSessions(t.Context()) // the machine, if the commit had it locked just then
		b.must(err)
		if got := events(t, b, ids[0]); slices.Contains(got, "late") || !slices.Contains(got, "expired") {
			t.Errorf("history %q", got)
		}
		b.sound()
	})
}

// TestExtensionsWaitForNobody: with every connection of the pool in a commit that waits for a
// stranger's lock, the session of these commits is extended.
func TestExtensionsWaitForNobody(t *testing.T) {
	t.Parallel()
	p, url, ids := stocked(t, 3, postgres.Options{Connections: 2, Lease: time.Minute})
	s := p.session("a", time.Minute)
	works := p.claim(s, 3)
	var wg sync.WaitGroup
	defer wg.Wait()
	tx := stranger(t, url, "SELECT id FROM machine WHERE id = ANY($1) FOR UPDATE", ids)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	for _, w := range works {
		wg.Go(func() {
			if err := w.Note(t.Context(), bmdb.RecordHistory("waited", "")); err != nil {
				t.Error(err)
			}
		})
	}
	await(t, "both connections wait", func() bool { return blocked(t, url) == 2 })
	before := query[int64](t, url, "SELECT extended_at FROM session WHERE id = $1", string(s.ID()))
	p.must(s.Extend(t.Context()))
	if after := query[int64](t, url, "SELECT extended_at FROM session WHERE id = $1", string(s.ID())); after <= before {
		t.Error("the session was not extended")
	}
	if n := blocked(t, url); n != 2 {
		t.Errorf("%d commits still wait: the test tests nothing", n)
	}
	p.must(tx.Rollback(t.Context()))
	wg.Wait()
	for _, w := range works {
		p.must(w.Finish(t.Context()))
	}
	p.sound()
}

// TestStrangerInTheWay: a transaction that somebody has left open on a machine costs that machine's
// commits, which say so, and nobody else anything.
func TestStrangerInTheWay(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	// A lock is waited for briefly. How long our own transactions take does not matter here.
	p := join(t, url+"&lock_timeout=400&idle_in_transaction_session_timeout=0", postgres.Options{})
	ids := p.stock(5)
	s := p.session("a", time.Minute)
	mine := p.claim(s, 1)[0]
	tx := stranger(t, url, "SELECT id FROM machine WHERE id IN ($1, $2) FOR UPDATE", string(mine.Subject.Machine), string(ids[4]))
	works := p.claim(s, 5)
	if len(works) != 3 {
		t.Errorf("claimed %d, want the three that nobody has", len(works))
	}
	if err := mine.Cancel(t.Context(), "x"); fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("a commit on what the stranger has: %v", err)
	}
	for _, w := range works {
		p.must(w.Cancel(t.Context(), "x"))
	}
	p.must(tx.Rollback(t.Context()))
	p.must(mine.Cancel(t.Context(), "x"))
	if got := p.claim(s, 9); len(got) != 5 {
		t.Errorf("claimed %d when the stranger had gone, want all", len(got))
	}
	p.sound()
}

// TestStoppedInsideATransaction: the server ends the transaction of a holder that says nothing
// more, before its lease is over; its commit is not accepted, and what it held is taken over.
func TestStoppedInsideATransaction(t *testing.T) {
	t.Parallel()
	a, url, ids := stocked(t, 1, postgres.Options{Lease: 5 * time.Second})
	b := join(t, url, postgres.Options{})
	work := a.claim(a.session("stopped", time.Hour), 1)[0]
	b.shift.Advance(2 * time.Hour)
	heir := b.session("heir", 24*time.Hour)
	reached := false
	// A busy host may be ended before it has said everything.
	for tries := 0; !reached && tries < 20; tries++ {
		stop, ended := a.pause.next(), make(chan error, 1)
		defer stop.goOn()
		go func() {
			ended <- work.Finish(context.WithoutCancel(t.Context()), bmdb.RecordHistory("late", "must not be there"))
		}()
		var err error
		select {
		case <-stop.reached:
			reached = true
			await(t, "it is taken over", func() bool { return len(b.claim(heir, 1)) == 1 })
			stop.goOn()
			err = <-ended
		case err = <-ended:
		}
		if err == nil || fleet.KindOf(err) != fleet.KindTemporary && (!reached || !errors.Is(err, fleet.ErrLeaseLost)) {
			t.Fatalf("the commit of a stopped holder: %v", err)
		}
	}
	if got := events(t, b, ids[0]); !reached || slices.Contains(got, "late") || !slices.Contains(got, "expired") {
		t.Errorf("stopped within a commit: %t; history %q", reached, got)
	}
	b.sound()
}

// TestNoDeadlocks: claims, ends, facts of single machines and of whole providers, people and
// heartbeats, from several processes at once, take their locks in one order.
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	// However busy the computer is, nobody gives up waiting: the server ends deadlocks after a second.
	url := migrated(t) + "&lock_timeout=120000"
	a := join(t, url, postgres.Options{})
	ids := a.stock(20)
	parties := []*party{a, join(t, url, postgres.Options{}), join(t, url, postgres.Options{})}
	ctx := t.Context()
	var wg sync.WaitGroup
	try := func(what string, err error) {
		if err != nil && fleet.KindOf(err) != fleet.KindConflict && fleet.KindOf(err) != fleet.KindLeaseLost {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i, p := range parties {
		s := p.session(fmt.Sprint("s", i), time.Minute)
		wg.Go(func() {
			for range 15 {
				c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 7})
				try("claim", err)
				for _, w := range c.Works {
					wg.Go(func() { try("cancel", w.Cancel(ctx, "again")) })
				}
			}
		})
		wg.Go(func() {
			for n := range 15 {
				c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessUpdate, Limit: 1})
				try("claim update", err)
				for _, w := range c.Works {
					var changes []bmdb.Change
					for _, id := range slices.Backward(ids) {
						changes = append(changes, bmdb.SetProvided(id, "", fleet.Provided{Status: fleet.ProviderStatusActive, Detail: fmt.Sprint(n)}))
					}
					try("update", w.Cancel(ctx, "again", changes...))
				}
			}
		})
		wg.Go(func() { // as the lanes of the dead are freed, many machines at a time
			for range 15 {
				err := p.pause.Engine.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
					mine := slices.Clone(ids)
					rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
					_, err := tx.LockMachines(ctx, mine, false)
					return err
				})
				try("lock", err)
			}
		})
		wg.Go(func() {
			for n := range 15 {
				id := ids[(n*7+i)%len(ids)]
				try("quarantine", bmdbtest.Quarantine(ctx, p.DB, "op", id, "x"))
				try("unquarantine", bmdbtest.Unquarantine(ctx, p.DB, "op", id, "x"))
				try("listener", p.ListenerAlive(ctx, time.Minute, time.Duration(n+1)*time.Minute))
				_, err := p.RecomputeAgenda(ctx, 10)
				try("recompute", err)
			}
		})
	}
	wg.Wait()
	if n := query[int](t, url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	a.sound()
}

// TestServerRestarts: with the server crashed and started again under load, work goes on, and
// nothing is lost or done twice.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), pgserver.Options{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	name, err := server.Create(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	url := server.URL(name)
	if err := migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	p := join(t, url, postgres.Options{})
	ids := make([]fleet.MachineID, 20)
	for i := range ids {
		ids[i] = fleet.NewMachineID()
	}
	p.must(stock(t, p, ids))

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	progress := func() int {
		mu.Lock()
		defer mu.Unlock()
		return done
	}
	s := p.session("worker", 5*time.Minute) // longer than a busy host takes to start the server again
	wg.Go(func() { _ = s.Run(ctx) })
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 3})
				if err != nil {
					select { // as a loop pauses after an error
					case <-time.After(20 * time.Millisecond):
					case <-ctx.Done():
					}
					continue
				}
				for _, w := range c.Works {
					for ctx.Err() == nil { // the outcome of a commit may be unknown: it is repeated
						if err := w.Cancel(ctx, "again"); err == nil || errors.Is(err, fleet.ErrLeaseLost) {
							break
						}
					}
					mu.Lock()
					done++
					mu.Unlock()
				}
			}
		})
	}
	for range 3 {
		before := progress()
		await(t, "work is done", func() bool { return progress() > before+20 })
		server.Stop()
		p.must(server.Resume(t.Context()))
		await(t, "the session is extended", func() bool { return s.Extend(t.Context()) == nil })
	}
	before := progress()
	await(t, "work goes on", func() bool { return progress() > before+20 })
	if !s.Trusted() {
		t.Error("the session was lost")
	}
	p.must(s.Extend(t.Context())) // hands back what lost replies left
	cancel()
	wg.Wait()
	p.must(s.Close(t.Context(), "done"))
	p.sound()
	if n := query[int](t, url, `SELECT count(*) FROM (SELECT subject, epoch FROM history WHERE started_at > 0
		GROUP BY subject, process, epoch HAVING count(*) <> 1) x`); n != 0 {
		t.Errorf("%d works have more than one end", n)
	}
}
