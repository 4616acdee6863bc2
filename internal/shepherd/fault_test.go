package shepherd_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// TestALostSessionStopsItsWorkInTime is I6: when extensions fail, the act's context ends before the
// lease can, and the work is taken up again through a new session.
func TestALostSessionStopsItsWorkInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, engine := open(t)
		seed(t, db, 1)
		var mu sync.Mutex
		var cancelled time.Time
		var holders []fleet.SessionID
		seen := &recorder{}
		run(t, db, handler(func(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
			mu.Lock()
			holders = append(holders, work.Session)
			first := len(holders) == 1
			mu.Unlock()
			if !first {
				return started(work)
			}
			<-ctx.Done()
			mu.Lock()
			cancelled = time.Now()
			mu.Unlock()
			return shepherd.Fail{Err: ctx.Err()}
		}), shepherd.DefaultConfig(), shepherd.Options{Observer: seen})

		time.Sleep(20 * time.Second) // extended many times by now
		synctest.Wait()
		if len(holders) != 1 || !cancelled.IsZero() {
			t.Fatalf("before the fault: %d holders, cancelled %s", len(holders), cancelled)
		}
		deadline := machineOf(t, db, seedOnly(t, db)).Holds[fleet.LaneHost].Deadline
		broken := func(func() error) error { return errBroken }
		engine.set(broken, broken)
		time.Sleep(10 * time.Second)
		engine.set(nil, nil)
		time.Sleep(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if cancelled.IsZero() || !cancelled.Before(deadline) {
			t.Errorf("cancelled at %s, the lease ended at %s", cancelled, deadline)
		}
		if len(holders) != 2 || holders[0] == holders[1] || seen.count(shepherd.ResultLost) != 1 || seen.count(shepherd.ResultFinished) != 1 {
			t.Errorf("holders %v, results %v", holders, seen.results)
		}
	})
}

func seedOnly(t *testing.T, db *bmdb.DB) fleet.MachineID {
	t.Helper()
	rows, err := db.ListMachines(t.Context(), bmdb.MachineFilter{Limit: 2})
	if err != nil || len(rows) != 1 {
		t.Fatalf("got %d machines, %v", len(rows), err)
	}
	return rows[0].ID
}

// TestALostReplyOfACommit: the outcome was committed and the answer was lost. The engine commits it
// again, and it counts once.
func TestALostReplyOfACommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, engine := open(t)
		ids := seed(t, db, 1)
		seen := &recorder{}
		var lose atomic.Int32
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			lose.Store(3)
			engine.set(func(run func() error) error {
				err := run()
				if err == nil && lose.Add(-1) >= 0 {
					return errBroken
				}
				return err
			}, nil)
			return started(work)
		}), shepherd.DefaultConfig(), shepherd.Options{Observer: seen})
		time.Sleep(10 * time.Second)
		record := machineOf(t, db, ids[0])
		if seen.count(shepherd.ResultFinished) != 1 || len(seen.results) != 1 || record.AgentStarted == nil || len(record.Holds) != 0 {
			t.Errorf("results %v, record %+v", seen.results, record)
		}
		if lose.Load() > 0 {
			t.Errorf("%d replies were not lost", lose.Load())
		}
	})
}

// losses counts the sessions that were lost, by their cause.
type losses struct {
	mu   sync.Mutex
	lost map[string]int
}

func (*losses) Transaction(string, time.Duration, int, error) {}

func (*losses) Outcome(fleet.Process, string, time.Duration) {}

func (l *losses) Happened(what bmdb.Happening, cause string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if what == bmdb.HappeningSessionLost {
		l.lost[cause]++
	}
}

// TestALostSessionIsNamedAndCounted: a loop whose session is not extended in time ends it before a
// janitor does, once the database is there again. It says why, and counts as one that is lost.
func TestALostSessionIsNamedAndCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen := &losses{lost: map[string]int{}}
		db, engine := openWith(t, bmdb.Options{Observer: seen})
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome { return started(work) }), shepherd.DefaultConfig(), shepherd.Options{})
		time.Sleep(20 * time.Second)
		engine.set(nil, func(func() error) error { return errBroken })
		time.Sleep(6 * time.Second)
		engine.set(nil, nil)
		time.Sleep(6 * time.Second)
		rows, err := db.Sessions(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		var causes []string
		for _, row := range rows {
			if row.Cause != "" {
				causes = append(causes, row.Cause)
			}
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if !slices.Equal(causes, []string{"not extended in time"}) || !maps.Equal(seen.lost, map[string]int{bmdb.LostOverdue: 1}) {
			t.Errorf("ended because of %q, counted %v", causes, seen.lost)
		}
	})
}

// TestALostReplyOfAClaim: leases were taken and nobody knows. The next extension hands them back.
func TestALostReplyOfAClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, engine := open(t)
		seed(t, db, 3)
		var lost, done atomic.Int32
		engine.set(func(run func() error) error {
			err := run()
			if err == nil && held(t, db, engine) && lost.CompareAndSwap(0, 1) {
				return errBroken
			}
			return err
		}, nil)
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			done.Add(1)
			return started(work)
		}), shepherd.DefaultConfig(), shepherd.Options{})
		time.Sleep(4 * time.Second) // less than a lease
		if lost.Load() != 1 || done.Load() != 3 {
			t.Errorf("lost %d claims, did %d of 3", lost.Load(), done.Load())
		}
	})
}

// held says whether any session holds anything.
func held(t *testing.T, db *bmdb.DB, _ *faulty) bool {
	t.Helper()
	for _, session := range openSessions(t, db) {
		if len(session.Held) > 0 {
			return true
		}
	}
	return false
}

// TestRefusedFactsFailTheWork: what the BMDB refuses does not hold the machine for ever.
func TestRefusedFactsFailTheWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 1)
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			return shepherd.Finish{Changes: []bmdb.Change{bmdb.CloseIntentRejected(work.Record.ID, "not mine to close")}}
		}), shepherd.DefaultConfig(), shepherd.Options{})
		time.Sleep(5 * time.Second)
		record := machineOf(t, db, ids[0])
		if waiting, ok := record.Backoffs[fleet.ProcessAgentStart]; !ok || len(record.Holds) != 0 {
			t.Errorf("got %+v, holds %+v", waiting, record.Holds)
		}
	})
}

// TestPeopleWin is rule 8: a quarantine takes the lane away, the act is cancelled, nothing is
// committed.
func TestPeopleWin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 1)
		seen := &recorder{}
		var cancelled atomic.Bool
		run(t, db, handler(func(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
			<-ctx.Done()
			cancelled.Store(true)
			return started(work) // too late
		}), shepherd.DefaultConfig(), shepherd.Options{Observer: seen})
		time.Sleep(2 * time.Second)
		if err := bmdbtest.Quarantine(t.Context(), db, "op", ids[0], "smells of smoke"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		record := machineOf(t, db, ids[0])
		if !cancelled.Load() || record.AgentStarted != nil || seen.count(shepherd.ResultLost) != 1 {
			t.Errorf("cancelled %t, started %+v, results %v", cancelled.Load(), record.AgentStarted, seen.results)
		}
	})
}
