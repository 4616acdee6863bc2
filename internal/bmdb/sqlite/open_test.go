package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// open opens the file and brings its schema up.
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

func TestOneProcessHoldsIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bmdb")
	first := open(t, path)
	_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if fleet.KindOf(err) != fleet.KindInUse || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Fatalf("opened twice: %v", err)
	}
	closed(t, first)
	closed(t, first)
	closed(t, open(t, path))
}

func TestUnusableFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("this is not a database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"not a database":  garbage,
		"a directory":     dir,
		"no such folder":  filepath.Join(dir, "none", "bmdb"),
		"a file as a dir": filepath.Join(garbage, "bmdb"),
	} {
		_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSchemaMustFit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bmdb")
	e, err := sqlite.Open(t.Context(), path, sqlite.Options{Unsynced: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = bmdb.Open(t.Context(), e, bmdb.Options{}) // closes the engine
	if fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), "ironherd db migrate") {
		t.Fatalf("opened without a schema: %v", err)
	}
	e = open(t, path)
	err = e.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = bmdb.Open(t.Context(), e, bmdb.Options{})
	if fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), "newer") {
		t.Fatalf("opened a newer schema: %v", err)
	}
}

func TestClosedAnswers(t *testing.T) {
	t.Parallel()
	e := open(t, filepath.Join(t.TempDir(), "bmdb"))
	closed(t, e)
	for name, do := range map[string]func(context.Context, func(context.Context, bmdb.Tx) error) error{
		"update": e.Update, "extend": e.Extend, "view": e.View,
	} {
		if err := do(t.Context(), func(context.Context, bmdb.Tx) error { return nil }); fleet.KindOf(err) != fleet.KindConflict {
			t.Errorf("%s on a closed database: %v", name, err)
		}
	}
}

// TestLostTransaction: when SQLite itself gives up the transaction of a group, nobody in it is told
// that he was committed.
func TestLostTransaction(t *testing.T) {
	t.Parallel()
	e := open(t, filepath.Join(t.TempDir(), "bmdb"))
	defer closed(t, e)
	var wg sync.WaitGroup
	var mu sync.Mutex
	committed := make(map[string]bool)
	for i := range 40 {
		wg.Go(func() {
			capacity := fmt.Sprint(i)
			err := e.Update(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
				_, err := statement.New(tx).PutPenalty(ctx, statement.PutPenaltyParams{Provider: "x", Capacity: capacity, Until: 1 << 60})
				if i%4 == 0 {
					_, gone := tx.ExecContext(ctx, "ROLLBACK") // as SQLite does after an I/O error
					err = errors.Join(err, gone)
				}
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			committed[capacity] = err == nil
			if i%4 == 0 && err == nil {
				t.Error("a transaction that was rolled back was reported as committed")
			}
		})
	}
	wg.Wait()
	err := e.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		rows, err := statement.New(tx).ListPenalties(ctx, statement.ListPenaltiesParams{Provider: "x"})
		there := make(map[string]bool)
		for _, r := range rows {
			there[r.Capacity] = true
		}
		for capacity, was := range committed {
			if there[capacity] != was {
				t.Errorf("row %s: reported as committed %t, there %t", capacity, was, there[capacity])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpeningEndsEverySession(t *testing.T) {
	t.Parallel()
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "bmdb")
	db := openDB(t, path)
	if err := db.RegisterProvider(ctx, "p", "test", 0); err != nil {
		t.Fatal(err)
	}
	claim := func(s *bmdb.Session) []*bmdb.Work {
		c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		return c.Works
	}
	start := func(db *bmdb.DB) *bmdb.Session {
		s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "a", Lease: 3600e9})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	was := claim(start(db))
	closed(t, db) // without closing the session, as a killed process does

	db = openDB(t, path)
	defer closed(t, db)
	live, err := db.Sessions(ctx, false)
	if err != nil || len(live) != 0 {
		t.Fatalf("live sessions: %+v, %v", live, err)
	}
	next := claim(start(db)) // at once, though the old deadline is an hour away
	if len(next) != 1 || next[0].Epoch <= was[0].Epoch {
		t.Fatalf("claimed %+v after %+v", next, was)
	}
	findings, err := db.Check(ctx)
	if err != nil || len(findings) != 0 {
		t.Fatalf("findings %+v, %v", findings, err)
	}
}
