package postgres_test

import (
	"fmt"
	"maps"
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

// silent opens a new database with n machines that want recovery, of which so many may be had at
// once.
func silent(t *testing.T, n, atOnce int, options postgres.Options) (p *party, url string) {
	t.Helper()
	p, url, _ = stocked(t, n, options)
	p.must(bmdbtest.Silence(t.Context(), p.DB, provider, atOnce))
	p.shift.Advance(time.Second)
	return p, url
}

// late is another process at a database of silent machines.
func late(t *testing.T, url string, options postgres.Options) *party {
	t.Helper()
	p := join(t, url, options)
	p.shift.Advance(time.Second)
	return p
}

func (p *party) recover(s *bmdb.Session, limit int) bmdb.Claim {
	p.t.Helper()
	c, err := s.Claim(p.t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessRecovery, Limit: limit})
	p.must(err)
	return c
}

// TestSlotsAreNotTakenTwice: of two claimers that both saw the last slot free, the second waits for
// the first, and then sees that it is not free any more; also when there was no row of it yet.
func TestSlotsAreNotTakenTwice(t *testing.T) {
	t.Parallel()
	for _, serializable := range []bool{false, true} {
		for _, made := range []bool{true, false} {
			t.Run(fmt.Sprint("serializable=", serializable, ",made=", made), func(t *testing.T) {
				t.Parallel()
				a, url := silent(t, 4, 2, postgres.Options{Serializable: serializable})
				b := late(t, url, postgres.Options{Serializable: serializable, Silent: true})
				sa, sb := a.session("a", time.Minute), b.session("b", time.Minute)
				if made {
					for _, w := range a.recover(sa, 2).Works {
						a.must(w.Cancel(t.Context(), "the slots are there now"))
					}
				}
				a.recover(sa, 1) // one is left
				if !made {
					// As if the row had never been needed.
					name := url[strings.LastIndexByte(url, '/')+1 : strings.IndexByte(url, '?')]
					a.must(pgserver.Shared(t).Exec(t.Context(), name, "DELETE FROM concurrency_limit"))
				}
				var wg sync.WaitGroup
				defer wg.Wait()
				stop := a.pause.next()
				defer stop.goOn()
				var first, second bmdb.Claim
				claim := func(s *bmdb.Session, limit int, c *bmdb.Claim) {
					var err error
					if *c, err = s.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessRecovery, Limit: limit}); err != nil {
						t.Error(err)
					}
				}
				wg.Go(func() { claim(sa, 1, &first) })
				<-stop.reached
				began, err := b.Now(t.Context())
				a.must(err)
				wg.Go(func() { claim(sb, 3, &second) })
				await(t, "the second claimer waits", func() bool { return blocked(t, url) == 1 })
				stop.goOn()
				wg.Wait()
				if n, m := len(first.Works), len(second.Works); n+m != 1 {
					t.Errorf("with one slot left, one claimed %d, the other %d", n, m)
				}
				// the least that an untold claimer waits
				if len(second.Works) == 0 && second.NextDue.Before(began.Add(100*time.Millisecond)) {
					t.Errorf("told to look again at %s, having begun at %s", second.NextDue, began)
				}
				b.sound()
			})
		}
	}
}

// TestSlotsUnderTheNewestPolicy: a limit that was lowered before a claimer had its locks is obeyed.
func TestSlotsUnderTheNewestPolicy(t *testing.T) {
	t.Parallel()
	a, url := silent(t, 5, 3, postgres.Options{})
	b := late(t, url, postgres.Options{})
	sa, sb := a.session("a", time.Minute), b.session("b", time.Minute)
	a.recover(sa, 1)
	b.pause.beforeLimit(func() {
		if err := bmdbtest.SetAtOnce(t.Context(), a.DB, 2); err != nil {
			t.Error(err)
		}
	})
	if got := b.recover(sb, 5).Works; len(got) != 1 {
		t.Errorf("claimed %d under a limit of 2, with one at work already", len(got))
	}
	b.sound()
}

