package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

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
	if err := kept.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
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
	e, err := postgres.Open(ctx, url, postgres.Options{Silent: true, Lease: patience})
	if err != nil {
		return err
	}
	return errors.Join(e.Migrate(ctx), e.Close())
}

// patience is the lease of engines whose test does not say another one. The server waits for locks,
// and for a transaction to go on, so long that a busy host makes no difference.
const patience = 2 * time.Minute

func open(tb testing.TB, url string, options postgres.Options) *postgres.Engine {
	tb.Helper()
	options.Lease = cmp.Or(options.Lease, patience)
	e, err := postgres.Open(tb.Context(), url, options)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// kept are engines that one test uses after the other, each with a database of its own, which is
// empty each time. A connection costs the server tens of milliseconds, and as much again until it
// has planned what it is asked.
var kept engines

type engines struct {
	mu sync.Mutex
	of map[string]*postgres.Engine // by the address of its database
}

// open lends an engine of a kind; those of one kind have the same options.
func (k *engines) open(tb testing.TB, kind string, options postgres.Options) bmdb.Engine {
	tb.Helper()
	s := pgserver.Shared(tb)
	url := s.URL(s.Borrow(tb, kind, migrate))
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == nil {
		k.of = make(map[string]*postgres.Engine)
	}
	if k.of[url] == nil {
		k.of[url] = open(tb, url, options)
	}
	return unclosed{k.of[url]}
}

func (k *engines) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, e := range k.of {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// unclosed stays open for the next test.
type unclosed struct{ *postgres.Engine }

func (unclosed) Close() error { return nil }

func TestConformance(t *testing.T) {
	t.Parallel()
	bmdbtest.Run(t, func(t *testing.T) bmdb.Engine {
		t.Helper()
		return kept.open(t, "conformance", postgres.Options{})
	})
}

func TestConformanceSerializable(t *testing.T) {
	t.Parallel()
	bmdbtest.Run(t, func(t *testing.T) bmdb.Engine {
		t.Helper()
		return kept.open(t, "conformance serializable", postgres.Options{Serializable: true})
	})
}
