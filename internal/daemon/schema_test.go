package daemon_test

import (
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
)

// schemaOf returns everything in a database that has a definition, and the versions of its schema.
func schemaOf(t *testing.T, db *sql.DB) (all []string) {
	t.Helper()
	for _, query := range []string{
		"SELECT name || ': ' || COALESCE(sql, '') FROM sqlite_schema ORDER BY name",
		"SELECT 'version ' || version_id || ', ' || is_applied FROM goose_db_version ORDER BY id",
	} {
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil && strings.Contains(err.Error(), "no such table") {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			all = append(all, line)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // the next are read
			t.Fatal(err)
		}
	}
	return all
}

// filesIn returns what is in a directory, by name and mode.
func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()+", "+info.Mode().String()] = string(content)
	}
	return all
}

// foreign makes a database of another program.
func foreign(t *testing.T, path, journal string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"PRAGMA journal_mode = " + journal, "CREATE TABLE song (title TEXT)", "INSERT INTO song VALUES ('x')"} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNothingIsWrittenWhereThereIsNoBMDB, and the sentence says what to do.
func TestNothingIsWrittenWhereThereIsNoBMDB(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(path string){
		"no file": func(string) {},
		"empty": func(path string) {
			if err := os.WriteFile(path, nil, 0o640); err != nil {
				t.Fatal(err)
			}
		},
		"another program's":        func(path string) { foreign(t, path, "DELETE") },
		"another program's, a WAL": func(path string) { foreign(t, path, "WAL") },
	} {
		dir := t.TempDir()
		c := config.Config{Database: config.Database{Path: filepath.Join(dir, "bmdb")}}
		prepare(c.Database.Path)
		before := filesIn(t, dir)
		for command, run := range map[string]func() error{
			"db check":          func() error { _, err := daemon.CheckDatabase(t.Context(), c); return err },
			"db accept-restore": func() error { _, err := daemon.AcceptRestore(t.Context(), c, "op", true); return err },
			"db migrate":        func() error { _, _, err := daemon.Migrate(t.Context(), c); return err },
			"serve": func() error {
				all := settings(t)
				all.Database = c.Database
				d, err := daemon.Open(t.Context(), all, daemon.Options{Logger: slog.New(slog.DiscardHandler)})
				if err == nil {
					err = d.Close()
				}
				return err
			},
		} {
			isForeign := strings.HasPrefix(name, "another")
			if command == "db migrate" && name == "empty" || command == "serve" && !isForeign {
				continue // they make one
			}
			err := run()
			kind, words := fleet.KindNotFound, c.Database.Path+": name the file that has it as database.path, or let"
			if isForeign {
				kind, words = fleet.KindInvalid, c.Database.Path+": it belongs to another program (it has a table song): name a file"
			}
			if fleet.KindOf(err) != kind || !strings.Contains(err.Error(), words) {
				t.Errorf("%s, %s: %v", command, name, err)
			}
			if diff := cmp.Diff(before, filesIn(t, dir)); diff != "" {
				t.Errorf("%s, %s, changed:\n%s", command, name, diff)
			}
		}
	}
	c := config.Config{Database: config.Database{Path: filepath.Join(t.TempDir(), "bmdb")}}
	if err := os.WriteFile(c.Database.Path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if from, to, err := daemon.Migrate(t.Context(), c); err != nil || from != 0 || to == 0 {
		t.Errorf("a schema for an empty file: %d to %d, %v", from, to, err)
	}
}

// makeSchema makes an embedded database in a new file. bring makes its schema, being told the
// last version.
func makeSchema(t *testing.T, path string, bring func(p *goose.Provider, db *sql.DB, last int64) error) *sql.DB {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, os.DirFS("../bmdb/sqlite/migrations"))
	if err != nil {
		t.Fatal(err)
	}
	sources := p.ListSources()
	if err := bring(p, db, sources[len(sources)-1].Version); err != nil {
		t.Fatal(err)
	}
	return db
}