// TestStorm: many claimers of several processes never have more at once than the limit, at each of
// two providers, while holders die, people interfere and the limit changes; in the end no slot is
// lost, and nobody has deadlocked.
func TestStorm(t *testing.T) {
	t.Parallel()
	for _, serializable := range []bool{false, true} {
		t.Run(fmt.Sprint("serializable=", serializable), func(t *testing.T) {
			t.Parallel()
			a, url := silent(t, 12, 3, postgres.Options{Serializable: serializable})
			ids := make([]fleet.MachineID, 12)
			for i := range ids {
				ids[i] = fleet.NewMachineID()
			}
			a.must(bmdbtest.Stock(t.Context(), a.DB, "p2", ids, nil))
			a.must(bmdbtest.Silence(t.Context(), a.DB, "p2", 3))
			a.shift.Advance(time.Second)
			s := &stormy{
				t: t, running: make(map[*bmdb.Work]bool), peak: make(map[fleet.ProviderName]int), want: 100, serializable: serializable,
				ended: make(chan struct{}, 1), revoked: make(map[fleet.MachineID]int),
			}
			var wg, workers sync.WaitGroup
			parties := []*party{a}
			for range 2 {
				parties = append(parties, late(t, url, postgres.Options{Serializable: serializable}))
			}
			for i, p := range parties {
				for k := range 2 {
					workers.Go(func() { s.work(p, fmt.Sprintf("%d.%d", i, k)) })
				}
			}
			wg.Go(func() { // the operator, not more often than works end
				n := 0
				for range s.ended {
					n++
					revoked := s.revoke(ids[n%len(ids)])
					s.try("quarantine", bmdbtest.Quarantine(t.Context(), a.DB, "op", ids[n%len(ids)], "x"))
					revoked()
					s.try("unquarantine", bmdbtest.Unquarantine(t.Context(), a.DB, "op", ids[n%len(ids)], "x"))
					// Whoever comes back has to fall silent again before it is recovered.
					s.try("policy and silence", bmdbtest.Silence(t.Context(), a.DB, "p2", 1+n%3))
				}
			})
			workers.Wait()
			close(s.ended)
			wg.Wait()
			if s.peak[provider] < 2 || s.peak["p2"] < 2 {
				t.Errorf("at most %v ran at once: the test tests nothing", s.peak)
			}
			if n := query[int](t, url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
				t.Errorf("%d deadlocks", n)
			}
			a.shift.Advance(time.Minute) // those that died
			a.must(bmdbtest.Silence(t.Context(), a.DB, "p2", 3))
			a.shift.Advance(time.Second)
			if got := len(a.recover(a.session("last", time.Hour), 24).Works); got != 6 {
				t.Errorf("claimed %d in the end, want three at each of two providers", got)
			}
			a.sound()
		})
	}
}

// stormy counts what is at work at each provider: from the claim's return until the end begins, or
// until somebody is about to put the machine in quarantine, which takes the lane and its slot from
// a holder who does not know yet. What is claimed while that goes on is not counted: it may have
// been claimed before or afterwards. So stormy counts less than there is in truth.
type stormy struct {
	t       *testing.T
	mu      sync.Mutex
	running map[*bmdb.Work]bool
	peak    map[fleet.ProviderName]int
	// revokes counts quarantines; revoked says which was the last of a machine, and revoking is the
	// machine that is being put there.
	revokes  int
	revoked  map[fleet.MachineID]int
	revoking fleet.MachineID
	done     int
	want     int
	// ended holds something after a work has ended.
	ended chan struct{}

	serializable bool
}

func (s *stormy) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done >= s.want || s.t.Failed()
}

// try fails the test unless it was done, is void, or is to be tried again: serializable
// transactions may be undone by others again and again.
func (s *stormy) try(what string, err error) {
	switch kind := fleet.KindOf(err); {
	case err == nil, kind == fleet.KindConflict, kind == fleet.KindLeaseLost, kind == fleet.KindTemporary && s.serializable:
	default:
		s.t.Errorf("%s: %v", what, err)
	}
}

// revoke is called before a machine is put in quarantine, and what it returns is called afterwards.
func (s *stormy) revoke(machine fleet.MachineID) (revoked func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoking = machine
	maps.DeleteFunc(s.running, func(w *bmdb.Work, _ bool) bool { return w.Subject.Machine == machine })
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.revoking = ""
		s.revokes++
		s.revoked[machine] = s.revokes
	}
}

// claiming returns how many quarantines there have been before a claim.
func (s *stormy) claiming() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revokes
}

