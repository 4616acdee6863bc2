package postgres_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/test/pgserver"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// A sample of the random tests; `go test -rapid.checks=1000` runs as many as one likes.
	if flag.Lookup("rapid.checks").Value.String() == flag.Lookup("rapid.checks").DefValue {
		if err := flag.Set("rapid.checks", "5"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if err := pgserver.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// migrated lends a database that has the schema.
func migrated(tb testing.TB) string {
	tb.Helper()
	s := pgserver.Shared(tb)
	return s.URL(s.Borrow(tb, "migrated", migrate))
}

func migrate(ctx context.Context, url string) error {
	e, err := postgres.Open(ctx, url, postgres.Options{Silent: true})
	if err != nil {
		return err
	}
	return errors.Join(e.Migrate(ctx), e.Close())
}

func open(tb testing.TB, url string, options postgres.Options) *postgres.Engine {
	tb.Helper()
	e, err := postgres.Open(tb.Context(), url, options)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func TestConformance(t *testing.T) {
	t.Parallel()
	bmdbtest.Run(t, func(t *testing.T) bmdb.Engine {
		t.Helper()
		return open(t, migrated(t), postgres.Options{})
	})
}

func TestConformanceSerializable(t *testing.T) {
	t.Parallel()
	bmdbtest.Run(t, func(t *testing.T) bmdb.Engine {
		t.Helper()
		return open(t, migrated(t), postgres.Options{Serializable: true})
	})
}
