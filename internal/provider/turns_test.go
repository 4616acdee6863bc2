package provider

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
)

var calls = flag.Int("calls", 40_000, "how many calls four processes make together")

// limited is what a limit allows, and who keeps it: processes over one database.
type limited struct {
	*testing.T
	db      *bmdb.DB
	begun   time.Time
	spacing time.Duration
	// statements counts what was asked of the database.
	statements, writes atomic.Int64

	mu     sync.Mutex
	starts []time.Duration
	alone  int
}

func newLimited(t *testing.T, spacing time.Duration) *limited {
	t.Helper()
	l := &limited{T: t, begun: time.Now(), spacing: spacing}
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
	var err error
	if l.db, err = bmdb.Open(t.Context(), engine, bmdb.Options{Observer: l}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.db.Close() })
	return l
}

// Transaction implements bmdb.Observer.
func (l *limited) Transaction(kind string, _ time.Duration, statements int, _ error) {
	switch kind {
	case "reserve turns":
		l.writes.Add(int64(statements))
		l.statements.Add(int64(statements))
	case "look at turns":
		l.statements.Add(int64(statements))
	}
}

func (*limited) Outcome(fleet.Process, string, time.Duration) {}

func (*limited) Happened(bmdb.Happening, string) {}

// Call implements Observer.
func (*limited) Call(string, int, time.Duration) {}

// PacedAlone implements Observer.
func (l *limited) PacedAlone(alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if alone {
		l.alone++
	} else {
		l.alone--
	}
}

// process returns the pacer of one more process.
func (l *limited) process(turns Turns) *Pacer {
	p := NewPacer(Limits{Spacing: l.spacing, Patience: time.Minute, Limit: func() string { return "the limit" }}, wallClock{})
	p.share(Options{Turns: turns, Observer: l, Logger: slog.New(slog.DiscardHandler)}, func() int { return 0 })
	return p
}

// started notes a call, and returns how many there are.
func (l *limited) started() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts = append(l.starts, time.Since(l.begun))
	return len(l.starts)
}

// kept fails the test when some window has more calls than the limit allows.
func (l *limited) kept(burst int) {
	l.Helper()
	slices.Sort(l.starts)
	if i := tooMany(l.starts, l.spacing, burst); i >= 0 {
		l.Errorf("call %d at %s is one too many in some window before it: %v", i, l.starts[i], l.starts[max(i-5, 0):i+1])
	}
}

// I10: many calls of four processes, with one database between them, under virtual time. Whatever
// the callers do (come in bursts, give up while they wait, ask for a pause), no window has more
// calls than limit × window + burst, over all processes; and while there is a backlog, at least
// 99 % of what the limit allows is used. A process asks the database once for many calls. A million
// calls: -calls=1000000.
func TestFourProcessesKeepTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const (
			processes, workers = 4, 50
			spacing            = 10 * time.Millisecond
			pauseEach          = 25_000
		)
		calls := *calls
		l := newLimited(t, spacing)
		var paused atomic.Int64
		var callers sync.WaitGroup
		var done atomic.Bool
		for process := range processes {
			p := l.process(l.db)
			for worker := range workers {
				callers.Go(func() {
					random := rand.New(rand.NewPCG(uint64(worker), uint64(process)))
					for !done.Load() {
						ctx, cancel := t.Context(), context.CancelFunc(func() {})
						switch random.IntN(100) {
						case 0: // somebody who gives up while waiting must not use up a turn
							ctx, cancel = context.WithCancel(ctx)
							timer := time.AfterFunc(time.Duration(random.IntN(int(workers*spacing))), cancel)
							defer timer.Stop()
						case 1: // nor must a deadline that is too near
							ctx, cancel = context.WithTimeout(ctx, spacing)
						}
						err := p.Wait(ctx)
						cancel()
						if err != nil || done.Load() {
							continue
						}
						n := l.started()
						if n >= calls {
							done.Store(true)
						}
						if n%pauseEach == 0 && n < calls {
							p.Hold(t.Context(), 30*time.Second)
							paused.Add(int64(30 * time.Second))
						}
					}
				})
			}
		}
		callers.Wait()
		time.Sleep(2 * turnsPatience) // until what was asked of the database is answered
		l.kept(1)
		took := l.starts[len(l.starts)-1] - time.Duration(paused.Load())
		used := float64(time.Duration(len(l.starts))*spacing) / float64(took)
		t.Logf("%d calls in %s, %.2f %% of the limit; %d statements, one for %.1f calls, %d of them write", len(l.starts),
			took+time.Duration(paused.Load()), 100*used, l.statements.Load(), float64(len(l.starts))/float64(l.statements.Load()), l.writes.Load())
		if used < 0.99 {
			t.Errorf("only %.2f %% of the limit is used, with a backlog all the time", 100*used)
		}
		if asked := float64(l.statements.Load()) / float64(len(l.starts)); asked > 0.1 {
			t.Errorf("the database is asked %.2f times for each call", asked)
		}
	})
}

