package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAnOlderPolicyOverwritesNothing: a machine is judged under a new policy by one process, while
// a write of another one is about to lock it. That write judges it under the new policy as well
// (rule 10): the environment is read after the locks.
func TestAnOlderPolicyOverwritesNothing(t *testing.T) {
	t.Parallel()
	for _, serializable := range []bool{false, true} {
		t.Run(fmt.Sprint("serializable=", serializable), func(t *testing.T) {
			t.Parallel()
			options := postgres.Options{Serializable: serializable, Silent: true}
			a, url, ids := stocked(t, 1, options)
			b := join(t, url, options)
			work := a.claim(a.session("a", time.Minute), 1)[0]
			var g fleet.TakeoverGeneration
			a.must(work.Note(t.Context(), bmdb.MintTakeover(0, &g)))
			a.must(work.Finish(t.Context(), bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: g, PublicKey: []byte("k")})))
			a.must(a.ListenerAlive(t.Context(), time.Hour, time.Minute))
			agent := bmdb.AgentIdentity{Machine: ids[0], TakeoverGeneration: g, PublicKey: []byte("k")}
			var began time.Time
			const patience = 3 * time.Hour
			heir := b.session("b", 9*time.Hour)
			for name, write := range map[string]func() error{
				"a fact":       func() error { return a.RecordSpoken(t.Context(), agent, "boot1") },
				"another fact": func() error { return a.RecordHardware(t.Context(), agent, []byte(time.Now().String()), nil) },
				"a person":     func() error { return bmdbtest.Quarantine(t.Context(), a.DB, "op", ids[0], "x") },
			} {
				set := fleet.Policy{}
				a.pause.beforeLock(func() {
					p := fleet.DefaultPolicy()
					p.SilentAfter, p.NeverSpokeAfter = patience, patience
					p.InstallTimeout = time.Duration(len(name)) * time.Minute // one that is new each time
					var err error
					if set, err = b.SetPolicy(t.Context(), p); err != nil {
						t.Error(err)
					}
					if n, err := b.RecomputeAgenda(t.Context(), 10); n == 0 || err != nil {
						t.Errorf("judged %d, %v", n, err)
					}
					began, err = b.Now(t.Context())
					b.must(err)
				})
				a.must(write())
				number := query[int64](t, url, "SELECT policy / 1000 FROM machine_state WHERE machine = $1", string(ids[0]))
				if set.Number == 0 || number != set.Number {
					t.Errorf("%s: judged under policy %d, and the newest is %d", name, number, set.Number)
				}
				if name == "a person" {
					a.must(bmdbtest.Unquarantine(t.Context(), a.DB, "op", ids[0], "x"))
				}
				due := time.UnixMicro(query[int64](t, url, "SELECT due_agent_start FROM machine WHERE id = $1", string(ids[0])))
				if due.Before(began.Add(patience - time.Minute)) {
					t.Errorf("%s: silence is due at %s, although it is borne for %s", name, due, patience)
				}
			}
			if c, err := heir.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1}); err != nil || len(c.Works) != 0 {
				t.Errorf("claimed %d, %v", len(c.Works), err)
			}
			b.sound()
		})
	}
}

// TestEndsDoNotWaitForAStranger: nine ends come while one waits for a machine that a stranger has
// locked. None waits with it (rules 1 and 12).
func TestEndsDoNotWaitForAStranger(t *testing.T) {
	t.Parallel()
	// A lock is waited for longer than this test waits: two fifths of the lease.
	p, url, _ := stocked(t, 10, postgres.Options{Lease: 5 * time.Minute})
	works := p.claim(p.session("a", time.Hour), 10)
	if len(works) != 10 {
		t.Fatalf("claimed %d", len(works))
	}
	tx := stranger(t, url, "SELECT id FROM machine WHERE id = $1 FOR UPDATE", string(works[0].Subject.Machine))
	var done atomic.Int32
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	for i, w := range works {
		wg.Go(func() {
			if err := w.Cancel(t.Context(), "over"); err != nil {
				t.Error(err)
			}
			done.Add(1)
		})
		if i == 0 {
			await(t, "it waits for the stranger", func() bool { return blocked(t, url) == 1 })
		}
	}
	await(t, "the others have ended", func() bool { return int(done.Load()) == len(works)-1 })
	if n := blocked(t, url); n != 1 {
		t.Errorf("%d connections wait for a lock, want the one of the stranger's machine", n)
	}
	p.must(tx.Rollback(t.Context()))
	wg.Wait()
	if n := query[int](t, url, "SELECT count(*) FROM history WHERE event = 'cancelled'"); n != len(works) {
		t.Errorf("%d ends in history, want %d", n, len(works))
	}
	p.sound()
}

