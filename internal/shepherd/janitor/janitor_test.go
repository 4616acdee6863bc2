package janitor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd/janitor"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const source fleet.ProviderName = "metal"

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T) (*bmdb.DB, *sqlite.Engine) {
	t.Helper()
	engine := shepherdtest.OpenEngine(t)
	db := shepherdtest.OpenDB(t, engine, bmdb.Options{})
	return db, engine
}

// counter counts what a janitor did.
type counter struct {
	mu     sync.Mutex
	done   map[janitor.Duty]int
	rows   map[janitor.Duty]int
	failed map[janitor.Duty]int
}

func newCounter() *counter {
	return &counter{done: map[janitor.Duty]int{}, rows: map[janitor.Duty]int{}, failed: map[janitor.Duty]int{}}
}

func (c *counter) Done(duty janitor.Duty, rows int, _ time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[duty]++
	c.rows[duty] += rows
	if err != nil {
		c.failed[duty]++
	}
}

// run starts a janitor and returns what stops it.
func run(t *testing.T, db *bmdb.DB, config janitor.Config, options janitor.Options) (*janitor.Janitor, func()) {
	t.Helper()
	j, err := janitor.New(db, config, options)
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	return j, sync.OnceFunc(func() {
		cancel()
		check(t, <-ended)
	})
}

func TestEveryDutyInItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		seen := newCounter()
		_, stop := run(t, db, janitor.DefaultConfig(), janitor.Options{Observed: seen.Done})
		defer stop()
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		for duty, want := range map[janitor.Duty]int{
			janitor.DutyCollect: 1800, janitor.DutyRecompute: 1800, janitor.DutyExpire: 1800, janitor.DutyCheck: 60,
			janitor.DutyHistory: 6, janitor.DutySessions: 6, janitor.DutyTokens: 6, janitor.DutyPlans: 6, janitor.DutySilence: 1800,
		} {
			if got := seen.done[duty]; got < want || got > want+1 {
				t.Errorf("%s was done %d times in an hour, want %d", duty, got, want)
			}
		}
		if len(seen.failed) > 0 {
			t.Errorf("failures: %v", seen.failed)
		}
	})
}

// away is an engine that can be out of reach.
type away struct {
	bmdb.Engine
	gone atomic.Bool
}

var errAway = errors.New("the database is away")

func (e *away) View(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	if e.gone.Load() {
		return errAway
	}
	return e.Engine.View(ctx, fn)
}

func (e *away) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	if e.gone.Load() {
		return errAway
	}
	return e.Engine.Update(ctx, fn)
}

func (e *away) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	if e.gone.Load() {
		return errAway
	}
	return e.Engine.Extend(ctx, fn)
}

// TestAnOutageDoesNotFillTheLog: each duty has a line each minute that says why it is not done.
func TestAnOutageDoesNotFillTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := &away{Engine: shepherdtest.OpenEngine(t)}
		db := shepherdtest.OpenDB(t, engine, bmdb.Options{})
		var log bytes.Buffer
		_, stop := run(t, db, janitor.DefaultConfig(), janitor.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(20 * time.Second)
		engine.gone.Store(true)
		time.Sleep(10*time.Minute + time.Second)
		engine.gone.Store(false)
		stop()
		for _, message := range []string{
			"duty=collect-sessions", "duty=recompute-agenda", "duty=expire-installs", "duty=watch-silence", `msg="the janitor has no session`,
		} {
			if n := strings.Count(log.String(), message); n < 10 || n > 15 {
				t.Errorf("%d lines of ten minutes: %s", n, message)
			}
		}
	})
}

// TestADeadSessionIsCollected, and what it held is free, without anybody asking for it.
func TestADeadSessionIsCollected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		shepherdtest.Seed(t, db, source, shepherdtest.NewFakeProvider(1), 1)
		session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "dies", Lease: 5 * time.Second})
		check(t, err)
		claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
		check(t, err)
		_, stop := run(t, db, janitor.DefaultConfig(), janitor.Options{})
		defer stop()
		held := func() int {
			record, err := db.Machine(t.Context(), claim.Works[0].Record.ID)
			check(t, err)
			return len(record.Holds)
		}
		time.Sleep(4 * time.Second)
		if held() != 1 {
			t.Error("it was freed before its session ended")
		}
		time.Sleep(5 * time.Second)
		if held() != 0 {
			t.Error("it is still held")
		}
	})
}

