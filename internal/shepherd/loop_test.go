package shepherd_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
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

// TestClaimsNoMoreThanTheFreeSlots is rule 2: a loop claims no more than it can act on at once.
func TestClaimsNoMoreThanTheFreeSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		seed(t, db, 50)
		var running, peak, done atomic.Int32
		seen := &recorder{}
		config := shepherd.DefaultConfig()
		config.Parallelism = 4
		run(t, db, handler(func(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
			peak.Store(max(peak.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Duration(100+done.Load()%3*50) * time.Millisecond)
			done.Add(1)
			return started(work)
		}), config, shepherd.Options{Observer: seen})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if done.Load() != 50 || peak.Load() != 4 || seen.largest > 4 || seen.count(shepherd.ResultFinished) != 50 {
			t.Errorf("done %d, at once %d, in one claim %d, results %v", done.Load(), peak.Load(), seen.largest, seen.results)
		}
	})
}

// TestMachinesThatHangLeaveSlotsToTheOthers: who failed lately and hangs again does not keep a
// machine waiting that has not, however many they are.
func TestMachinesThatHangLeaveSlotsToTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 24)
		for _, id := range ids[:6] {
			if err := bmdbtest.Quarantine(t.Context(), db, "test", id, "not yet"); err != nil {
				t.Fatal(err)
			}
		}
		good := make(map[fleet.MachineID]bool)
		for _, id := range ids[:6] {
			good[id] = true
		}
		var hanging, peak, tried atomic.Int32
		run(t, db, handler(func(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
			switch {
			case good[work.Subject.Machine]:
				time.Sleep(time.Second)
				return started(work)
			case work.Failing():
				tried.Add(1)
				peak.Store(max(peak.Load(), hanging.Add(1)))
				defer hanging.Add(-1)
				select {
				case <-time.After(time.Minute):
				case <-ctx.Done():
				}
			}
			return shepherd.Fail{Err: errors.New("it hangs")}
		}), shepherd.DefaultConfig(), shepherd.Options{})
		time.Sleep(30 * time.Second)
		for _, id := range ids[:6] {
			if err := bmdbtest.Unquarantine(t.Context(), db, "test", id, "now"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		for _, id := range ids[:6] {
			if machineOf(t, db, id).AgentStarted == nil {
				t.Errorf("%s still waits beside %d that hang", id, hanging.Load())
			}
		}
		time.Sleep(2 * time.Minute)
		if peak.Load() != 5 || tried.Load() < 10 {
			t.Errorf("at most %d of 10 slots for those that hang, %d tries", peak.Load(), tried.Load())
		}
	})
}

// TestDeadAndHangingHostsSlowNobody: with one host in ten dead and one in twenty hanging, the
// others are done within 1.2 times of the ideal schedule, in which every slot is busy all the time
// with what each host takes: a second, the time of a connect, or that of a step.
func TestDeadAndHangingHostsSlowNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const machines, connect, step = 400, 2 * time.Second, 15 * time.Second
		db, _ := open(t)
		takes := make(map[fleet.MachineID]time.Duration)
		var ideal time.Duration
		good := 0
		for i, id := range seed(t, db, machines) {
			switch {
			case i%10 == 3:
				takes[id] = connect
			case i%20 == 6:
				takes[id] = step
			default:
				good++
				takes[id] = time.Second
			}
			ideal += takes[id]
		}
		config := shepherd.DefaultConfig()
		ideal /= time.Duration(config.Parallelism)
		var mu sync.Mutex
		done, begun := 0, time.Now()
		var took time.Duration
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			time.Sleep(takes[work.Subject.Machine])
			if takes[work.Subject.Machine] != time.Second {
				return shepherd.Fail{Err: errors.New("it does not answer")}
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			took = time.Since(begun)
			return started(work)
		}), config, shepherd.Options{})
		time.Sleep(4 * ideal)
		mu.Lock()
		defer mu.Unlock()
		t.Logf("%d hosts that work are done after %s, %.2f times the ideal schedule of %s", done, took, float64(took)/float64(ideal), ideal)
		if done != good || float64(took) > 1.2*float64(ideal) {
			t.Errorf("%d of %d hosts that work are done after %s; ideal is %s", done, good, took, ideal)
		}
	})
}

// TestClaimRate is I10 for claims: no window holds more than the bucket allows.
func TestClaimRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		seed(t, db, 60)
		seen := &recorder{}
		config := shepherd.DefaultConfig()
		config.Parallelism = 1 // every piece of work is a claim of its own
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome { return started(work) }),
			config, shepherd.Options{Observer: seen})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if seen.count(shepherd.ResultFinished) != 60 {
			t.Fatalf("results %v", seen.results)
		}
		for i := range seen.claims {
			for j := i; j < len(seen.claims); j++ {
				allowed := 8 + int(seen.claims[j].Sub(seen.claims[i])/(250*time.Millisecond))
				if j-i+1 > allowed {
					t.Fatalf("%d claims in %s", j-i+1, seen.claims[j].Sub(seen.claims[i]))
				}
			}
		}
	})
}

func TestWakesUpForWhatBecomesDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 1)
		if err := bmdbtest.Quarantine(t.Context(), db, "test", ids[0], "not yet"); err != nil {
			t.Fatal(err)
		}
		config := shepherd.DefaultConfig()
		config.Poll = time.Hour
		var at atomic.Int64
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			at.Store(time.Now().UnixNano())
			return started(work)
		}), config, shepherd.Options{})
		time.Sleep(time.Minute)
		released := time.Now()
		if err := bmdbtest.Unquarantine(t.Context(), db, "test", ids[0], "now"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if took := time.Unix(0, at.Load()).Sub(released); at.Load() == 0 || took > time.Second {
			t.Errorf("it was started %s after it became due", took)
		}
	})
}

func TestBackoffGrowsAndResets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 1)
		var mu sync.Mutex
		var tries []time.Time
		var fails atomic.Bool
		fails.Store(true)
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			mu.Lock()
			tries = append(tries, time.Now())
			mu.Unlock()
			if fails.Load() {
				return shepherd.Fail{Err: errors.New("the host said\nno")}
			}
			return started(work)
		}), shepherd.DefaultConfig(), shepherd.Options{})
		want := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute}
		for i, interval := range want {
			time.Sleep(time.Second)
			waiting := machineOf(t, db, ids[0]).Backoffs[fleet.ProcessAgentStart]
			if waiting.Interval != interval || waiting.Failures != i+1 || waiting.Cause != "the host said no" {
				t.Fatalf("after %d failures: %+v", i+1, waiting)
			}
			if i == len(want)-1 {
				fails.Store(false)
			}
			time.Sleep(time.Until(waiting.NotBefore))
			synctest.Wait()
		}
		time.Sleep(3 * time.Second)
		record := machineOf(t, db, ids[0])
		if _, still := record.Backoffs[fleet.ProcessAgentStart]; still || record.AgentStarted == nil {
			t.Errorf("after the success: %+v, %+v", record.Backoffs, record.AgentStarted)
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range want {
			if pause := tries[i+1].Sub(tries[i]); pause < want[i] || pause > want[i]*5/4+5*time.Second {
				t.Errorf("try %d came after %s, the interval was %s", i+2, pause, want[i])
			}
		}
	})
}

// TestADatabaseThatTakesNothing: that is no failure of the machine. Its backoff neither grows, nor
// begins anew.
func TestADatabaseThatTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 2)
		var refused atomic.Int32
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			if work.Subject.Machine == ids[1] && refused.Add(1) <= 3 {
				return shepherd.Fail{Err: errors.New("the host said no")}
			}
			return shepherd.Fail{Err: fmt.Errorf("record the takeover: %w", bmdb.Unavailable("the disk is full"))}
		}), shepherd.DefaultConfig(), shepherd.Options{})
		time.Sleep(5 * time.Minute)
		waiting := machineOf(t, db, ids[0]).Backoffs[fleet.ProcessAgentStart]
		if waiting.Interval != 15*time.Second || waiting.Failures < 10 || !waiting.Since.IsZero() {
			t.Errorf("got %+v", waiting)
		}
		waiting = machineOf(t, db, ids[1]).Backoffs[fleet.ProcessAgentStart]
		if waiting.Interval != 40*time.Second || time.Until(waiting.NotBefore) > 20*time.Second {
			t.Errorf("one that had failed before: %+v", waiting)
		}
	})
}

func TestFailureNamesItsOwnBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 1)
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			throttled := &fleet.Error{Kind: fleet.KindThrottled, Message: "slower", RetryAfter: 20 * time.Minute}
			return shepherd.Fail{Err: throttled, Backoff: fleet.Backoff{Initial: time.Minute}}
		}), shepherd.DefaultConfig(), shepherd.Options{})
		start := time.Now()
		time.Sleep(5 * time.Second)
		waiting := machineOf(t, db, ids[0]).Backoffs[fleet.ProcessAgentStart]
		if waiting.Interval != time.Minute || waiting.NotBefore.Sub(start) < 20*time.Minute {
			t.Errorf("got %+v", waiting)
		}
	})
}