// claimed counts a work that was claimed after so many quarantines.
func (s *stormy) claimed(w *bmdb.Work, after int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revoking == w.Subject.Machine || s.revoked[w.Subject.Machine] > after {
		return
	}
	s.running[w] = true
	at, n := w.Record.Provider, 0
	for other := range s.running {
		if other.Record.Provider == at {
			n++
		}
	}
	s.peak[at] = max(s.peak[at], n)
	if n > 3 {
		s.t.Errorf("%d are under recovery at %s", n, at)
	}
}

func (s *stormy) ends(w *bmdb.Work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, w)
	s.done++
	select {
	case s.ended <- struct{}{}:
	default:
	}
}

func (s *stormy) session(p *party, name string, lasts time.Duration) *bmdb.Session {
	session, err := p.StartSession(s.t.Context(), bmdb.SessionOptions{Component: name, Host: "h", PID: 1, Lease: lasts})
	s.try("start session", err)
	return session
}

// work claims and ends work; now and then it dies with what it has just claimed.
func (s *stormy) work(p *party, name string) {
	ctx := s.t.Context()
	session := s.session(p, name, time.Minute)
	for turn := 1; session != nil && !s.over(); turn++ {
		if turn%10 == 0 {
			if dies := s.session(p, "dies", time.Second); dies != nil {
				_, err := dies.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessRecovery, Limit: 1})
				s.try("claim and die", err)
			}
		}
		s.try("extend", session.Extend(ctx))
		revokes := s.claiming()
		c, err := session.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessRecovery, Limit: 4})
		s.try("claim", err)
		for _, w := range c.Works {
			s.claimed(w, revokes)
		}
		for _, w := range c.Works {
			s.ends(w)
			s.try("cancel", w.Cancel(ctx, "again"))
		}
		if len(c.Works) == 0 {
			select {
			case <-p.Wake(fleet.ProcessRecovery):
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

// TestSlotThatIsFreedIsTold: a process that found no slot is told when another process frees one.
func TestSlotThatIsFreedIsTold(t *testing.T) {
	t.Parallel()
	a, url := silent(t, 3, 1, postgres.Options{})
	b := late(t, url, postgres.Options{})
	work := a.recover(a.session("a", time.Minute), 1).Works[0]
	other := b.session("b", time.Minute)
	wake := b.Wake(fleet.ProcessRecovery)
	b.recover(other, 1)
	for len(wake) > 0 {
		<-wake
	}
	b.recover(other, 1)
	a.must(work.Finish(t.Context()))
	for patience := time.After(30 * time.Second); len(b.recover(other, 1).Works) == 0; {
		select {
		case <-wake:
		case <-patience:
			t.Fatal("nobody told that a slot is free")
		}
	}
}

// TestFullProvidersCostNothing: looking for work at a provider that is full is a few statements,
// one more for each thousand entries that are due there, and finds what is due elsewhere; claims of
// processes without a limit cost what they cost.
func TestFullProvidersCostNothing(t *testing.T) {
	t.Parallel()
	var costs []string
	for _, n := range []int{50, 900} {
		p, _ := silent(t, n, 2, postgres.Options{Silent: true})
		s := p.session("a", time.Minute)
		p.recover(s, 2)
		p.must(bmdbtest.Stock(t.Context(), p.DB, "p2", []fleet.MachineID{fleet.NewMachineID()}, nil))
		p.must(bmdbtest.Silence(t.Context(), p.DB, "p2", 2))
		p.shift.Advance(time.Second)
		p.recover(s, 10) // what is due elsewhere
		p.count.take()
		if c := p.recover(s, 10); len(c.Works) != 0 {
			t.Fatalf("claimed %d", len(c.Works))
		}
		_, kinds := p.count.take()
		costs = append(costs, fmt.Sprint(kinds))
	}
	if costs[0] != costs[1] {
		t.Errorf("statements with few due: %s, with many: %s", costs[0], costs[1])
	}
	var claims []string
	for _, atOnce := range []int{0, 1} {
		p, _, _ := stocked(t, 3, postgres.Options{Silent: true})
		p.must(bmdbtest.SetAtOnce(t.Context(), p.DB, atOnce))
		s := p.session("a", time.Minute)
		p.count.take()
		p.claim(s, 2)
		_, kinds := p.count.take()
		claims = append(claims, fmt.Sprint(kinds))
	}
	if claims[0] != claims[1] {
		t.Errorf("statements of a claim without a limit: %s, with one for another process: %s", claims[0], claims[1])
	}
}

// TestChecksFindWrongLimits: work that is limited and does not count, and the reverse. Policies
// from before there were limits limit as the default does.
func TestChecksFindWrongLimits(t *testing.T) {
	t.Parallel()
	p, url := silent(t, 4, 2, postgres.Options{Silent: true})
	exec := func(statement string) {
		p.must(pgserver.Shared(t).Exec(t.Context(), url[strings.LastIndexByte(url, '/')+1:strings.IndexByte(url, '?')], statement))
	}
	held := p.recover(p.session("a", time.Minute), 2).Works[0].Subject.Machine
	p.sound()
	for _, limited := range []string{"", "install"} {
		exec("UPDATE machine SET limited = '" + limited + "' WHERE id = '" + string(held) + "'")
		findings, err := p.Check(t.Context())
		p.must(err)
		if len(findings) != 1 || findings[0].Invariant != "I1" {
			t.Errorf("limited %q: %v", limited, findings)
		}
		exec("UPDATE machine SET limited = 'recovery' WHERE id = '" + string(held) + "'")
	}
	exec(`INSERT INTO policy (number, at, body) VALUES (99, 1, '{"never_spoke_after": 1}')`)
	env, err := p.Environment(t.Context())
	if want := fleet.DefaultPolicy().RecoveryAtOnce; err != nil || env.Policy.Number != 99 || env.Policy.RecoveryAtOnce != want {
		t.Errorf("an old policy limits to %d (%v), want %d", env.Policy.RecoveryAtOnce, err, want)
	}
}

// TestTheLineStopsByAPersonsWord: whoever watches the silence of machines while a person stops the
// line does not put a stop of its own, which ends by itself, in the place of that one (rule 8).
func TestTheLineStopsByAPersonsWord(t *testing.T) {
	t.Parallel()
	a, url := silent(t, 3, 0, postgres.Options{})
	b := join(t, url, postgres.Options{})
	p := fleet.DefaultPolicy()
	p.NeverSpokeAfter, p.SuspectLeast = time.Millisecond, 2
	_, err := a.SetPolicy(t.Context(), p)
	a.must(err)
	a.shift.Advance(time.Hour)
	for n := 1; n > 0; {
		n, err = a.RecomputeAgenda(t.Context(), 100)
		a.must(err)
		if n < 100 {
			break
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := b.pause.next()
	defer stop.goOn()
	wg.Go(func() {
		if err := b.HoldRecovery(t.Context(), "op", nil, "a network change"); err != nil {
			t.Error(err)
		}
	})
	<-stop.reached
	wg.Go(func() {
		if did, err := a.WatchSilence(t.Context()); err != nil || did != "" {
			t.Errorf("it did %q, %v", did, err)
		}
	})
	await(t, "who watches waits", func() bool { return blocked(t, url) == 1 })
	stop.goOn()
	wg.Wait()
	if h, err := bmdbtest.RecoveryHold(t.Context(), a.DB); err != nil || h == nil || h.Actor != "op" || h.Until != nil {
		t.Errorf("stopped by %+v, %v", h, err)
	}
}

// TestAStepSeesTheStopThatItWaitedFor: a step of recovery that waits for whoever stops recovery is
// not taken.
func TestAStepSeesTheStopThatItWaitedFor(t *testing.T) {
	t.Parallel()
	for _, serializable := range []bool{false, true} {
		t.Run(fmt.Sprint("serializable=", serializable), func(t *testing.T) {
			t.Parallel()
			a, url := silent(t, 1, 1, postgres.Options{Serializable: serializable})
			work := a.recover(a.session("a", time.Minute), 1).Works[0]
			ada := stranger(t, url, "INSERT INTO concurrency_limit (provider, process) VALUES ('', 'recovery') "+
				"ON CONFLICT (provider, process) DO UPDATE SET process = excluded.process")
			taken := make(chan error, 1)
			go func() { taken <- work.Note(t.Context(), bmdb.TakeStep(work.Decision.Rung)) }()
			await(t, "the step waits", func() bool { return blocked(t, url) == 1 })
			_, err := ada.Exec(t.Context(), "INSERT INTO recovery_hold (id, at, until, actor, reason) VALUES (1, 1, 0, 'ada', 'new firmware')")
			a.must(err)
			a.must(ada.Commit(t.Context()))
			if err := <-taken; fleet.KindOf(err) != fleet.KindConflict {
				t.Errorf("the step was taken: %v", err)
			}
		})
	}
}