// TestANewPolicyReachesEveryMachine is rule 10, and rule 12: in batches that are smaller than the
// fleet.
func TestANewPolicyReachesEveryMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bounds := &bmdbtest.Bounds{Engine: shepherdtest.OpenEngine(t)}
		db := shepherdtest.OpenDB(t, bounds, bmdb.Options{})
		shepherdtest.Seed(t, db, source, shepherdtest.NewFakeProvider(25), 25)
		config := janitor.DefaultConfig()
		config.Batch = 4
		seen := newCounter()
		_, stop := run(t, db, config, janitor.Options{Observed: seen.Done})
		defer stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		before := seen.rows[janitor.DutyRecompute]
		policy := fleet.DefaultPolicy()
		policy.NeverSpokeAfter = time.Hour
		_, err := db.SetPolicy(t.Context(), policy)
		check(t, err)
		time.Sleep(config.Interval + time.Second)
		synctest.Wait()
		if got := seen.rows[janitor.DutyRecompute] - before; got != 25 {
			t.Errorf("%d machines were judged again", got)
		}
		for _, statement := range []string{"ListOlderPolicy", "ListMachineIDsAfter"} {
			if most := bounds.Most(statement); most != config.Batch {
				t.Errorf("%s was limited to %d rows", statement, most)
			}
		}
	})
}

// TestFindings: what a check finds is logged once, and told until it is gone.
func TestFindings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, engine := open(t)
		ids := shepherdtest.Seed(t, db, source, shepherdtest.NewFakeProvider(1), 1)
		var log bytes.Buffer
		j, stop := run(t, db, janitor.DefaultConfig(), janitor.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		defer stop()
		disorder := func(statement string) {
			check(t, engine.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
				_, err := tx.ExecContext(ctx, statement, string(ids[0]))
				return err
			}))
		}
		time.Sleep(2 * time.Minute)
		if len(j.Findings()) != 0 {
			t.Fatalf("in order, and yet: %v", j.Findings())
		}
		disorder(`DELETE FROM agenda WHERE subject = 'machine/' || $1 OR subject = $1`)
		time.Sleep(5 * time.Minute)
		stop()
		if len(j.Findings()) == 0 || strings.Count(log.String(), "invariant is violated") != len(j.Findings()) {
			t.Errorf("findings %v, log:\n%s", j.Findings(), log.String())
		}
	})
}

// held is an engine with a machine that somebody else has locked.
type held struct {
	bmdb.Engine
	machine fleet.MachineID
}

func (h *held) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return h.Engine.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, heldTx{tx, h.machine}) })
}

type heldTx struct {
	bmdb.Tx
	machine fleet.MachineID
}

func (t heldTx) LockMachines(ctx context.Context, ids []fleet.MachineID, skipLocked bool) ([]fleet.MachineID, error) {
	if slices.Contains(ids, t.machine) {
		return nil, fleet.Errorf(fleet.KindTemporary, "somebody else has it locked")
	}
	return t.Tx.LockMachines(ctx, ids, skipLocked)
}

