// Package sqlitetest opens embedded databases for tests. A new one has the schema already: the
// first test of a binary migrates a database, and the others get copies of its file. Otherwise a
// test with the race detector would spend most of its time on migrations.
package sqlitetest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
)

// template is the file of a database that was migrated and never opened as a BMDB, so that it has
// no identity yet.
var template struct {
	sync.Mutex
	file []byte
}

// Open opens the file, which it makes if there is none, and brings its schema up. Commits do not
// wait for the disk. Whoever asked closes it.
func Open(tb testing.TB, path string, options sqlite.Options) *sqlite.Engine {
	tb.Helper()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(path, migrated(tb), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	options.Unsynced = true
	return open(tb, path, options)
}

func open(tb testing.TB, path string, options sqlite.Options) *sqlite.Engine {
	tb.Helper()
	e, err := sqlite.Open(tb.Context(), path, options)
	if err != nil {
		tb.Fatal(err)
	}
	if err := e.Migrate(tb.Context()); err != nil {
		tb.Fatal(errors.Join(err, e.Close()))
	}
	return e
}

func migrated(tb testing.TB) []byte {
	tb.Helper()
	template.Lock()
	defer template.Unlock()
	if template.file == nil {
		path := filepath.Join(tb.TempDir(), "template")
		// Closing it brings everything into the one file.
		if err := open(tb, path, sqlite.Options{Unsynced: true}).Close(); err != nil {
			tb.Fatal(err)
		}
		file, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		template.file = file
	}
	return template.file
}
