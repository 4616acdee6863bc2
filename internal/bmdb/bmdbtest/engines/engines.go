// Package engines opens every engine of the BMDB, fresh and empty, for tests that hold all of them to the same words. What an engine
// needs to run (a directory, a server) is the test's own and goes with it.
package engines

import (
	"path/filepath"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
)

// Opener opens databases of one engine.
type Opener struct {
	// Name of the engine, such as "sqlite".
	Name string
	// Open returns a new database without a schema. Whoever asked closes it.
	Open func(t testing.TB) bmdb.Engine
}

// All returns an opener for every engine that can be opened here.
func All() []Opener { return []Opener{{Name: "sqlite", Open: openSQLite}} }

func openSQLite(t testing.TB) bmdb.Engine {
	t.Helper()
	e, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