// TestALockIsWaitedForBriefly: what a stranger has makes no commit wait for ever, by default.
func TestALockIsWaitedForBriefly(t *testing.T) {
	t.Parallel()
	p, url, _ := stocked(t, 1, postgres.Options{Lease: 5 * time.Second})
	w := p.claim(p.session("a", time.Minute), 1)[0]
	tx := stranger(t, url, "SELECT id FROM machine WHERE id = $1 FOR UPDATE", string(w.Subject.Machine))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := w.Cancel(ctx, "x"); fleet.KindOf(err) != fleet.KindTemporary || ctx.Err() != nil {
		t.Errorf("a commit on what the stranger has: %v, context: %v", err, ctx.Err())
	}
	p.must(tx.Rollback(t.Context()))
	await(t, "it ends", func() bool {
		err := w.Cancel(t.Context(), "x")
		if err != nil && fleet.KindOf(err) != fleet.KindTemporary {
			t.Fatal(err)
		}
		return err == nil
	})
}

// TestStrangerAtADeadSession: a dead session whose row somebody has locked keeps what it holds for
// now. A claim that meets it takes everything else, and does not wait for the stranger again.
func TestStrangerAtADeadSession(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	p := join(t, url+"&lock_timeout=400&idle_in_transaction_session_timeout=0", postgres.Options{})
	p.stock(3)
	dead := p.session("dead", time.Minute)
	p.claim(dead, 1)
	p.shift.Advance(2 * time.Minute)
	s := p.session("a", time.Minute)
	tx := stranger(t, url, "SELECT id FROM session WHERE id = $1 FOR KEY SHARE", string(dead.ID()))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 5})
	if err != nil || len(c.Works) != 2 {
		t.Errorf("claimed %d, %v, want the two that nobody has", len(c.Works), err)
	}
	p.must(tx.Rollback(t.Context()))
	if got := p.claim(s, 5); len(got) != 1 {
		t.Errorf("claimed %d when the stranger had gone, want the one that was left", len(got))
	}
	p.sound()
}

