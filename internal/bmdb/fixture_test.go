package bmdb_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens the file with the embedded engine and brings its schema up.
func open(t *testing.T, path string) *sqlite.Engine {
	t.Helper()
	return sqlitetest.Open(t, path, sqlite.Options{})
}

// openDB opens the whole.
func openDB(t *testing.T, path string) *bmdb.DB {
	t.Helper()
	db, err := bmdb.Open(t.Context(), open(t, path), bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func closed(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// failing is an engine that can be told to fail every extension.
type failing struct {
	bmdb.Engine
	broken atomic.Bool
}

var errBroken = errors.New("broken on purpose")

func (f *failing) Extend(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	if f.broken.Load() {
		return errBroken
	}
	return f.Engine.Extend(ctx, fn)
}
