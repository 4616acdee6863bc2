package postgres_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
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

var template struct {
	sync.Mutex
	name string
}

// migrated makes a database that has the schema, and drops it when the test is over.
func migrated(t testing.TB, s *pgserver.Server) string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	template.Lock()
	if template.name == "" {
		name, err := s.Create(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		e, err := postgres.Open(ctx, s.URL(name), postgres.Options{Silent: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Migrate(ctx); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		template.name = name
	}
	template.Unlock()
	return database(t, s, template.name)
}

// database makes a database like another one, or an empty one.
func database(t testing.TB, s *pgserver.Server, like string) string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	name, err := s.Create(ctx, like)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Drop(ctx, name); err != nil {
			t.Error(err)
		}
	})
	return s.URL(name)
}

func open(t testing.TB, url string, options postgres.Options) *postgres.Engine {
	t.Helper()
	e, err := postgres.Open(t.Context(), url, options)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestConformance(t *testing.T) {
	t.Parallel()
	bmdbtest.Run(t, func(t *testing.T) bmdb.Engine {
		t.Helper()
		return open(t, migrated(t, pgserver.Shared(t)), postgres.Options{})
	})
}

func TestConformanceSerializable(t *testing.T) {
	t.Parallel()
	bmdbtest.Run(t, func(t *testing.T) bmdb.Engine {
		t.Helper()
		return open(t, migrated(t, pgserver.Shared(t)), postgres.Options{Serializable: true})
	})
}
