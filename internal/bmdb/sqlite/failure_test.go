package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/fleet"
)

// big returns a transaction that writes so many KiB.
func big(kib int) func(context.Context, bmdb.Tx) error {
	return func(ctx context.Context, tx bmdb.Tx) error {
		for range kib {
			if _, err := tx.ExecContext(ctx, "INSERT INTO policy (number, at, body) VALUES ((SELECT COALESCE(max(number), 0) + 1 FROM policy), 1, $1)", strings.Repeat("x", 1024)); err != nil {
				return err
			}
		}
		return nil
	}
}

// wantDisk fails unless an error says of the database's disk what is wrong and what to do, as one
// that passes.
func wantDisk(t *testing.T, err error, path, says string) {
	t.Helper()
	if !errors.Is(err, bmdb.ErrUnavailable) || fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "the disk of the database "+path+" "+says) {
		t.Errorf("%s: %v", fleet.KindOf(err), err)
	}
}

// TestAFullDisk: the error names the database and says what to do, and the log has nothing else of
// it. Once there is room, all goes on.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bmdb")
	var log bytes.Buffer
	e, err := sqlite.Open(t.Context(), path, sqlite.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		closed(t, e)
		if strings.Contains(log.String(), "rollback") {
			t.Errorf("it logs %s", &log)
		}
	}()
	if err := e.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	limit := func(pages string) {
		err := e.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
			var now int64
			return tx.QueryRowContext(ctx, "PRAGMA max_page_count = "+pages).Scan(&now)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	limit("1") // SQLite makes that as many as there are
	const says = "is full: make room on it; a control plane goes on by itself then, and a command is run again"
	wantDisk(t, e.Update(t.Context(), big(1000)), path, says)
	wantDisk(t, e.Extend(t.Context(), big(1000)), path, says)
	refused := fleet.Errorf(fleet.KindConflict, "no")
	if err := e.Update(t.Context(), func(context.Context, bmdb.Tx) error { return refused }); !errors.Is(err, refused) || fleet.KindOf(err) != fleet.KindConflict {
		t.Errorf("%v", err)
	}
	limit("1000000")
	if err := e.Update(t.Context(), big(1000)); err != nil {
		t.Errorf("with room: %v", err)
	}
}

// noRoomAtRunTime is set in a process of this test that can make no large file.
const noRoomAtRunTime = "IRONHERD_TEST_NO_ROOM_AT_RUN_TIME"

// TestAFailingDisk: a write that fails in another way.
func TestAFailingDisk(t *testing.T) {
	if os.Getenv(noRoomAtRunTime) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAFailingDisk$", "-test.v")
		child.Env = append(os.Environ(), noRoomAtRunTime+"=yes")
		out, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	path := filepath.Join(t.TempDir(), "bmdb")
	e, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, e)
	if err := e.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const limit = 2 << 20
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	wantDisk(t, e.Update(t.Context(), big(3*1024)), path, "fails, or is full: look at the host's kernel log")
	if err := e.Update(t.Context(), big(1)); err != nil {
		t.Errorf("what has room: %v", err)
	}
}
