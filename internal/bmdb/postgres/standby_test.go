package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// serverAlone starts a server for this test alone, with a database of the newest schema.
func serverAlone(ctx context.Context, t *testing.T) (s *pgserver.Server, name string) {
	t.Helper()
	s, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if name, err = s.Create(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if err := migrate(ctx, s.URL(name)); err != nil {
		t.Fatal(err)
	}
	return s, name
}

// TestACommitThatNoStandbyHas is not acknowledged (I8). A server whose wait for a synchronous
// standby is cancelled has committed all the same and says so: after a failover it may be lost.
func TestACommitThatNoStandbyHas(t *testing.T) {
	t.Parallel()
	ctx := context.WithoutCancel(t.Context())
	s, name := serverAlone(ctx, t)
	at := s.URL(name) + "&client_min_messages=error"
	e := open(t, at, postgres.Options{Silent: true})
	t.Cleanup(func() { _ = e.Close() })
	db, err := bmdb.Open(ctx, e, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	loseStandby(t, s, e, at)
	t.Run("what is there already", func(t *testing.T) {
		t.Parallel()
		policy := fleet.DefaultPolicy()
		policy.RecoveryAtOnce++
		for try := range 2 { // the second finds it there, and writes nothing
			if set, err := db.SetPolicy(ctx, policy); fleet.KindOf(err) != fleet.KindTemporary {
				t.Errorf("try %d: %d, %v", try, set.Number, err)
			}
		}
		if n := query[int](t, at, "SELECT count(*) FROM policy WHERE body LIKE $1", fmt.Sprintf(`%%"recovery_at_once":%d%%`, policy.RecoveryAtOnce)); n != 1 {
			t.Errorf("%d policies: the test tests nothing", n)
		}
		// Not beside the other: both lock one row for as long as they wait.
		for try := range 2 {
			if recorded, err := db.KeepAuthority(ctx, "AA:BB"); fleet.KindOf(err) != fleet.KindTemporary {
				t.Errorf("try %d: %q, %v", try, recorded, err)
			}
		}
		if n := query[int](t, at, "SELECT count(*) FROM agent_authority WHERE fingerprint = $1", "AA:BB"); n != 1 {
			t.Errorf("%d authorities: the test tests nothing", n)
		}
	})
	for who, run := range map[string]func(context.Context, func(context.Context, bmdb.Tx) error) error{
		"somebody, of an update": e.Update, "somebody, of an extension": e.Extend, "our time is up": e.Update,
	} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			runs, pids, done := 0, make(chan int, 20), make(chan error, 1)
			go func() {
				done <- run(ctx, func(ctx context.Context, tx bmdb.Tx) error {
					runs++
					var pid int
					if err := tx.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
						return err
					}
					pids <- pid
					_, err := statement.New(tx).PutPenalty(ctx, statement.PutPenaltyParams{Provider: who, Capacity: "c", Until: 1 << 60, Cause: "c"})
					return err
				})
			}()
			if strings.HasPrefix(who, "somebody") {
				pid := <-pids
				await(t, "it waits for a standby, and somebody ends that", func() bool {
					return query[bool](t, at, "SELECT coalesce(bool_or(pg_cancel_backend(pid)), false) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = $1", pid)
				})
			}
			err := <-done
			if runs != 1 || fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "commit") {
				t.Errorf("%d runs, %s: %v", runs, fleet.KindOf(err), err)
			}
			if n := query[int](t, at, "SELECT count(*) FROM penalty WHERE provider = $1", who); n != 1 {
				t.Errorf("%d rows: the test tests nothing", n)
			}
		})
	}
}

// loseStandby has each commit at the server wait for a standby that is not there.
func loseStandby(t *testing.T, s *pgserver.Server, e *postgres.Engine, at string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := s.Exec(ctx, "postgres", "ALTER SYSTEM SET synchronous_standby_names = 'away'", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	// Its backends know of the name sooner than the process that has commits wait.
	tries := int64(0)
	await(t, "commits wait for a standby", func() (waits bool) {
		tries++ // so that each writes something
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = e.Extend(ctx, func(ctx context.Context, tx bmdb.Tx) error {
				_, err := statement.New(tx).PutPenalty(ctx, statement.PutPenaltyParams{Provider: "p", Capacity: "c", Until: tries, Cause: "c"})
				return err
			})
		}()
		defer func() { <-ended }()
		await(t, "one waits, and that is ended, or it has not waited", func() bool {
			waits = query[bool](t, at, "SELECT coalesce(bool_or(pg_cancel_backend(pid)), false) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			select {
			case <-ended:
				return true
			default:
				return waits
			}
		})
		return waits
	})
}

// TestARestoreIsNotedWithoutAStandby: a server that was promoted has no synchronous standby yet,
// and commits wait. That it was promoted is recorded all the same by whoever connects to it first,
// so that everybody can read (rule 11).
func TestARestoreIsNotedWithoutAStandby(t *testing.T) {
	t.Parallel()
	ctx := context.WithoutCancel(t.Context())
	s, name := serverAlone(ctx, t)
	at := s.URL(name)
	// The lease bounds what waits.
	e := open(t, at, postgres.Options{Silent: true, Lease: 10 * time.Minute})
	db, err := bmdb.Open(ctx, e, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	other := open(t, at, postgres.Options{Silent: true}) // its connections are there already
	t.Cleanup(func() { _ = other.Close() })
	loseStandby(t, s, other, at)
	told, first := "", int64(0)
	for range 2 { // the second time before anybody has accepted the first
		if err := s.Exec(ctx, name, "SET synchronous_commit = local", "UPDATE database_mark SET counter = counter + 1",
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeout(ctx, 50*time.Second)
		defer cancel()
		before := told
		await(t, "it is recognised, and told", func() bool {
			env, err := db.Environment(soon) // the first may meet a connection that is gone
			told = env.Restored
			return err == nil && told != "" && told != before || soon.Err() != nil
		})
		if soon.Err() != nil {
			t.Fatalf("nobody could read for 50 s, or was told the same: %v: %s", soon.Err(), told)
		}
		at := query[int64](t, at, "SELECT at FROM restored")
		if at <= first {
			t.Errorf("what was heard before the second one counts as heard since: noticed at %d, and before at %d", at, first)
		}
		first = at
	}
	if n := query[int](t, at, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"); n != 0 {
		t.Errorf("%d connections wait for a standby", n)
	}
}