func makeOlder(t *testing.T, path string) *sql.DB {
	t.Helper()
	return makeSchema(t, path, func(p *goose.Provider, _ *sql.DB, last int64) error {
		_, err := p.UpTo(t.Context(), last-1)
		return err
	})
}

func makeNewer(t *testing.T, path string) *sql.DB {
	t.Helper()
	return makeSchema(t, path, func(p *goose.Provider, db *sql.DB, last int64) error {
		_, err := p.Up(t.Context())
		_, insertErr := db.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (?, 1)", last+1)
		return errors.Join(err, insertErr)
	})
}

// TestARefusedStartMigratesNothing: where a key or a certificate has a start refused, the version
// from before starts on the database.
func TestARefusedStartMigratesNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		damage  func(c *config.Config, file string)
		refusal string
	}{
		"the SSH key":                  {func(c *config.Config, file string) { c.SSH.KeyFile = file }, "SSH key"},
		"the certificate of agents":    {func(c *config.Config, file string) { c.AgentAPI.TLS.Certificate, c.AgentAPI.TLS.Key = file, file }, "certificate"},
		"the certificate of operators": {func(c *config.Config, file string) { c.OperatorAPI.TLS.Certificate, c.OperatorAPI.TLS.Key = file, file }, "certificate"},
	} {
		c := settings(t)
		c.Database.Path = filepath.Join(t.TempDir(), "bmdb")
		db := makeOlder(t, c.Database.Path)
		before := schemaOf(t, db)
		file := filepath.Join(t.TempDir(), "damaged")
		if err := os.WriteFile(file, []byte("no key"), 0o600); err != nil {
			t.Fatal(err)
		}
		test.damage(&c, file)
		d, err := daemon.Open(t.Context(), c, daemon.Options{})
		if err == nil {
			t.Fatal(name, "opened", d.Close())
		}
		if !strings.Contains(err.Error(), test.refusal) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, schemaOf(t, db)); diff != "" {
			t.Errorf("%s: the refused start changed the schema:\n%s", name, diff)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhoeverOnlyLooksMigratesNothing: db check and db accept-restore leave the schema of an
// embedded database as it is, and say what to do where it is another one than theirs.
func TestWhoeverOnlyLooksMigratesNothing(t *testing.T) {
	t.Parallel()
	const older, newer = "is older than this binary needs", "is newer than this binary knows"
	for name, test := range map[string]struct {
		make func(t *testing.T, path string) *sql.DB
		want []string
	}{
		"older": {makeOlder, []string{older, "run `ironherd db migrate`"}},
		"newer": {makeNewer, []string{newer, "use a newer binary"}},
	} {
		c := config.Config{Database: config.Database{Path: filepath.Join(t.TempDir(), "bmdb")}}
		db := test.make(t, c.Database.Path)
		before := schemaOf(t, db)
		for command, run := range map[string]func() error{
			"db check":          func() error { _, err := daemon.CheckDatabase(t.Context(), c); return err },
			"db accept-restore": func() error { _, err := daemon.AcceptRestore(t.Context(), c, "op", true); return err },
		} {
			err := run()
			missing := func(want string) bool { return err == nil || !strings.Contains(err.Error(), want) }
			if fleet.KindOf(err) != fleet.KindConflict || slices.ContainsFunc(test.want, missing) {
				t.Errorf("%s of one that is %s: %v, want %q", command, name, err, test.want)
			}
			if diff := cmp.Diff(before, schemaOf(t, db)); diff != "" {
				t.Errorf("%s of one that is %s changed it:\n%s", command, name, diff)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if name == "newer" {
			continue
		}
		if _, _, err := daemon.Migrate(t.Context(), c); err != nil {
			t.Errorf("migrate one that is %s: %v", name, err)
		}
		if found, err := daemon.CheckDatabase(t.Context(), c); err != nil || len(found) > 0 {
			t.Errorf("what was %s, once it is migrated: %v, %v", name, found, err)
		}
	}
}
