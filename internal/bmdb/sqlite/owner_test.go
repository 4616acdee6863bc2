package sqlite_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
)

// TestFilesOfRootBelongToTheDirectorysOwner: the service runs as a user of its own. What a person
// does to its database as root must leave nothing that it cannot open, and no mark that it cannot
// read: that would look like a restored database for ever.
func TestFilesOfRootBelongToTheDirectorysOwner(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("only root can give a file to somebody else: run this test as root")
	}
	const owner = 4242
	dir := t.TempDir()
	if err := os.Chown(dir, owner, owner+1); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(dir, "first")
	e, err := sqlite.Open(t.Context(), first, sqlite.Options{Unsynced: true}) // as `db copy` does
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	// the log and its index, which a crash would leave
	belongs(t, owner, first, "", "-wal", "-shm", ".lock")
	closed(t, e)
	closed(t, openDB(t, first))
	belongs(t, owner, first, "", ".lock", ".identity")

	backup, path := filepath.Join(dir, "backup"), filepath.Join(dir, "bmdb")
	if err := sqlite.Backup(t.Context(), first, backup); err != nil {
		t.Fatal(err)
	}
	belongs(t, owner, backup, "")
	// A leftover of a crash is root's own.
	write(t, path+".identity.new", "left")
	if err := sqlite.Restore(t.Context(), backup, path); err != nil {
		t.Fatal(err)
	}
	belongs(t, owner, path, "", ".lock")
	db := openDB(t, path)
	if err := db.AcceptRestore(t.Context(), "op"); err != nil {
		t.Fatal(err)
	}
	closed(t, db)
	belongs(t, owner, path, "", ".lock", ".identity")
}

func belongs(t *testing.T, owner uint32, path string, suffixes ...string) {
	t.Helper()
	for _, suffix := range suffixes {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Error(err)
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Uid != owner || stat.Gid != owner+1 {
			t.Errorf("%s belongs to %d:%d", path+suffix, stat.Uid, stat.Gid)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", path+suffix, info.Mode().Perm())
		}
	}
}
