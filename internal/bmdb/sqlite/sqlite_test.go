package sqlite_test

import (
	"flag"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
)

func TestMain(m *testing.M) {
	// A sample of the random tests; `go test -rapid.checks=1000` runs as many as one likes.
	if err := flag.Set("rapid.checks", "10"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	bmdbtest.Run(t, func(t *testing.T) bmdb.Engine {
		t.Helper()
		return sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{})
	})
}
