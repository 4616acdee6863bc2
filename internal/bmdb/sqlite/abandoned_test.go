package sqlite_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
)

// TestWhatAKilledBackupLeavesIsRemoved: the next one into the directory does it, whatever the name
// of its own file is. It leaves what somebody may be at work on, and what others have made.
func TestWhatAKilledBackupLeavesIsRemoved(t *testing.T) {
	t.Parallel()
	path, dir := filepath.Join(t.TempDir(), "bmdb"), t.TempDir()
	closed(t, openDB(t, path))
	for name, age := range map[string]time.Duration{
		".monday.db.ironherd-partial-1":         13 * time.Hour,
		".monday.db.ironherd-partial-1-journal": 13 * time.Hour,
		".tuesday.db.ironherd-partial-2":        11 * time.Hour,
		".monday.db.partial-3":                  13 * time.Hour,
		"monday.db":                             13 * time.Hour,
	} {
		name := filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := sqlite.Backup(t.Context(), path, filepath.Join(dir, "tuesday.db")); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if want := []string{".monday.db.partial-3", ".tuesday.db.ironherd-partial-2", "monday.db", "tuesday.db"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
}