// TestALockedMachineKeepsNoCheckUp: those behind it are checked, round by round, and a finding is
// not forgotten before a round has looked at all.
func TestALockedMachineKeepsNoCheckUp(t *testing.T) {
	t.Parallel()
	engine := &held{Engine: shepherdtest.OpenEngine(t)}
	db := shepherdtest.OpenDB(t, engine, bmdb.Options{})
	ids := shepherdtest.Seed(t, db, source, shepherdtest.NewFakeProvider(3), 3)
	slices.Sort(ids)
	j, err := janitor.New(db, janitor.DefaultConfig(), janitor.Options{})
	check(t, err)
	// The agenda of these is damaged, whether one is locked, and what must be found after two checks.
	for _, c := range []struct {
		damaged []fleet.MachineID
		locked  fleet.MachineID
		told    []fleet.MachineID
	}{
		{[]fleet.MachineID{ids[0], ids[2]}, ids[1], []fleet.MachineID{ids[0], ids[2]}},
		{[]fleet.MachineID{ids[0]}, ids[1], []fleet.MachineID{ids[0], ids[2]}},
		{[]fleet.MachineID{ids[0]}, "", []fleet.MachineID{ids[0]}},
		{nil, ids[0], []fleet.MachineID{ids[0]}},
		{nil, "", nil},
	} {
		_, err := bmdb.Exec(t.Context(), engine, "UPDATE agenda SET process = 'agent-start' WHERE process = 'x'")
		check(t, err)
		for _, id := range c.damaged {
			_, err := bmdb.Exec(t.Context(), engine, "UPDATE agenda SET process = 'x' WHERE process = 'agent-start' AND subject = $1", string(id))
			check(t, err)
		}
		engine.machine = c.locked
		for i := range 2 {
			err := j.Do(t.Context(), janitor.DutyCheck)
			if met := c.locked != "" && i == 0; met != (fleet.KindOf(err) == fleet.KindTemporary && strings.Contains(err.Error(), string(c.locked))) {
				t.Errorf("locked %q, check %d: %v", c.locked, i, err)
			}
		}
		var told []fleet.MachineID
		for _, f := range j.Findings() {
			told = append(told, fleet.MachineID(f.Subject))
		}
		if slices.Sort(told); !slices.Equal(told, c.told) {
			t.Errorf("damaged %q, locked %q: told of %q", c.damaged, c.locked, told)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	check(t, janitor.DefaultConfig().Validate())
	err := janitor.Config{}.Validate()
	for _, key := range []string{"interval", "check_interval", "prune_interval", "keep_history", "keep_sessions", "batch"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("no fault names %s: %v", key, err)
		}
	}
	if _, err := janitor.New(nil, janitor.Config{}, janitor.Options{}); fleet.KindOf(err) != fleet.KindInvalid && err == nil {
		t.Errorf("it was made all the same: %v", err)
	}
}

// TestTheLineIsStopped: agents that fall silent together stop recovery, without anybody asking for
// it, and it goes on when most of them are heard again.
func TestTheLineIsStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		const machines = 6
		shepherdtest.Seed(t, db, source, shepherdtest.NewFakeProvider(machines), machines)
		agents := startAgents(t, db, machines)
		_, stop := run(t, db, janitor.DefaultConfig(), janitor.Options{})
		defer stop()
		// Our listener is up all the time; those who are not silent are heard.
		pass := func(lasts time.Duration, heard []bmdb.Seen) {
			for range int(lasts / (10 * time.Second)) {
				check(t, db.ListenerAlive(t.Context(), 30*time.Second, 30*time.Second))
				check(t, db.FlushSeen(t.Context(), heard))
				time.Sleep(10 * time.Second)
			}
		}
		held := func(want bool) {
			t.Helper()
			hold, err := bmdbtest.RecoveryHold(t.Context(), db)
			check(t, err)
			if (hold != nil) != want {
				t.Fatalf("recovery is stopped by %+v", hold)
			}
		}
		pass(15*time.Minute, agents)
		held(false)
		pass(15*time.Minute, agents[5:]) // five of six are silent
		held(true)
		rows, err := db.ProviderHistory(t.Context(), source, 1, false)
		check(t, err)
		if len(rows) != 1 || rows[0].Event != fleet.EventPaused || !strings.Contains(rows[0].Detail, "5 of 6 machines with an agent are silent") {
			t.Errorf("history says %+v", rows)
		}
		for _, a := range agents[1:5] { // four come back
			check(t, db.RecordSpoken(t.Context(), bmdb.AgentIdentity{Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration, PublicKey: []byte("key")}, "boot"))
		}
		pass(time.Minute, agents[1:])
		held(true) // the sixth has the time of a step
		rows, err = db.ProviderHistory(t.Context(), source, 1, false)
		check(t, err)
		if len(rows) != 1 || !strings.HasSuffix(rows[0].Detail, "1 of 6 machines with an agent are silent; the others were heard again, and these still have time") {
			t.Errorf("history says %+v", rows)
		}
		pass(fleet.DefaultPolicy().RecoveryStepTimeout, agents[1:])
		held(false)
	})
}

