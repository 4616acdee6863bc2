package postgres_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestADumpPutBackIsRecognised: the server, its timeline and the database are the same ones.
func TestADumpPutBackIsRecognised(t *testing.T) {
	t.Parallel()
	for way, emptied := range map[string][]string{
		"over what is there":           nil,
		"into the emptied database":    {"DROP SCHEMA public CASCADE", "CREATE SCHEMA public"},
		"where the mark alone is lost": {"DROP TABLE database_mark"},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s, options := pgserver.Shared(t), postgres.Options{Silent: true}
			url, name := own(t)
			p := join(t, url, options)
			p.must(s.Exec(t.Context(), name, "VACUUM FULL database_mark",
				"CREATE TABLE kept AS SELECT * FROM database_mark", "TRUNCATE database_mark",
				"INSERT INTO database_mark SELECT * FROM kept", "DROP TABLE kept"))
			if got := restored(t, join(t, url, options)); got != "" {
				t.Errorf("the same table: %q", got)
			}
			dump := filepath.Join(t.TempDir(), "dump")
			client(t, url, "pg_dump", "--format=custom", "--file="+dump, "--dbname="+url)
			p.must(s.Exec(t.Context(), name, emptied...))
			client(t, url, "pg_restore", "--clean", "--if-exists", "--single-transaction", "--dbname="+url, dump)
			p.must(s.Exec(t.Context(), name,
				"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"))
			await(t, "the process that had it open recognises it", func() bool {
				env, err := p.Environment(t.Context()) // the first may meet a connection that is gone
				return err == nil && strings.Contains(env.Restored, "a dump was put back")
			})
			p.must(s.Exec(t.Context(), name, "DELETE FROM restored"))
			again := join(t, url, options)
			if got := restored(t, again); !strings.Contains(got, "a dump was put back") {
				t.Errorf("opened: %q", got)
			}
			again.must(again.AcceptRestore(t.Context(), "op"))
			if got := restored(t, join(t, url, options)); got != "" {
				t.Errorf("opened after it was accepted: %q", got)
			}
		})
	}
}

// TestAMarkOfAnOlderVersion has no part for the table: it counts as equal, and gets that part. What
// an older version compares stays as it was.
func TestAMarkOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	const comment = "SELECT obj_description(CAST('database_mark' AS REGCLASS), 'pg_class')"
	s, options := pgserver.Shared(t), postgres.Options{Silent: true}
	url, name := own(t)
	p := join(t, url, options)
	row, noted := query[string](t, url, "SELECT id || ' ' || counter FROM database_mark"), query[string](t, url, comment)
	for _, older := range []string{"NULL", "'what somebody else wrote'"} {
		p.must(s.Exec(t.Context(), name, "COMMENT ON TABLE database_mark IS "+older))
		if got := restored(t, join(t, url, options)); got != "" {
			t.Errorf("comment %s: %q", older, got)
		}
		if got := query[string](t, url, comment); got != noted {
			t.Errorf("comment %s became %q, not %q", older, got, noted)
		}
	}
	want := query[string](t, url, `SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()) || ' 1'
		FROM pg_control_system()`)
	if got := query[string](t, url, "SELECT id || ' ' || counter FROM database_mark"); got != row || got != want {
		t.Errorf("the row was %q and is %q, not %q", row, got, want)
	}
}

// TestAMarkOfAnotherOwner: a role that may not comment on the table works with the database all the
// same.
func TestAMarkOfAnotherOwner(t *testing.T) {
	t.Parallel()
	s, options := pgserver.Shared(t), postgres.Options{Silent: true}
	url, name := own(t)
	guest := "guest_" + name
	if err := s.Exec(t.Context(), name, "CREATE ROLE "+guest+" LOGIN", "GRANT USAGE ON SCHEMA public TO "+guest,
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+guest,
		"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO "+guest); err != nil {
		t.Fatal(err)
	}
	p := join(t, strings.Replace(url, "//"+pgserver.User+"@", "//"+guest+"@", 1), options)
	if got := restored(t, p); got != "" {
		t.Errorf("opened: %q", got)
	}
}

// TestDataPutBackByHand is what docs/ops/database.md has people do after a restore that nothing
// tells.
func TestDataPutBackByHand(t *testing.T) {
	t.Parallel()
	s, options := pgserver.Shared(t), postgres.Options{Silent: true}
	url, name := own(t)
	p := join(t, url, options)
	p.must(s.Exec(t.Context(), name,
		"INSERT INTO restored VALUES (1, CAST(extract(epoch FROM now()) * 1000000 AS BIGINT), 'data was put back by hand')"))
	again := join(t, url, options)
	if got := restored(t, again); got != "data was put back by hand" {
		t.Errorf("opened: %q", got)
	}
	again.must(again.AcceptRestore(t.Context(), "op"))
	if got := restored(t, join(t, url, options)); got != "" {
		t.Errorf("accepted: %q", got)
	}
}

// TestADumpOfAnOlderRelease: over a newer schema it cannot be migrated, because what only that one
// has is still there, and the failure says what to do. In an emptied schema it can.
func TestADumpOfAnOlderRelease(t *testing.T) {
	t.Parallel()
	s, ctx := pgserver.Shared(t), t.Context()
	name, err := s.Create(ctx, "")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	url := s.URL(name)
	e := open(t, url, postgres.Options{Silent: true})
	t.Cleanup(func() {
		if err := errors.Join(e.Close(), s.Drop(context.WithoutCancel(ctx), name)); err != nil {
			t.Error(err)
		}
	})
	must(e.MigrateTo(ctx, 28))
	dump := filepath.Join(t.TempDir(), "dump")
	client(t, url, "pg_dump", "--format=custom", "--file="+dump, "--dbname="+url)
	must(e.Migrate(ctx))
	client(t, url, "pg_restore", "--clean", "--if-exists", "--single-transaction", "--dbname="+url, dump)
	err = e.Migrate(ctx)
	if fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), "put the dump into an emptied schema, or into a new database: ") ||
		!strings.Contains(err.Error(), `"agent_authority" already exists`) {
		t.Errorf("over the newer schema: %v", err)
	}
	must(s.Exec(ctx, name, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"))
	client(t, url, "pg_restore", "--single-transaction", "--dbname="+url, dump)
	must(e.Migrate(ctx))
}

// client runs a program that comes with the server.
func client(t *testing.T, url, program string, args ...string) {
	t.Helper()
	dir := query[string](t, url, "SELECT setting FROM pg_config WHERE name = 'BINDIR'")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, program), args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
}