// I10: the database counts in microseconds. Who asks between two of them gets no turn that is
// nearer to that of another process for it.
func TestTurnsBetweenMicroseconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, 10*time.Millisecond)
		a, b := l.process(l.db), l.process(l.db)
		for _, p := range []*Pacer{a, b, a, b} {
			time.Sleep(34 * time.Nanosecond)
			if p == b {
				time.Sleep(time.Duration(1000 - time.Now().Nanosecond()%1000))
			}
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.started()
		}
		time.Sleep(2 * turnsPatience)
		l.kept(1)
	})
}

// I10: a pause that the provider asks one process for holds the calls of all, also those that had
// their turns already. A database that is slow tells of it later.
func TestAPauseHoldsAllProcesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spacing, takes time.Duration }{
		{20 * time.Millisecond, 0}, {2 * time.Second, 0}, {200 * time.Millisecond, 1500 * time.Millisecond}, {2 * time.Second, 1500 * time.Millisecond},
	} {
		spacing := c.spacing
		synctest.Test(t, func(t *testing.T) {
			l := newLimited(t, spacing)
			x := &trouble{Turns: l.db}
			x.takes.Store(int64(c.takes))
			ctx, stop := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			var processes []*Pacer
			for range 4 {
				p := l.process(x)
				processes = append(processes, p)
				for range 10 {
					callers.Go(func() {
						for p.Wait(ctx) == nil {
							l.started()
						}
					})
				}
			}
			time.Sleep(time.Minute)
			asked := time.Since(l.begun)
			processes[1].Hold(ctx, 30*time.Second)
			time.Sleep(time.Minute)
			stop()
			callers.Wait()
			time.Sleep(2 * turnsPatience)
			if c.takes == 0 {
				l.kept(1)
			} else {
				l.kept(2)
			}
			late := 0
			for _, at := range l.starts {
				if at > asked+turnsFresh+3*c.takes && at < asked+30*time.Second {
					late++
				}
			}
			if late > 0 {
				t.Errorf("%s: %d calls were made while the provider wanted to be left alone", spacing, late)
			}
			if last := l.starts[len(l.starts)-1]; last < asked+50*time.Second {
				t.Errorf("%s: after the pause, nothing was called: the last call is at %s", spacing, last)
			}
		})
	}
}

// Two processes of different configurations that share a limit keep each its own spacing.
func TestSpacingsMayDiffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, time.Second)
		slow := l.process(l.db)
		l.spacing = 500 * time.Millisecond
		fast := l.process(l.db)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		var counts [2]atomic.Int64
		var callers sync.WaitGroup
		for i, p := range []*Pacer{slow, fast} {
			for range 4 {
				callers.Go(func() {
					for p.Wait(ctx) == nil {
						l.started()
						counts[i].Add(1)
					}
				})
			}
		}
		callers.Wait()
		time.Sleep(2 * turnsPatience) // until what was asked of the database is answered
		l.kept(1)
		if took := time.Duration(counts[0].Load())*time.Second + time.Duration(counts[1].Load())*time.Second/2; took < 590*time.Second {
			t.Errorf("%d and %d calls take %s of ten minutes", counts[0].Load(), counts[1].Load(), took)
		}
	})
}

// Calls that cannot wait as long as the others take no turn with them, so that those that can get
// theirs.
func TestDeadlinesReserveNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, time.Second)
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		patient, hasty := l.process(l.db), l.process(l.db)
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				for patient.Wait(ctx) == nil {
					l.started()
				}
			})
			callers.Go(func() {
				for ctx.Err() == nil {
					short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
					if hasty.Wait(short) == nil {
						l.started()
					}
					cancel()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		callers.Wait()
		time.Sleep(2 * turnsPatience) // until what was asked of the database is answered
		l.kept(1)
		if len(l.starts) < 590 {
			t.Errorf("%d calls in ten minutes, with a backlog all the time", len(l.starts))
		}
	})
}

// trouble is a database that may be in trouble.
type trouble struct {
	Turns
	fails, hangs atomic.Bool
	takes        atomic.Int64
}

func (t *trouble) ReserveTurns(ctx context.Context, r fleet.TurnRequest) (fleet.TurnGrant, error) {
	if t.hangs.Load() {
		<-ctx.Done()
		return fleet.TurnGrant{}, fleet.ContextError(ctx)
	}
	if t.fails.Load() {
		return fleet.TurnGrant{}, errors.New("no connection")
	}
	time.Sleep(time.Duration(t.takes.Load()) / 2)
	grant, err := t.Turns.ReserveTurns(ctx, r)
	time.Sleep(time.Duration(t.takes.Load()) / 2)
	return grant, err
}

