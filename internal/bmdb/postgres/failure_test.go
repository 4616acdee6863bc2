package postgres_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestNobodyAnswers: one sentence, with the address once, though the driver tries twice.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	_, err := postgres.Open(t.Context(), "postgres://ironherd@127.0.0.1:1/none", postgres.Options{})
	if fleet.KindOf(err) != fleet.KindTemporary {
		t.Fatalf("got %v", err)
	}
	if text := err.Error(); strings.Contains(text, "\n") || strings.Count(text, "connection refused") != 1 || !strings.Contains(text, "database.url") {
		t.Errorf("got %s", text)
	}
}

// TestAStatementThatIsCancelled, because its caller's time is up or somebody asks the server for
// it, may be tried again.
func TestAStatementThatIsCancelled(t *testing.T) {
	t.Parallel()
	p, _, _ := stocked(t, 1, postgres.Options{Silent: true})
	for what, test := range map[string]struct {
		statement string
		limit     time.Duration
	}{
		"its time is up":       {"SELECT pg_sleep(60)", 3 * time.Second}, // it runs by then
		"somebody asks for it": {"SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)", time.Minute},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), test.limit)
		err := p.pause.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
			_, err := tx.ExecContext(ctx, test.statement)
			return err
		})
		cancel()
		if fleet.KindOf(err) != fleet.KindTemporary {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// TestARoleThatMayNotLogIn: what a commit hears then says nothing of its facts. Nobody restarts
// the process for the new password either: it is read again.
func TestARoleThatMayNotLogIn(t *testing.T) {
	t.Parallel()
	s, ctx := pgserver.Shared(t), context.WithoutCancel(t.Context())
	if err := s.Exec(ctx, "postgres", "CREATE ROLE rotated LOGIN"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Exec(ctx, "postgres", "DROP ROLE rotated") })
	var asked atomic.Int32
	e := open(t, strings.Replace(s.URL("postgres"), "//"+pgserver.User+"@", "//rotated@", 1), postgres.Options{
		Silent: true, Connections: 1, Password: func() (string, error) {
			asked.Add(1)
			return "hunter2", nil
		},
	})
	t.Cleanup(func() { _ = e.Close() })
	look := func() error {
		return e.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
			_, err := tx.ExecContext(ctx, "SELECT 1")
			return err
		})
	}
	const ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotated'"
	if err := s.Exec(ctx, "postgres", "ALTER ROLE rotated NOLOGIN", ended); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 3 { // the first ones may meet the connection that was ended
		err = look()
	}
	if fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "the database server refuses: ") {
		t.Errorf("without a login: %s, %v", fleet.KindOf(err), err)
	}
	before := asked.Load()
	if err := s.Exec(ctx, "postgres", "ALTER ROLE rotated LOGIN"); err != nil {
		t.Fatal(err)
	}
	if err := look(); err != nil || asked.Load() == before {
		t.Errorf("with a login: %v, and the password was asked for %d times, before %d", err, asked.Load(), before)
	}
}

// TestTheServerStops in the middle of a statement, as in a crash: what was to be done may be tried
// again. Where that was a commit, nobody knows what became of it, so the engine leaves it to the
// caller (I9).
func TestTheServerStops(t *testing.T) {
	t.Parallel()
	ctx := context.WithoutCancel(t.Context())
	s, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	// The check of a deferred constraint is part of the commit, and takes its time there.
	const slow = `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END'`
	err = s.Exec(ctx, "postgres", "CREATE TABLE late (id INT)", slow,
		"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()")
	if err != nil {
		t.Fatal(err)
	}
	for what, statement := range map[string]string{
		"a statement": "SELECT pg_sleep(60)", "commit": "INSERT INTO late VALUES (1)",
	} {
		e := open(t, s.URL("postgres"), postgres.Options{Silent: true})
		runs, done := 0, make(chan error, 1)
		go func() {
			done <- e.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error {
				runs++
				_, err := tx.ExecContext(ctx, statement)
				return err
			})
		}()
		await(t, what+" is under way", func() bool {
			return query[bool](t, s.URL("postgres"), "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
		})
		s.Stop()
		if err := <-done; runs != 1 || fleet.KindOf(err) != fleet.KindTemporary || strings.Contains(err.Error(), "commit") != (what == "commit") {
			t.Errorf("%s: %d runs, %s: %v", what, runs, fleet.KindOf(err), err)
		}
		_ = e.Close()
		if err := s.Resume(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
