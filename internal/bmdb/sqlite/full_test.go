package sqlite

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/fleet"
)

// noRoom is set in a process of this test that can make no large file.
const noRoom = "IRONHERD_TEST_NO_ROOM"

// TestNoRoomIsTheTargets: a target that takes no more says nothing of the database that is read.
func TestNoRoomIsTheTargets(t *testing.T) {
	if os.Getenv(noRoom) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoRoomIsTheTargets$", "-test.v")
		child.Env = append(os.Environ(), noRoom+"=yes")
		out, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	path, _ := made(t)
	const limit = 64 << 10 // more than SQLite writes beside a database that it reads
	if info, err := os.Stat(path); err != nil || info.Size() <= limit {
		t.Fatalf("the database has %d bytes, %v", info.Size(), err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "copy")
	blames(t, Backup(t.Context(), path, to), to)
	blames(t, Restore(t.Context(), path, to), to)
}

// blames fails unless an error is of writing that file.
func blames(t *testing.T, err error, to string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "write "+to+": ") || strings.Contains(err.Error(), "open database") {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
}

// TestFullIsTheTargets: so says SQLite of a disk without room.
func TestFullIsTheTargets(t *testing.T) {
	t.Parallel()
	db, err := openFile(filepath.Join(t.TempDir(), "small"), "rwc", "max_page_count(1)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE big (it)"); !ofWriting(err) {
		t.Errorf("no room: %v", err)
	}
	if _, err := db.ExecContext(t.Context(), "SELECT * FROM nothing"); err == nil || ofWriting(err) {
		t.Errorf("no table: %v", err)
	}
}

// TestWrongCopyIsTheTargets: the copy is looked at before it counts, and what is wrong with it is
// no reason to move the database away.
func TestWrongCopyIsTheTargets(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"it takes no mark": "INSERT INTO database_mark VALUES ('x', 0, 0); CREATE TRIGGER no BEFORE INSERT ON restored BEGIN SELECT RAISE(ABORT, 'no'); END",
		"a check fails":    "CREATE TABLE bad (it CHECK (it > 0)); PRAGMA ignore_check_constraints = ON; INSERT INTO bad VALUES (0)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, _ := made(t)
			db, err := openFile(path, "rw")
			if err != nil {
				t.Fatal(err)
			}
			_, err = db.ExecContext(t.Context(), spoil)
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			to := filepath.Join(t.TempDir(), "copy")
			blames(t, Backup(t.Context(), path, to), to)
			blames(t, Restore(t.Context(), path, to), to)
		})
	}
}
