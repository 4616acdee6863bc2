package sqlite_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// restored opens the database, says what evidence it found, and closes it.
func restored(t *testing.T, path string) string {
	t.Helper()
	db := openDB(t, path)
	defer closed(t, db)
	env, err := db.Environment(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return env.Restored
}

// copyDB copies the files of a closed database; an absent one is removed at the target.
func copyDB(t *testing.T, from, to string, suffixes ...string) {
	t.Helper()
	for _, suffix := range suffixes {
		data, err := os.ReadFile(from + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			if err := os.Remove(to + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			continue
		}
		if err == nil {
			err = os.WriteFile(to+suffix, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

var database = []string{"", "-wal", "-shm"}

func TestRestoredDatabaseIsRecognised(t *testing.T) {
	t.Parallel()
	const mark = ".identity"
	for _, c := range []struct {
		name string
		// do harms the database at path; spare is where to put things aside.
		do   func(t *testing.T, path, spare string)
		want string // in the evidence; "" for none
	}{
		{"opened again and again", func(t *testing.T, path, _ string) {
			t.Helper()
			for range 3 {
				restored(t, path)
			}
		}, ""},
		{"an older copy put back", func(t *testing.T, path, spare string) {
			t.Helper()
			copyDB(t, path, spare, database...)
			restored(t, path)
			copyDB(t, spare, path, database...)
		}, "older than"},
		{"copied without its mark", func(t *testing.T, path, _ string) {
			t.Helper()
			restored(t, path)
			remove(t, path+mark)
		}, "missing"},
		{"the mark of another", func(t *testing.T, path, spare string) {
			t.Helper()
			restored(t, spare)
			copyDB(t, spare, path, mark)
		}, "another database"},
		{"an older mark", func(t *testing.T, path, spare string) {
			t.Helper()
			copyDB(t, path, spare, mark)
			restored(t, path)
			restored(t, path)
			copyDB(t, spare, path, mark)
		}, "older than the database"},
		{"a mark that cannot be read", func(t *testing.T, path, _ string) {
			t.Helper()
			write(t, path+mark, "\x00\xffgarbage")
		}, "cannot be read"},
		{"died between the database and the mark", func(t *testing.T, path, _ string) {
			t.Helper()
			for range 3 { // each time
				restored(t, path)
				text, err := os.ReadFile(path + mark)
				if err != nil {
					t.Fatal(err)
				}
				id, counter, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
				n, err := strconv.Atoi(counter)
				if err != nil {
					t.Fatal(err)
				}
				write(t, path+mark, fmt.Sprintf("%s %d\n", id, n-1))
			}
		}, ""},
		{"died before the first mark", func(t *testing.T, path, _ string) {
			t.Helper()
			for _, suffix := range database {
				_ = os.Remove(path + suffix)
			}
			_ = os.Remove(path + mark)
			restored(t, path)
			remove(t, path+mark)
		}, ""},
		{"a new database in the place of an old one", func(t *testing.T, path, _ string) {
			t.Helper()
			for _, suffix := range database {
				_ = os.Remove(path + suffix)
			}
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path, spare := filepath.Join(t.TempDir(), "bmdb"), filepath.Join(t.TempDir(), "spare")
			if got := restored(t, path); got != "" {
				t.Fatalf("new and restored: %s", got)
			}
			c.do(t, path, spare)
			for range 2 { // the evidence stays until it is accepted
				got := restored(t, path)
				if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
					t.Fatalf("evidence %q, want %q", got, c.want)
				}
			}
			if c.want == "" {
				return
			}
			db := openDB(t, path)
			if err := db.AcceptRestore(t.Context(), "op"); err != nil {
				t.Fatal(err)
			}
			env, err := db.Environment(t.Context())
			if err != nil || env.Restored != "" {
				t.Fatalf("after accepting: %q, %v", env.Restored, err)
			}
			closed(t, db)
			if got := restored(t, path); got != "" {
				t.Fatalf("accepted, and still: %s", got)
			}
		})
	}
}

// TestRestoreUnderARunningProcess: a backup that was taken while the process ran is recognised too,
// because the mark advances.
func TestRestoreUnderARunningProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path, spare := filepath.Join(t.TempDir(), "bmdb"), filepath.Join(t.TempDir(), "spare")
		db := openDB(t, path)
		backup := func() {
			if err := db.ListenerAlive(t.Context(), time.Minute, time.Minute); err != nil {
				t.Fatal(err)
			}
			copyDB(t, path, spare, database...)
		}
		backup()
		time.Sleep(2 * time.Minute)
		for range 2 {
			if err := db.ListenerAlive(t.Context(), time.Minute, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		closed(t, db)
		copyDB(t, spare, path, database...)
		if got := restored(t, path); !strings.Contains(got, "older than") {
			t.Fatalf("evidence %q", got)
		}
	})
}

// TestRestoredDatabaseHandsOutNoInstall: what destroys waits for a person's word.
func TestRestoredDatabaseHandsOutNoInstall(t *testing.T) {
	t.Parallel()
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "bmdb")
	db := openDB(t, path)
	a := bmdbtest.Manage(t, db, 1, &fleet.InstallRequest{Image: fleet.Image{URL: "http://x/y"}})[0]
	closed(t, db)
	restored(t, path)
	remove(t, path+".identity")
	db = openDB(t, path)
	defer closed(t, db)
	if o, err := db.HandOutInstall(ctx, a, 0, 0); err != nil || o != nil {
		t.Fatalf("handed out %+v, %v", o, err)
	}
	if err := db.AcceptRestore(ctx, "op"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.RecomputeAgenda(ctx, 100); err != nil {
		t.Fatal(err)
	}
	if o, err := db.HandOutInstall(ctx, a, 0, 0); err != nil || o == nil {
		t.Fatalf("handed out %+v, %v after accepting", o, err)
	}
}

// TestTimeContinues: a system clock behind the database does not take database time back.
func TestTimeContinues(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bmdb")
	db := openDB(t, path)
	before, err := db.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	closed(t, db)
	synctest.Test(t, func(t *testing.T) { // here it is the year 2000
		db := openDB(t, path)
		defer closed(t, db)
		after, err := db.Now(t.Context())
		if err != nil || after.Before(before.Add(-time.Second)) {
			t.Fatalf("%s after %s, %v", after, before, err)
		}
	})
}

// TestLeapIsNotBelieved: a start with the clock ten years ahead neither takes database time along
// nor removes what is old by that clock. A person's word does.
func TestLeapIsNotBelieved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bmdb")
	synctest.Test(t, func(t *testing.T) {
		db := openDB(t, path)
		before, err := db.Now(t.Context())
		if err == nil {
			_, err = db.StartSession(t.Context(), bmdb.SessionOptions{Component: "test", Lease: time.Minute})
		}
		if err != nil {
			t.Fatal(err)
		}
		closed(t, db)
		time.Sleep(10 * 365 * 24 * time.Hour)

		db = openDB(t, path)
		defer closed(t, db)
		env, err := db.Environment(t.Context())
		if err != nil || !strings.Contains(env.Restored, "3650 days after the database was last used") {
			t.Fatalf("evidence %q, %v", env.Restored, err)
		}
		if now, err := db.Now(t.Context()); err != nil || now.Sub(before) > time.Hour {
			t.Fatalf("database time went from %s to %s, %v", before, now, err)
		}
		if n, err := db.PruneSessions(t.Context(), 0, 100); err != nil || n != 0 {
			t.Fatalf("%d sessions removed, %v", n, err)
		}
		if err := db.AcceptRestore(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
		if now, err := db.Now(t.Context()); err != nil || now.Sub(before) < 3650*24*time.Hour {
			t.Fatalf("database time is %s, %v", now, err)
		}
		if n, err := db.PruneSessions(t.Context(), 0, 100); err != nil || n != 1 {
			t.Fatalf("%d sessions removed, %v", n, err)
		}
	})
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
