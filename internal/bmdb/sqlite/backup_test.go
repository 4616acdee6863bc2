package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/fleet"
)

var wantInstall = &fleet.InstallRequest{Image: fleet.Image{URL: "http://x/y"}}

// TestRestoredBackupDestroysNothing: an old database, put back in the place of the newer one, would
// hand out an install that was done long ago. It never does, however young the backup is and
// whatever lies beside it, until a person accepts it.
func TestRestoredBackupDestroysNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// beside is what is done to the mark beside the database before the restore.
		beside func(t *testing.T, mark string)
	}{
		{"the mark of the newer database beside it", func(*testing.T, string) {}},
		{"nothing beside it", remove},
		{"the mark that it had itself", func(t *testing.T, mark string) { t.Helper(); copyDB(t, mark+".then", mark, "") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, path := t.Context(), filepath.Join(t.TempDir(), "bmdb")
			backup := filepath.Join(t.TempDir(), "backup")
			db := openDB(t, path)
			a := bmdbtest.Manage(t, db, 1, wantInstall)[0]
			if err := sqlite.Backup(ctx, path, backup); err != nil { // while it is open
				t.Fatal(err)
			}
			copyDB(t, path+".identity", path+".identity.then", "")
			o, err := db.HandOutInstall(ctx, a, 0, 0)
			if err != nil || o == nil {
				t.Fatalf("handed out %+v, %v", o, err)
			}
			install(t, db, a, o)
			closed(t, db)

			for _, suffix := range database {
				_ = os.Remove(path + suffix)
			}
			c.beside(t, path+".identity")
			if err := sqlite.Restore(ctx, backup, path); err != nil {
				t.Fatal(err)
			}
			at, evidence := cameBack(t, path)
			if made, _ := cameBack(t, backup); !at.After(made) || !strings.HasPrefix(evidence, "restored from backup") {
				t.Errorf("it came back at %s (%s), the backup was made at %s", at, evidence, made)
			}
			for range 2 { // every start
				db = openDB(t, path)
				if o, err := db.HandOutInstall(ctx, a, 0, 0); err != nil || o != nil {
					t.Fatalf("handed out %+v, %v: the machine would be overwritten a second time", o, err)
				}
				closed(t, db)
			}
			db = openDB(t, path)
			defer closed(t, db)
			if err := db.AcceptRestore(ctx, "op"); err != nil {
				t.Fatal(err)
			}
			if _, err := db.RecomputeAgenda(ctx, 100); err != nil {
				t.Fatal(err)
			}
			if o, err := db.HandOutInstall(ctx, a, 0, 0); err != nil || o == nil {
				t.Fatalf("handed out %+v, %v after a person accepted it: nothing was restored", o, err)
			}
		})
	}
}

// cameBack is when a database that is not open came back, and the evidence for that.
func cameBack(t *testing.T, path string) (at time.Time, evidence string) {
	t.Helper()
	engine, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	var micros int64
	if err := engine.View(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT at, evidence FROM restored").Scan(&micros, &evidence)
	}); err != nil {
		t.Fatal(err)
	}
	return time.UnixMicro(micros), evidence
}