// I10: a database that does not answer, whether it refuses or hangs, does not stop calls, and four
// processes keep the limit nevertheless, also at the borders of the outage: each takes a quarter.
// Where only some of them are cut off, they take theirs besides what the others take.
func TestTheDatabaseDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, spacing := range []time.Duration{50 * time.Millisecond, 2 * time.Second} {
		for _, hangs := range []bool{false, true} {
			for _, cut := range []int{4, 2} {
				synctest.Test(t, func(t *testing.T) { outage(t, spacing, hangs, cut) })
			}
		}
	}
}

func outage(t *testing.T, spacing time.Duration, hangs bool, cut int) {
	t.Helper()
	const before, lasts, afterwards = 30 * time.Second, 2 * time.Minute, 2 * time.Minute
	l := newLimited(t, spacing)
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var all []*trouble
	for range 4 {
		x := &trouble{Turns: l.db}
		all = append(all, x)
		p := l.process(x)
		for range 10 {
			callers.Go(func() {
				for p.Wait(ctx) == nil {
					l.started()
				}
			})
		}
	}
	set := func(out bool) time.Duration {
		for i, x := range all[:cut] {
			time.Sleep(time.Duration(i) * 300 * time.Millisecond)
			if hangs {
				x.hangs.Store(out)
			} else {
				x.fails.Store(out)
			}
		}
		return time.Since(l.begun)
	}
	time.Sleep(before)
	from := set(true)
	time.Sleep(lasts)
	l.mu.Lock()
	alone := l.alone
	l.mu.Unlock()
	until := set(false)
	time.Sleep(afterwards)
	stop()
	callers.Wait()
	time.Sleep(2 * turnsPatience)
	if cut < 4 {
		l.spacing = spacing * 4 / time.Duration(4+cut)
	}
	l.kept(1 + cut) // whoever paces alone has a call of its own to begin with
	if alone != cut || l.alone != 0 {
		t.Errorf("%d processes are said to pace alone, and %d after the outage", alone, l.alone)
	}
	during, after := 0, 0
	// The last turns that four processes reserve as if alone are one behind the other, behind those
	// that one has: a second's worth each, and one turn at least.
	back := turnsRetry + turnsPatience + turnsReturn + 5*max(turnsAhead, turnsShare*spacing)
	for _, at := range l.starts {
		switch {
		case at > until+back:
			after++
		case at > from && at <= until:
			during++
		}
	}
	// What is used, of what is to be used: all, but for the time that it takes to notice the outage.
	borders := turnsPatience + turnsShare*max(turnsAhead, spacing) + 10*spacing
	if want := int((lasts-borders)/spacing)*98/100 - 2; during < want {
		t.Errorf("spacing %s, hangs %t, %d cut off: %d calls in the outage, want %d", spacing, hangs, cut, during, want)
	}
	if want := int((afterwards-back)/spacing)*98/100 - 2; after < want {
		t.Errorf("spacing %s, hangs %t, %d cut off: %d calls after the outage, want %d", spacing, hangs, cut, after, want)
	}
}

// A database that takes its time costs nothing but that: turns are reserved early enough.
func TestTheDatabaseIsSlow(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimited(t, 10*time.Millisecond)
			x := &trouble{Turns: l.db}
			x.takes.Store(int64(takes))
			ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
			defer stop()
			var callers sync.WaitGroup
			for range 4 {
				p := l.process(x)
				for range 120 {
					callers.Go(func() {
						for p.Wait(ctx) == nil {
							l.started()
						}
					})
				}
			}
			callers.Wait()
			time.Sleep(2 * turnsPatience)
			l.kept(3) // a turn may be used as long afterwards as it takes until the next one and a half
			if len(l.starts) < 11_800 {
				t.Errorf("%s: %d calls in two minutes", takes, len(l.starts))
			}
		})
	}
}

// A process that was stopped does not make up for the turns that it has missed.
func TestMissedTurnsAreLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, time.Second)
		p := l.process(l.db)
		p.queue.looked = time.Now()
		for i := range 10 {
			p.queue.reserved = append(p.queue.reserved, time.Now().Add(time.Duration(i-10)*time.Second))
		}
		for range 3 {
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.started()
		}
		synctest.Wait()
		l.kept(1)
	})
}

// A token is not to be had from the name of its limit, and tokens, and what they are sent to, have
// limits of their own.
func TestLimitOf(t *testing.T) {
	t.Parallel()
	a := LimitOf("api.example.com", "token one")
	if len(a) != 32 || a != LimitOf("API.example.com", "token one") {
		t.Errorf("the limit is called %q", a)
	}
	if a == LimitOf("api.example.com", "token two") || a == LimitOf("api.example.org", "token one") {
		t.Error("different accounts share a limit")
	}
}