// startAgents starts the agents of all machines, and lets them speak.
func startAgents(t *testing.T, db *bmdb.DB, n int) (seen []bmdb.Seen) {
	t.Helper()
	check(t, db.ListenerAlive(t.Context(), 30*time.Second, 30*time.Second))
	session, err := db.StartSession(t.Context(), bmdb.SessionOptions{Component: "initializer", Lease: time.Minute})
	check(t, err)
	claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: n})
	check(t, err)
	for _, work := range claim.Works {
		agent := bmdb.AgentIdentity{Machine: work.Subject.Machine, PublicKey: []byte("key")}
		check(t, work.Note(t.Context(), bmdb.MintTakeover(0, &agent.TakeoverGeneration)))
		check(t, work.Finish(t.Context(), bmdb.SetAgentStarted(fleet.AgentStarted{
			TakeoverGeneration: agent.TakeoverGeneration, PublicKey: agent.PublicKey, AgentVersion: "test", BootID: "boot",
		})))
		check(t, db.RecordSpoken(t.Context(), agent, "boot"))
		seen = append(seen, bmdb.Seen{Machine: agent.Machine, TakeoverGeneration: agent.TakeoverGeneration})
	}
	if len(seen) != n {
		t.Fatalf("started %d agents, want %d", len(seen), n)
	}
	check(t, session.Close(t.Context(), "done"))
	return seen
}

// TestOldPlansGo: a plan stays for keep_plans after it has expired, and goes then.
func TestOldPlansGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := open(t)
		ids := shepherdtest.Seed(t, db, source, shepherdtest.NewFakeProvider(1), 1)
		plan, err := db.CreatePlan(t.Context(), "ada", bmdb.PlanRequest{Verb: fleet.VerbQuarantine, Reason: "a noise", Machines: ids})
		check(t, err)
		config := janitor.DefaultConfig()
		config.Interval, config.KeepPlans = 5*time.Minute, 30*time.Minute
		_, stop := run(t, db, config, janitor.Options{})
		defer stop()
		time.Sleep(35 * time.Minute) // since it was made: it has not expired for so long
		if _, err := db.Plan(t.Context(), plan.ID); err != nil {
			t.Errorf("after a while: %v", err)
		}
		time.Sleep(25 * time.Minute)
		if _, err := db.Plan(t.Context(), plan.ID); fleet.KindOf(err) != fleet.KindNotFound {
			t.Errorf("after an hour: %v", err)
		}
	})
}

// TestAJanitorIsKnownToBeAlive: it has a session while it runs, and another one after it has lost
// it, so that somebody is told when nobody has the role.
func TestAJanitorIsKnownToBeAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, engine := open(t)
		alive := func() string {
			t.Helper()
			rows, err := db.Sessions(t.Context(), false)
			check(t, err)
			var all []string
			for _, r := range rows {
				all = append(all, fmt.Sprintf("%s on %s, %d", r.Component, r.Host, r.PID))
			}
			return strings.Join(all, "; ")
		}
		_, stop := run(t, db, janitor.DefaultConfig(), janitor.Options{Host: "herd", PID: 7})
		defer stop()
		time.Sleep(time.Hour)
		if got := alive(); got != "janitor on herd, 7" {
			t.Errorf("alive are: %s", got)
		}
		first := fmt.Sprint(sessionsOf(t, db))
		check(t, engine.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE session SET ended_at = 1, cause = 'lost'")
			return err
		}))
		time.Sleep(time.Minute)
		if got := alive(); got != "janitor on herd, 7" || fmt.Sprint(sessionsOf(t, db)) == first {
			t.Errorf("after it has lost its session, alive are: %s", got)
		}
		stop()
		if got := alive(); got != "" {
			t.Errorf("it has stopped, and alive are: %s", got)
		}
		summary, err := db.Summary(t.Context())
		check(t, err)
		if slices.Contains(summary.Missing, fleet.RoleJanitor) {
			t.Error("it is missing at once, before a restart is over")
		}
		time.Sleep(2 * time.Minute)
		summary, err = db.Summary(t.Context())
		check(t, err)
		if !slices.Contains(summary.Missing, fleet.RoleJanitor) {
			t.Errorf("missing are %v", summary.Missing)
		}
	})
}

func sessionsOf(t *testing.T, db *bmdb.DB) (ids []fleet.SessionID) {
	t.Helper()
	rows, err := db.Sessions(t.Context(), false)
	check(t, err)
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}