// install goes the way of an install to its end.
func install(t *testing.T, db *bmdb.DB, a bmdb.AgentIdentity, o *bmdb.InstallOrder) {
	t.Helper()
	generation := o.Request.Generation
	err := db.RecordInstallReport(t.Context(), a, fleet.InstallReport{Generation: generation, Attempt: o.Attempt, OK: true})
	if err == nil {
		err = errorOf(db.RecordInstalled(t.Context(), a.Machine, generation, o.Attempt, o.Secret, "b"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestBackupUnderLoad: what a backup has is one instant of a database that is written all the time.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "bmdb")
	db := openDB(t, path)
	bmdbtest.Manage(t, db, 30, nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- churn(ctx, db) }()
	for i := range 5 {
		backup := filepath.Join(dir, "backup"+string(rune('0'+i)))
		if err := sqlite.Backup(t.Context(), path, backup); err != nil {
			t.Fatal(err)
		}
		copied := openDB(t, backup) // sessions end, as with any database that its process has left
		if findings, err := copied.Check(t.Context()); err != nil || len(findings) > 0 {
			t.Fatalf("backup %d: %v, %v", i, findings, err)
		}
		if list, err := copied.ListMachines(t.Context(), bmdb.MachineFilter{Limit: 100}); err != nil || len(list) != 30 {
			t.Fatalf("backup %d has %d machines, %v", i, len(list), err)
		}
		closed(t, copied)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	closed(t, db)
}

// churn claims and hands back until ctx ends.
func churn(ctx context.Context, db *bmdb.DB) error {
	s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "churn", Lease: time.Hour})
	if err != nil {
		return err
	}
	for {
		c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessUpdate, Limit: 1})
		for _, w := range c.Works {
			err = errors.Join(err, w.Cancel(ctx, "again"))
		}
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func TestBackupRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, other := filepath.Join(dir, "bmdb"), filepath.Join(dir, "other")
	db := openDB(t, path)
	defer closed(t, db)
	write(t, other, "precious")
	write(t, filepath.Join(dir, "text"), strings.Repeat("no database at all\n", 100))
	write(t, filepath.Join(dir, "gone-wal"), "of a database that was moved away")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		do   func() error
		want fleet.Kind
	}{
		"over a file":             {func() error { return sqlite.Backup(t.Context(), path, other) }, fleet.KindConflict},
		"over itself":             {func() error { return sqlite.Backup(t.Context(), path, path) }, fleet.KindConflict},
		"of nothing":              {func() error { return sqlite.Backup(t.Context(), path+"x", path+"y") }, fleet.KindNotFound},
		"of something else":       {func() error { return sqlite.Backup(t.Context(), filepath.Join(dir, "text"), path+"y") }, fleet.KindInvalid},
		"nowhere":                 {func() error { return sqlite.Backup(t.Context(), path, filepath.Join(dir, "no", "y")) }, fleet.KindInvalid},
		"in no time":              {func() error { return sqlite.Backup(over, path, path+"y") }, fleet.KindUnknown},
		"restore over one in use": {func() error { return sqlite.Restore(t.Context(), path, path) }, fleet.KindInUse},
		"restore over a file":     {func() error { return sqlite.Restore(t.Context(), path, other) }, fleet.KindConflict},
		"restore into remains":    {func() error { return sqlite.Restore(t.Context(), path, filepath.Join(dir, "gone")) }, fleet.KindConflict},
		"restore something else":  {func() error { return sqlite.Restore(t.Context(), filepath.Join(dir, "text"), path+"y") }, fleet.KindInvalid},
	} {
		if err := c.do(); err == nil || fleet.KindOf(err) != c.want {
			t.Errorf("%s: %v (%s), want %s", name, err, fleet.KindOf(err), c.want)
		} else if strings.Contains(err.Error(), "partial") {
			t.Errorf("%s: %v names what nobody asked for", name, err)
		}
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "precious" {
		t.Fatalf("a file was overwritten: %q, %v", text, err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.Contains(n.Name(), "partial") || n.Name() == "bmdby" {
			t.Errorf("%s was left behind", n.Name())
		}
	}
}

// TestRestoreNamesWhatIsNoBackup: whoever names a file that is no backup is to name another one.
func TestRestoreNamesWhatIsNoBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text, songs := filepath.Join(dir, "text"), filepath.Join(dir, "songs")
	write(t, text, strings.Repeat("no database at all\n", 100))
	write(t, songs, "") // which is a database without tables
	for _, file := range []string{text, songs} {
		err := sqlite.Restore(t.Context(), file, filepath.Join(dir, "bmdb"))
		if fleet.KindOf(err) != fleet.KindInvalid || !strings.HasPrefix(err.Error(), file+" is no usable backup (") ||
			!strings.HasSuffix(err.Error(), "): name another file") {
			t.Errorf("%v (%s)", err, fleet.KindOf(err))
		}
	}
}

// errorOf leaves out when the system is to call again.
func errorOf(_ time.Duration, err error) error { return err }

// TestRestoreOfANewerRelease: nothing that this binary has would open it, and it would be in the
// way of the right backup.
func TestRestoreOfANewerRelease(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	path, backup, restored := filepath.Join(dir, "bmdb"), filepath.Join(dir, "backup"), filepath.Join(to, "bmdb")
	db := open(t, path)
	_, err := bmdb.Exec(t.Context(), db, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)")
	must(t, err)
	must(t, sqlite.Backup(t.Context(), path, backup))
	closed(t, db)
	if err := sqlite.Restore(t.Context(), backup, restored); fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), "newer") {
		t.Errorf("%s: %v", fleet.KindOf(err), err)
	}
	entries, err := os.ReadDir(to)
	must(t, err)
	for _, e := range entries {
		if e.Name() != "bmdb.lock" {
			t.Errorf("it left %s", e.Name())
		}
	}
}
