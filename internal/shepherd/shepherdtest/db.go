package shepherdtest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
)

// OpenEngine opens an empty database on the real embedded engine. OpenDB takes it over, and closes
// it.
func OpenEngine(tb testing.TB) *sqlite.Engine {
	tb.Helper()
	return sqlitetest.Open(tb, filepath.Join(tb.TempDir(), "bmdb"), sqlite.Options{})
}

// OpenDB opens a BMDB over an engine, and closes it when the test ends.
func OpenDB(tb testing.TB, engine bmdb.Engine, options bmdb.Options) *bmdb.DB {
	tb.Helper()
	db, err := bmdb.Open(tb.Context(), engine, options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

// PutBack makes the database of an engine look restored.
func PutBack(tb testing.TB, engine bmdb.Engine) {
	tb.Helper()
	err := engine.Update(tb.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO restored (id, at, evidence) VALUES (1, 1, 'put back by hand')")
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
}