// TestOneLockedMachineHoldsNoDutyUp: what the janitor does to many machines it does to all but the
// one that a stranger has locked, and to that one when the stranger has gone.
func TestOneLockedMachineHoldsNoDutyUp(t *testing.T) {
	t.Parallel()
	impatient := func(t *testing.T) (p *party, url string) {
		t.Helper()
		url = migrated(t)
		return join(t, url+"&lock_timeout=400&idle_in_transaction_session_timeout=0", postgres.Options{}), url
	}
	const lock = "SELECT id FROM machine WHERE id = $1 FOR UPDATE"
	t.Run("installs expire", func(t *testing.T) {
		t.Parallel()
		p, url := impatient(t)
		agents := bmdbtest.Manage(t, p.DB, 3, &fleet.InstallRequest{Image: fleet.Image{URL: "http://x/y"}})
		for _, a := range agents {
			o, err := p.HandOutInstall(t.Context(), a, 0, 0)
			p.must(err)
			p.shift.Advance(o.Timeout / 10) // the first one's deadline is the first
		}
		p.shift.Advance(24 * time.Hour)
		tx := stranger(t, url, lock, string(agents[0].Machine))
		if n, err := p.ExpireInstalls(t.Context(), 10); n != 2 || fleet.KindOf(err) != fleet.KindTemporary {
			t.Errorf("expired %d, %v, want the two that nobody has locked, and to be told of the third", n, err)
		}
		p.must(tx.Rollback(t.Context()))
		if n, err := p.ExpireInstalls(t.Context(), 10); n != 1 || err != nil {
			t.Errorf("expired %d, %v when the stranger had gone", n, err)
		}
		p.sound()
	})
	t.Run("what the dead hold is freed", func(t *testing.T) {
		t.Parallel()
		p, url := impatient(t)
		p.stock(5)
		a, b := p.session("a", time.Minute), p.session("b", time.Minute)
		mine := p.claim(a, 3)
		p.claim(b, 2)
		p.shift.Advance(2 * time.Minute)
		tx := stranger(t, url, lock, string(mine[0].Subject.Machine))
		if n, err := p.CollectSessions(t.Context()); n != 2 || err != nil {
			t.Errorf("ended %d sessions, %v", n, err)
		}
		const held, freed = "SELECT count(*) FROM machine WHERE session <> ''", "SELECT count(*) FROM session WHERE freed = 1 AND component IN ('a', 'b')"
		if n, done := query[int](t, url, held), query[int](t, url, freed); n != 1 || done != 1 {
			t.Errorf("%d machines are held, and %d sessions hold none; want the stranger's machine, and the other session", n, done)
		}
		p.must(tx.Rollback(t.Context()))
		_, err := p.CollectSessions(t.Context())
		p.must(err)
		if n, done := query[int](t, url, held), query[int](t, url, freed); n != 0 || done != 2 {
			t.Errorf("%d machines are held, and %d sessions hold none, when the stranger had gone", n, done)
		}
		p.sound()
	})
	t.Run("all others are checked", func(t *testing.T) {
		t.Parallel()
		p, url := impatient(t)
		ids := p.stock(3)
		slices.Sort(ids)
		p.must(p.RegisterProvider(t.Context(), "p2", "test", 0))
		tx := stranger(t, url, lock, string(ids[1]))
		_, err := tx.Exec(t.Context(), "SELECT name FROM provider WHERE name = $1 FOR UPDATE", string(provider))
		p.must(err)
		_, err = bmdb.Exec(t.Context(), p.pause, "DELETE FROM agenda WHERE process IN ('agent-start', 'update')")
		p.must(err)
		want := func(part string, findings []bmdb.Finding, err error, found []string, passed ...string) {
			t.Helper()
			var about []string
			for _, f := range findings {
				about = append(about, f.Subject)
			}
			if slices.Sort(about); !slices.Equal(about, found) || fleet.KindOf(err) != fleet.KindTemporary {
				t.Fatalf("%s: found %q, %v", part, about, err)
			}
			for _, one := range passed {
				if !strings.Contains(err.Error(), one) {
					t.Errorf("%s: it does not tell of %s: %v", part, one, err)
				}
			}
		}
		first, last := string(ids[0]), string(ids[2])
		found, next, err := p.CheckAfter(t.Context(), "", 10)
		if want("until the locked one", found, err, []string{first}, string(ids[1])); next != ids[1] {
			t.Errorf("it goes on behind %s", next)
		}
		found, next, err = p.CheckAfter(t.Context(), next, 10)
		if want("behind it", found, err, []string{last, "provider/p2"}, "provider p1"); next != "" {
			t.Errorf("it goes on behind %s", next)
		}
		found, err = p.Check(t.Context())
		want("all", found, err, []string{first, last, "provider/p2"}, string(ids[1]), "provider p1")
	})
}

// TestAnExtensionEndsWithItsContext: one that hangs ends when its caller gives up, long before the
// server would end it: there is time to try another one within the trust window (rule 5).
func TestAnExtensionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p, url, _ := stocked(t, 1, postgres.Options{Lease: 5 * time.Minute})
	s := p.session("a", time.Hour)
	tx := stranger(t, url, "SELECT id FROM session WHERE id = $1 FOR UPDATE", string(s.ID()))
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	extended := make(chan error, 1)
	go func() { extended <- s.Extend(ctx) }()
	await(t, "the extension hangs", func() bool { return blocked(t, url) == 1 })
	cancel()
	select {
	case err := <-extended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("an extension outlives its context")
	}
	p.must(tx.Rollback(t.Context()))
	p.must(s.Extend(t.Context()))
}