// TestAPanicIsOneMachinesFailure: a handler that panics, or gives an outcome that means nothing,
// fails that piece of work alone.
func TestAPanicIsOneMachinesFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 5)
		seen := &recorder{}
		run(t, db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			switch work.Record.ID {
			case ids[1]:
				panic("a nil somewhere")
			case ids[2]:
				return nil // the mistake that is tested
			case ids[3]:
				return shepherd.Fail{} // and another one
			}
			return started(work)
		}), shepherd.DefaultConfig(), shepherd.Options{Observer: seen})
		time.Sleep(5 * time.Second)
		if seen.count(shepherd.ResultFinished) != 2 || seen.count(shepherd.ResultFailed) != 3 {
			t.Errorf("results %v", seen.results)
		}
		for _, i := range []int{1, 2, 3} {
			if cause := machineOf(t, db, ids[i]).Backoffs[fleet.ProcessAgentStart].Cause; !strings.Contains(cause, "internal error") {
				t.Errorf("machine %d: cause %q", i, cause)
			}
		}
	})
}

// TestDrain: what can finish within the grace period does, the rest is handed back without a
// backoff, the session ends.
func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 4)
		seen := &recorder{}
		stop := run(t, db, handler(func(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
			d := 5 * time.Second
			if work.Record.ID == ids[0] {
				d = time.Hour
			}
			select {
			case <-time.After(d):
				return started(work)
			case <-ctx.Done():
				return shepherd.Fail{Err: ctx.Err(), Backoff: fleet.Backoff{Initial: time.Hour}}
			}
		}), shepherd.DefaultConfig(), shepherd.Options{Observer: seen})
		time.Sleep(3 * time.Second)
		begin := time.Now()
		stop()
		if took := time.Since(begin); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("the drain took %s", took)
		}
		if seen.count(shepherd.ResultFinished) != 3 || seen.count(shepherd.ResultCancelled) != 1 {
			t.Errorf("results %v", seen.results)
		}
		if open := openSessions(t, db); len(open) != 0 {
			t.Errorf("open sessions: %+v", open)
		}
		record := machineOf(t, db, ids[0])
		if len(record.Holds) != 0 || len(record.Backoffs) != 0 || record.AgentStarted != nil {
			t.Errorf("what was handed back: %+v", record)
		}
	})
}

// stopping is an observer that stops the loop as soon as it has claimed work.
type stopping struct {
	recorder

	stop func()
}

func (s *stopping) Claimed(process fleet.Process, works int, took time.Duration, err error) {
	s.recorder.Claimed(process, works, took, err)
	if works > 0 {
		s.stop()
	}
}

// TestClaimedTooLate: what is claimed when the loop stops already is handed back unseen, and counts
// as started and ended once each.
func TestClaimedTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := seed(t, db, 3)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := &stopping{stop: cancel}
		loop, err := shepherd.New(db, handler(func(_ context.Context, work *bmdb.Work) shepherd.Outcome {
			t.Errorf("machine %s is worked on", work.Record.ID)
			return shepherd.Finish{}
		}), shepherd.DefaultConfig(), shepherd.Options{Observer: seen})
		if err != nil {
			t.Fatal(err)
		}
		if err := loop.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if cancelled := seen.count(shepherd.ResultCancelled); cancelled != len(ids) || seen.running != 0 || seen.lowest < 0 {
			t.Errorf("%d were handed back; %d run, and %d did once", cancelled, seen.running, seen.lowest)
		}
		if held := machineOf(t, db, ids[0]).Holds; len(held) != 0 {
			t.Errorf("held: %+v", held)
		}
	})
}

func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	if err := shepherd.DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	err := shepherd.Config{Grace: -1}.Validate()
	for _, key := range []string{"claim_rate", "parallelism", "error_pause", "poll", "grace"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("no fault names %s: %v", key, err)
		}
	}
	for _, bad := range []fleet.Backoff{
		{},
		{Initial: time.Second, Exponent: 0.5},
		{Initial: time.Minute, Maximum: time.Second},
		{Initial: time.Second, Exponent: math.Inf(1)},
		{Initial: time.Second, Exponent: math.NaN()},
	} {
		if err := shepherd.RequireBackoff("b", bad); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}

// TestALoopWithoutProvidersIsAlive: it claims nothing, and is known to be there all the same.
func TestALoopWithoutProvidersIsAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		seed(t, db, 1)
		stop := run(t, db, unscoped{}, shepherd.DefaultConfig(), shepherd.Options{})
		time.Sleep(time.Hour)
		if live := openSessions(t, db); len(live) != 1 || live[0].Component != string(fleet.ProcessAgentStart) {
			t.Errorf("open sessions: %+v", live)
		}
		stop()
		if live := openSessions(t, db); len(live) != 0 {
			t.Errorf("open sessions after the end: %+v", live)
		}
	})
}

// unscoped is a handler for no provider.
type unscoped struct{}

func (unscoped) Scope() shepherd.Scope { return shepherd.Scope{Process: fleet.ProcessAgentStart} }

func (unscoped) Act(context.Context, *bmdb.Work) shepherd.Outcome {
	return shepherd.Fail{Err: errors.New("nothing is to be claimed")}
}
