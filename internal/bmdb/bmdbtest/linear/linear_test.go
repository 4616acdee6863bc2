package linear_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest/engines"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest/linear"
	"github.com/ironherd/ironherd/internal/fleet"
)

var (
	histories  = flag.Int("histories", 3, "how many histories to make on each engine")
	operations = flag.Int("operations", 500, "how many operations each has")
	seed       = flag.Uint64("seed", 0, "what the first history is drawn from; 0: the time")
)

const clients, machines = 8, 6

func TestMain(m *testing.M) { os.Exit(engines.Main(m)) }

// TestHistoriesAreLinearizable: a sample; `make torture-bmdb` makes a thousand. The schedule is the
// machine's, so that a seed repeats what was asked for and not always what came of it.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	for _, e := range engines.All() {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			total, lost, vanished, undecided := 0, 0, 0, 0
			history := func(n int) {
				round := engines.NewRound(t)
				defer round.End()
				s := newScene(round, e, first+uint64(n))
				s.play(first + uint64(n))
				vanished += s.resolve()
				total, lost = total+len(s.history), lost+s.lost
				switch got := porcupine.CheckOperationsTimeout(linear.Spec, s.history, 20*time.Second); got {
				case porcupine.Ok:
				case porcupine.Unknown:
					undecided++ // too many operations at the same time to try all orders
				default:
					t.Fatalf("history %d of %d operations (-seed %d -histories 1): %s", n, len(s.history), first+uint64(n), got)
				}
				if err := s.db.Close(); err != nil {
					t.Fatal(err)
				}
			}
			made, enough := 0, *histories-1-*histories/50
			for ; made < *histories || made-undecided < enough && made < 3**histories; made++ {
				history(made)
			}
			if lost == 0 || *histories > 2 && vanished == 0 || made-undecided < enough {
				t.Fatalf("%d leases and sessions were lost, the replies to %d claims; %d histories are undecided: the test tests too little",
					lost, vanished, undecided)
			}
			t.Logf("%d histories, %d operations, %d found their lease or session lost, %d leases whose claim was not answered, %d undecided (-seed %d)",
				made, total, lost, vanished, undecided, first)
		})
	}
}

func newScene(tb testing.TB, e engines.Opener, seed uint64) *scene {
	tb.Helper()
	database := e.New(tb)
	flaky := &flaky{Engine: database.Open(tb), random: rand.New(rand.NewPCG(seed, 0))}
	flaky.calm.Store(true)
	s := &scene{
		TB: tb, ctx: tb.Context(), shift: &bmdbtest.Shift{Engine: flaky}, kill: database.Kill, begun: time.Now(), sessions: make(map[fleet.SessionID]int),
		seen: make(map[linear.Op]bool), failed: make(map[int][]porcupine.Operation),
	}
	if err := s.shift.Migrate(s.ctx); err != nil {
		tb.Fatal(err)
	}
	var err error
	if s.db, err = bmdb.Open(s.ctx, s.shift, bmdb.Options{}); err != nil {
		tb.Fatal(err)
	}
	for range machines {
		s.machines = append(s.machines, fleet.NewMachineID())
	}
	if err := bmdbtest.Stock(s.ctx, s.db, provider, s.machines, nil); err != nil {
		tb.Fatal(err)
	}
	flaky.calm.Store(false)
	tb.Cleanup(func() { flaky.calm.Store(true) })
	return s
}

// play lets the clients loose.
func (s *scene) play(seed uint64) {
	var wg sync.WaitGroup
	for id := range clients {
		wg.Go(func() {
			c := &client{scene: s, id: id, random: rand.New(rand.NewPCG(seed, uint64(id+1)))}
			c.renew(false)
			for !s.long() {
				c.one()
			}
		})
	}
	wg.Wait()
}

func (s *scene) long() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.history) >= *operations || s.ctx.Err() != nil
}

// resolve finds out what the claims took that failed, and returns how much that is. What clients
// were told of must be there, too.
func (s *scene) resolve() (vanished int) {
	for i, id := range s.machines {
		starts, err := s.starts(id)
		// Connections were killed while nobody used them, each of which fails one read.
		for range clients {
			if fleet.KindOf(err) != fleet.KindTemporary {
				break
			}
			starts, err = s.starts(id)
		}
		if err != nil {
			s.Fatal(err)
		}
		for op := range s.seen {
			if _, there := starts[op.Epoch]; op.Machine == i && !there {
				s.Fatalf("machine %d, epoch %d was taken, and neither its lane nor its history know of it", i, op.Epoch)
			}
		}
		for epoch, session := range starts {
			if s.seen[linear.Op{Machine: i, Epoch: epoch}] {
				continue
			}
			number := s.sessions[session]
			claims := s.failed[number]
			if len(claims) != 1 {
				s.Fatalf("machine %d, epoch %d was taken by session %d, of which %d claims failed", i, epoch, number, len(claims))
			}
			op := claims[0]
			op.Input, op.Output = linear.Op{Kind: linear.Vanish, Session: number, Machine: i, Epoch: epoch}, true
			s.history = append(s.history, op)
			vanished++
		}
	}
	return vanished
}

// started is every work on a machine that there ever was: history has those that ended, the
// machine's lane the one that has not.
const started = `
	SELECT epoch, session, started_at, at, event FROM history WHERE subject = $1 AND started_at <> 0
	UNION ALL
	SELECT epoch, session, since, since, 'started' FROM machine WHERE id = $1 AND session <> ''`

// starts returns which session took the machine with which epoch. Each epoch starts once and ends
// at most once (I4), in that order. (Somebody else's transaction may have begun before the start
// and yet come to end the work: its instant says nothing.)
func (s *scene) starts(machine fleet.MachineID) (starts map[int]fleet.SessionID, err error) {
	err = s.shift.View(s.ctx, func(ctx context.Context, tx bmdb.Tx) error {
		starts = make(map[int]fleet.SessionID)
		rows, err := tx.QueryContext(ctx, started, string(machine))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var epoch int
			var session, event string
			var from, to int64
			if err := rows.Scan(&epoch, &session, &from, &to, &event); err != nil {
				return err
			}
			_, twice := starts[epoch]
			if twice || to < from && event != string(fleet.EventExpired) {
				s.Errorf("machine %s, epoch %d: it is there twice, or %s before its start (%d, %d)", machine, epoch, event, from, to)
			}
			starts[epoch] = fleet.SessionID(session)
		}
		return rows.Err()
	})
	return starts, err
}