// TestOneHostIsTakenInByOneOfTwoPasses (rule 1): a host is new in two lists, and two processes
// record it at the same time. The one that waits sees what it has waited for.
func TestOneHostIsTakenInByOneOfTwoPasses(t *testing.T) {
	t.Parallel()
	for _, serializable := range []bool{false, true} {
		t.Run(fmt.Sprint("serializable=", serializable), func(t *testing.T) {
			t.Parallel()
			options := postgres.Options{Serializable: serializable}
			url := migrated(t)
			a, b := join(t, url, options), join(t, url, options)
			record := make(map[*party]func() error)
			for p, name := range map[*party]fleet.ProviderName{a: "all", b: "rack"} {
				p.must(a.RegisterProvider(t.Context(), "all", "list", 0))
				p.must(a.RegisterProvider(t.Context(), "rack", "list", 0))
				c, err := p.session("provisioner", time.Minute).Claim(t.Context(), bmdb.ClaimRequest{
					Process: fleet.ProcessProvision, Providers: []fleet.ProviderName{name}, Limit: 1,
				})
				p.must(err)
				machine, address := fleet.NewMachineID(), netip.MustParseAddr("192.0.2.1")
				var opened []fleet.Intent
				p.must(c.Works[0].Note(t.Context(), bmdb.OpenIntents(0, []bmdb.NewIntent{{Capacity: "n1", Machine: machine, Token: fleet.NewToken()}}, &opened)))
				record[p] = func() error {
					return c.Works[0].Note(t.Context(), bmdb.UnlessTaken(address, nil),
						bmdb.CloseIntentProvided(machine, "n1", fleet.Provided{Status: fleet.ProviderStatusActive, Address: address}))
				}
			}
			stop := b.pause.next()
			defer stop.goOn()
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- record[b]() }()
			<-stop.reached
			go func() { second <- record[a]() }()
			await(t, "the second one waits, or is done", func() bool { return blocked(t, url) == 1 || len(second) == 1 })
			stop.goOn()
			if err := <-first; err != nil {
				t.Errorf("the first one: %v", err)
			}
			if err := <-second; !errors.Is(err, bmdb.ErrTaken) {
				t.Errorf("the host was taken in twice: %v", err)
			}
		})
	}
}

// TestAMachineThatWasLockedIsJudgedLater: the janitor comes back to it, however long it has been
// due.
func TestAMachineThatWasLockedIsJudgedLater(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	p := join(t, url+"&lock_timeout=400&idle_in_transaction_session_timeout=0", postgres.Options{})
	ids := p.stock(2)
	p.shift.Advance(10 * time.Minute)
	other := stranger(t, url, "SELECT 1 FROM machine WHERE id = $1 FOR UPDATE", string(ids[0]))
	if _, err := other.Exec(t.Context(), "UPDATE machine_state SET reason = 'old'"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.RecomputeAgenda(t.Context(), 10); fleet.KindOf(err) != fleet.KindTemporary {
		t.Fatalf("a machine is locked: %v", err)
	}
	p.must(other.Commit(t.Context()))
	p.shift.Advance(2 * time.Minute)
	if _, err := p.RecomputeAgenda(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if old := query[int](t, url, "SELECT count(*) FROM machine_state WHERE reason = 'old'"); old != 0 {
		t.Errorf("%d machines were not judged again", old)
	}
}

// TestLeversThatChangeMeanwhile (rule 10): a machine that was read before the levers of its
// provider changed, and judged under the policy from after that, is judged again.
func TestLeversThatChangeMeanwhile(t *testing.T) {
	t.Parallel()
	fail := func(p *party, work *bmdb.Work) {
		p.must(work.Fail(t.Context(), bmdb.Failure{Cause: "no answer", Answer: fleet.AnswerNone, Backoff: fleet.Backoff{Initial: time.Hour}}))
	}
	for name, write := range map[string]func(p *party, s *bmdb.Session, work *bmdb.Work, before func()){
		"an end": func(p *party, _ *bmdb.Session, work *bmdb.Work, before func()) {
			p.pause.beforeEnvironment(before)
			fail(p, work)
		},
		"a claim": func(p *party, s *bmdb.Session, work *bmdb.Work, before func()) {
			fail(p, work)
			p.shift.Advance(2 * time.Hour)
			p.pause.beforeEnvironment(before)
			p.claim(s, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, url, ids := stocked(t, 1, postgres.Options{})
			b := join(t, url, postgres.Options{})
			s := a.session("a", 9*time.Hour)
			work := a.claim(s, 1)[0]
			write(a, s, work, func() { b.must(b.SetLevers(t.Context(), provider, []fleet.Lever{fleet.LeverReboot})) })
			if levers := query[string](t, url, "SELECT levers FROM provider"); levers != string(fleet.LeverReboot) {
				t.Fatalf("the levers are %q: the test tests nothing", levers)
			}
			for range 2 {
				if _, err := b.RecomputeAgenda(t.Context(), 10); err != nil {
					t.Fatal(err)
				}
			}
			if due := query[int64](t, url, "SELECT due_recovery FROM machine WHERE id = $1", string(ids[0])); due == 0 {
				t.Error("recovery has a step for the machine, and no entry in the agenda")
			}
			b.sound()
		})
	}
}
