// Package engines opens every engine of the BMDB, fresh and empty, for tests that hold all of them
// to the same words. What an engine needs to run (a directory, a private server) is the test's own
// and goes with it; TestMain of such a test ends with Main.
package engines

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/test/pgserver"
)

// Opener opens databases of one engine.
type Opener struct {
	// Name of the engine, such as "sqlite".
	Name string
	// New makes a database that has the schema and returns what it is opened by. It goes with the
	// test.
	New func(tb testing.TB) Database
}

// Database is one that several handles may open, where its engine allows that.
type Database interface {
	// Open opens it. Whoever asked closes it.
	Open(tb testing.TB) bmdb.Engine
	// URL is how a configuration names it.
	URL() string
	// Kill ends one of the connections to it, at the server, where there are any.
	Kill(tb testing.TB)
}

var only = flag.String("engines", "", "use only the engines whose names match this expression")

// All returns an opener for every engine and every way to run it, as far as -engines allows.
func All() []Opener {
	match := regexp.MustCompile(*only)
	return slices.DeleteFunc([]Opener{
		SQLite(),
		Postgres(),
		{"postgres serializable", func(tb testing.TB) Database {
			tb.Helper()
			return pgDatabase{newPostgres(tb), postgres.Options{Serializable: true, Silent: true, Lease: patience}}
		}},
	}, func(o Opener) bool { return !match.MatchString(o.Name) })
}

// SQLite opens databases in files.
func SQLite() Opener {
	return Opener{"sqlite", func(tb testing.TB) Database { tb.Helper(); return file(filepath.Join(tb.TempDir(), "bmdb")) }}
}

// patience is a lease whose fractions, after which a server gives a transaction up, are so long
// that a busy host makes no difference.
const patience = 2 * time.Minute

// Postgres opens databases of a private server.
func Postgres() Opener {
	return Opener{"postgres", func(tb testing.TB) Database {
		tb.Helper()
		return pgDatabase{newPostgres(tb), postgres.Options{Lease: patience}}
	}}
}

// Open makes a database and opens it.
func (o Opener) Open(tb testing.TB) bmdb.Engine { tb.Helper(); return o.New(tb).Open(tb) }

// Main runs the tests of a binary and ends the private server. It returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	if err := pgserver.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

type file string

func (f file) URL() string { return "sqlite:" + string(f) }

func (f file) Kill(testing.TB) {}

func (f file) Open(tb testing.TB) bmdb.Engine {
	tb.Helper()
	return sqlitetest.Open(tb, string(f), sqlite.Options{})
}

type pgDatabase struct {
	url     string
	options postgres.Options
}

func (d pgDatabase) URL() string { return d.url }

func (d pgDatabase) Kill(tb testing.TB) {
	tb.Helper()
	u, err := url.Parse(d.url)
	if err == nil {
		err = pgserver.Shared(tb).Exec(tb.Context(), strings.TrimPrefix(u.Path, "/"), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'ironherd' ORDER BY random() LIMIT 1`)
	}
	if err != nil {
		tb.Error(err)
	}
}

func (d pgDatabase) Open(tb testing.TB) bmdb.Engine {
	tb.Helper()
	e, err := postgres.Open(tb.Context(), d.url, d.options)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// newPostgres makes a database and returns its URL.
func newPostgres(tb testing.TB) string {
	tb.Helper()
	server := pgserver.Shared(tb)
	return server.URL(server.Borrow(tb, "migrated", migrate))
}

func migrate(ctx context.Context, url string) error {
	e, err := postgres.Open(ctx, url, postgres.Options{Silent: true, Lease: patience})
	if err != nil {
		return err
	}
	if err := e.Migrate(ctx); err != nil {
		return err
	}
	return e.Close()
}
