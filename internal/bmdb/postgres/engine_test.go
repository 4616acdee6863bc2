package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// own makes a database that no other test gets, with the schema.
func own(t *testing.T) (url, name string) {
	t.Helper()
	s, ctx := pgserver.Shared(t), context.WithoutCancel(t.Context())
	name, err := s.Create(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Drop(ctx, name); err != nil {
			t.Error(err)
		}
	})
	if err := migrate(ctx, s.URL(name)); err != nil {
		t.Fatal(err)
	}
	return s.URL(name), name
}

func restored(t *testing.T, p *party) string {
	t.Helper()
	env, err := p.Environment(t.Context())
	p.must(err)
	return env.Restored
}

// TestCopiesAreRecognised: a copy of a database under the same server, and a server on another
// timeline, wait until they are accepted.
func TestCopiesAreRecognised(t *testing.T) {
	t.Parallel()
	url, name := own(t)
	s := pgserver.Shared(t)
	for range 2 { // opened again and again, it is the same
		e := open(t, url, postgres.Options{Silent: true})
		db, err := bmdb.Open(t.Context(), e, bmdb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		env, err := db.Environment(t.Context())
		if err != nil || env.Restored != "" {
			t.Fatalf("looks restored: %q, %v", env.Restored, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := query[int](t, url, "SELECT count(*) FROM pg_inherits WHERE inhparent = CAST('history' AS REGCLASS)"); n != 8 {
		t.Errorf("%d partitions after it was opened twice", n)
	}
	copied, err := s.Create(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	p := join(t, s.URL(copied), postgres.Options{Silent: true})
	if got := restored(t, p); !strings.Contains(got, "was copied here") {
		t.Errorf("a copy: %q", got)
	}
	p.must(p.AcceptRestore(t.Context(), "op"))
	if got := restored(t, p); got != "" {
		t.Errorf("accepted: %q", got)
	}
	again := join(t, s.URL(copied), postgres.Options{Silent: true})
	if got := restored(t, again); got != "" {
		t.Errorf("opened after it was accepted: %q", got)
	}
	for noticed := int64(0); ; { // the second time before anybody has accepted the first
		p.must(s.Exec(t.Context(), copied, "UPDATE database_mark SET counter = counter + 1"))
		if got := restored(t, join(t, s.URL(copied), postgres.Options{Silent: true})); !strings.Contains(got, "recovered or promoted") {
			t.Errorf("another timeline: %q", got)
		}
		at := query[int64](t, s.URL(copied), "SELECT at FROM restored")
		_ = join(t, s.URL(copied), postgres.Options{Silent: true})
		if again := query[int64](t, s.URL(copied), "SELECT at FROM restored"); at <= noticed || again != at {
			t.Errorf("noticed at %d, then at %d, and, opened once more, at %d", noticed, at, again)
		}
		if noticed != 0 {
			break
		}
		noticed = at
	}
}

// TestPromotionIsRecognised: also by a process that has the database open, with its first new
// connection.
func TestPromotionIsRecognised(t *testing.T) {
	t.Parallel()
	url, name := own(t)
	p := join(t, url, postgres.Options{Silent: true})
	s := pgserver.Shared(t)
	p.must(s.Exec(t.Context(), name, "UPDATE database_mark SET counter = counter + 1",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"))
	await(t, "it is recognised", func() bool {
		env, err := p.Environment(t.Context()) // the first may meet a connection that is gone
		return err == nil && env.Restored != ""
	})
}

// TestNotifications: what another process makes due is told at once, and a process that was cut off
// looks again.
func TestNotifications(t *testing.T) {
	t.Parallel()
	a, url, _ := stocked(t, 1, postgres.Options{})
	b := join(t, url, postgres.Options{})
	work := a.claim(a.session("a", time.Minute), 1)[0]
	other := b.session("b", time.Minute)
	if got := b.claim(other, 1); len(got) != 0 {
		t.Fatalf("claimed %d", len(got))
	}
	wake := b.Wake(fleet.ProcessAgentStart)
	woken := func() bool {
		select {
		case <-wake:
			return true
		default:
			return false
		}
	}
	for woken() { // what was told before
	}
	a.must(work.Cancel(t.Context(), "again"))
	await(t, "what was made due is told", woken)
	if got := b.claim(other, 1); len(got) != 1 {
		t.Errorf("claimed %d", len(got))
	}
	// A notification without entries says that anything may be due.
	for woken() {
	}
	query[string](t, url, `SELECT CAST(pg_notify('ironherd', '{"f":"somebody"}') AS TEXT)`)
	await(t, "what does not fit into a notification is looked for", woken)
	// A listener that was cut off takes everything for due.
	for woken() {
	}
	killed := query[int](t, url, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE 'LISTEN%'`)
	if killed == 0 {
		t.Fatal("nobody listens")
	}
	await(t, "a listener that was cut off looks again", woken)
}

// record writes rows of history.
func (p *party) record(at time.Time, times int) {
	p.t.Helper()
	p.must(p.pause.Update(p.t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		rows := make([]statement.InsertHistoryParams, times)
		for i := range rows {
			rows[i] = statement.InsertHistoryParams{Subject: "m", At: at.UnixMicro(), Actor: "a", Event: "x"}
		}
		return p.pause.Many(tx).InsertHistories(ctx, rows)
	}))
}

// TestHistoryPartitions: made for the days to come, dropped when all of a day is too old, and rows
// for which there is none are kept and pruned all the same.
func TestHistoryPartitions(t *testing.T) {
	t.Parallel()
	s := pgserver.Shared(t)
	began := today(t, s.URL("postgres"))
	url, name := own(t)
	p := join(t, url, postgres.Options{Silent: true})
	wantDays(t, url, began, 0)
	now, err := p.Now(t.Context())
	p.must(err)
	p.record(now, 3)
	p.record(now.Add(-40*day), 7)
	p.must(s.Exec(t.Context(), name,
		"CREATE TABLE history_p20200101 PARTITION OF history FOR VALUES FROM (1577836800000000) TO (1577923200000000)"))
	p.record(time.Date(2020, 1, 1, 12, 0, 0, 0, time.UTC), 2)
	for _, want := range []int{5 + 1, 2, 0} { // a dropped day of unknown length counts as one
		n, err := p.PruneHistory(t.Context(), 30*day, 5)
		p.must(err)
		if n != want {
			t.Errorf("pruned %d, want %d", n, want)
		}
	}
	wantDays(t, url, began, 0)
	rows, err := p.History(t.Context(), "m", 100)
	p.must(err)
	if len(rows) != 3 {
		t.Errorf("%d rows are left", len(rows))
	}
}

// TestHistoryWithoutAPartition: where the partition of today cannot be made, because the default
// one has rows of today, those of the coming days are made all the same; also while nothing is
// pruned, because the database looks restored.
func TestHistoryWithoutAPartition(t *testing.T) {
	t.Parallel()
	url, name := own(t)
	s := pgserver.Shared(t)
	p := join(t, url, postgres.Options{Silent: true})
	for _, day := range days(t, url) {
		p.must(s.Exec(t.Context(), name, "DROP TABLE "+day))
	}
	now, err := p.Now(t.Context())
	p.must(err)
	p.record(now, 1)
	p.must(s.Exec(t.Context(), name, "INSERT INTO restored (id, at, evidence) VALUES (1, 1, 'x')"))
	if n, err := p.PruneHistory(t.Context(), 0, 5); n != 0 || err != nil {
		t.Errorf("pruned %d of a database that may be restored, %v", n, err)
	}
	wantDays(t, url, now.UTC().Truncate(day), 1)
}

// TestOnlyOneMigrates: several processes that migrate at once make one schema.
func TestOnlyOneMigrates(t *testing.T) {
	t.Parallel()
	s, ctx := pgserver.Shared(t), context.WithoutCancel(t.Context())
	name, err := s.Create(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Drop(ctx, name) })
	var wg sync.WaitGroup
	for range 3 {
		e := open(t, s.URL(name), postgres.Options{Silent: true})
		wg.Go(func() {
			defer func() { _ = e.Close() }()
			if err := e.Migrate(ctx); err != nil {
				t.Error(err)
			}
			if have, want, err := e.Schema(ctx); have != want || err != nil {
				t.Errorf("schema %d, want %d, %v", have, want, err)
			}
		})
	}
	wg.Wait()
}

// TestOpen: what cannot be used is refused in a sentence that holds no password.
func TestOpen(t *testing.T) {
	t.Parallel()
	s := pgserver.Shared(t)
	foreign, err := s.Create(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Exec(t.Context(), foreign, "CREATE TABLE theirs (x BIGINT)"); err != nil {
		t.Fatal(err)
	}
	e := open(t, s.URL(foreign), postgres.Options{Silent: true})
	if _, _, err := e.Schema(t.Context()); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "theirs") {
		t.Errorf("somebody else's database: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		url  string
		kind fleet.Kind
	}{
		{"postgres://u:hunter2@127.0.0.1:1/x?sslmode=disable", fleet.KindTemporary},
		{"postgres://u:hunter2@127.0.0.1:notaport/x", fleet.KindInvalid},
		{"host=127.0.0.1 password=hunter2 sslmode=perhaps", fleet.KindInvalid},
		{strings.Replace(s.URL("nosuch"), "ironherd@", "ironherd:hunter2@", 1), fleet.KindInvalid},
		{strings.Replace(s.URL("postgres"), "ironherd@", "nobody:hunter2@", 1), fleet.KindInvalid},
	} {
		_, err := postgres.Open(t.Context(), c.url, postgres.Options{Password: func() (string, error) { return "hunter2", nil }})
		if err == nil || fleet.KindOf(err) != c.kind {
			t.Errorf("%s: %s: %v", c.url, fleet.KindOf(err), err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the password is told: %v", err)
		}
	}
}

// TestStatements: what the usual operations cost, by statements.
func TestStatements(t *testing.T) {
	t.Parallel()
	p, _, ids := stocked(t, 100, postgres.Options{Silent: true})
	s := p.session("a", time.Minute)
	cost := func(what string, most int) {
		t.Helper()
		if n, kinds := p.count.take(); n > most || n == 0 {
			t.Errorf("%s cost %d statements, want at most %d: %v", what, n, most, kinds)
		}
	}
	p.count.take()
	works := p.claim(s, 100)
	if len(works) != 100 {
		t.Fatalf("claimed %d", len(works))
	}
	cost("a claim of 100", 14)
	var agents []bmdb.Seen
	for _, w := range works {
		var g fleet.TakeoverGeneration
		p.must(w.Note(t.Context(), bmdb.MintTakeover(0, &g)))
		p.must(w.Finish(t.Context(), bmdb.SetAgentStarted(fleet.AgentStarted{TakeoverGeneration: g, PublicKey: []byte("k")})))
		agents = append(agents, bmdb.Seen{Machine: w.Subject.Machine, TakeoverGeneration: g})
	}
	p.must(p.ListenerAlive(t.Context(), time.Hour, time.Minute))
	for _, a := range agents {
		p.must(p.RecordSpoken(t.Context(), bmdb.AgentIdentity{Machine: a.Machine, TakeoverGeneration: 1, PublicKey: []byte("k")}, "b"))
	}
	p.claim(s, 1)
	p.count.take()
	for range 10 {
		if got := p.claim(s, 10); len(got) != 0 {
			t.Fatalf("claimed %d", len(got))
		}
	}
	cost("ten idle claims", 10)
	p.must(p.FlushSeen(t.Context(), agents))
	cost("a hundred heartbeats", 1)
	if seen := query[int](t, p.at, "SELECT count(*) FROM agent_last_seen WHERE last_at > 0"); seen != len(ids) {
		t.Errorf("%d were seen", seen)
	}
	sum, err := p.Summary(t.Context())
	p.must(err)
	if sum.Machines != 100 {
		t.Errorf("%d machines are counted", sum.Machines)
	}
	p.sound()
}

// TestNothingStartsAProcess: what is read from two tables is read by the connection that asks. With
// enable_seqscan off, helpers look cheap to PostgreSQL.
func TestNothingStartsAProcess(t *testing.T) {
	t.Parallel()
	p, _, _ := stocked(t, 1, postgres.Options{Silent: true})
	p.must(p.shift.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		a := &asked{DBTX: tx}
		if _, err := statement.New(a).ListHeld(ctx); err != nil {
			return err
		}
		var plan string
		err := tx.QueryRowContext(ctx, "EXPLAIN (FORMAT JSON) "+a.text, a.args...).Scan(&plan)
		if err == nil && strings.Contains(plan, "Workers Planned") {
			t.Errorf("helpers are started:\n%s", plan)
		}
		return err
	}))
}

// TestCountsAreFolded: state counts stay short however many changes there are, and right when two
// fold them at once.
func TestCountsAreFolded(t *testing.T) {
	t.Parallel()
	a, url, ids := stocked(t, 5, postgres.Options{Silent: true})
	b := join(t, url, postgres.Options{Silent: true})
	for n := range 110 {
		a.must(bmdbtest.Quarantine(t.Context(), a.DB, "op", ids[n%5], "x"))
		a.must(bmdbtest.Unquarantine(t.Context(), a.DB, "op", ids[n%5], "x"))
	}
	const count = "SELECT count(*) FROM state_count"
	if n := query[int](t, url, count); n < 200 {
		t.Fatalf("%d rows of counts only: the test tests nothing", n)
	}
	fold := func(p *party) {
		if _, err := p.RecomputeAgenda(t.Context(), 10); err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := a.pause.next()
	defer stop.goOn()
	wg.Go(func() { fold(a) })
	<-stop.reached
	wg.Go(func() { fold(b) })
	await(t, "the second one waits for the first", func() bool { return blocked(t, url) == 1 })
	stop.goOn()
	wg.Wait()
	if n := query[int](t, url, count); n > 50 {
		t.Errorf("%d rows of counts", n)
	}
	a.sound()
}

// TestForeignText: what no database of this kind can store is stored readably.
func TestForeignText(t *testing.T) {
	t.Parallel()
	p, _, ids := stocked(t, 1, postgres.Options{Silent: true})
	p.must(bmdbtest.Quarantine(t.Context(), p.DB, "op\x00", ids[0], "nul \x00 and \xff, '\\u0000'"))
	r, err := p.Machine(t.Context(), ids[0])
	p.must(err)
	if want := "nul \uFFFD and \uFFFD, '\\u0000'"; r.Quarantine == nil || r.Quarantine.Reason != want {
		t.Errorf("got %+q, want %+q", r.Quarantine, want)
	}
	if got := events(t, p, ids[0]); !slices.Contains(got, "quarantined") {
		t.Errorf("history %q", got)
	}
}

// TestPlainRole: a role that owns its database and nothing else can do all that is needed, and the
// server tells it who it is.
func TestPlainRole(t *testing.T) {
	t.Parallel()
	s, ctx := pgserver.Shared(t), context.WithoutCancel(t.Context())
	began := today(t, s.URL("postgres"))
	name, err := s.Create(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Drop(ctx, name), s.Exec(ctx, "postgres", "DROP ROLE plain")); err != nil {
			t.Error(err)
		}
	})
	if err := s.Exec(ctx, "postgres", "CREATE ROLE plain LOGIN", "ALTER DATABASE "+name+" OWNER TO plain"); err != nil {
		t.Fatal(err)
	}
	url := strings.Replace(s.URL(name), "//"+pgserver.User+"@", "//plain@", 1)
	if err := migrate(ctx, url); err != nil {
		t.Fatal(err)
	}
	p := join(t, url, postgres.Options{})
	p.must(stock(t, p, []fleet.MachineID{fleet.NewMachineID()}))
	if got := p.claim(p.session("a", time.Minute), 1); len(got) != 1 {
		t.Errorf("claimed %d", len(got))
	}
	if n := query[int](t, url, "SELECT count(*) FROM database_mark"); n != 1 {
		t.Error("it is not known which database this is")
	}
	wantDays(t, url, began, 0)
	p.sound()
}

// TestAdaptivePoll: a claimer whom nobody tells anything looks again soon after it found something,
// and ever later when it finds nothing.
func TestAdaptivePoll(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{true, false} {
		p, _, _ := stocked(t, 1, postgres.Options{Silent: silent})
		s := p.session("a", time.Minute)
		var least, most []time.Duration // whether the host was busy before the claim or after it
		for range 7 {
			before, err := p.Now(t.Context())
			p.must(err)
			c, err := s.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 2})
			p.must(err)
			after, err := p.Now(t.Context())
			p.must(err)
			least, most = append(least, c.NextDue.Sub(after)), append(most, c.NextDue.Sub(before))
		}
		const deadline = 30 * time.Second // what was claimed has a later one
		if silent && (least[0] > deadline || most[6] < least[0]+time.Second || least[6] > 10*time.Second) || !silent && most[0] <= deadline {
			t.Errorf("silent=%t: waits of at least %v and at most %v", silent, least, most)
		}
	}
}
