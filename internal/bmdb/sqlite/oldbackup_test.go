package sqlite_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestOldBackup: a database goes on at the time at which it is restored, however old the backup is.
// So agents that speak then are not told to be unheard, what people arrange before they accept it
// lasts as long as they said, and they learn how old it is.
func TestOldBackup(t *testing.T) {
	t.Parallel()
	for _, days := range []int{1, 40} {
		t.Run(fmt.Sprint(days, " days"), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, backup, restored := filepath.Join(dir, "bmdb"), filepath.Join(dir, "backup"), filepath.Join(dir, "restored")
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				db := openDB(t, path)
				agents := bmdbtest.Manage(t, db, 2, nil)
				must(t, sqlite.Backup(ctx, path, backup))
				closed(t, db)
				time.Sleep(time.Duration(days) * 24 * time.Hour)
				must(t, sqlite.Restore(ctx, backup, restored))

				db = openDB(t, restored)
				must(t, db.ListenerAlive(ctx, time.Minute, 30*time.Second))
				for _, a := range agents {
					must(t, db.RecordSpoken(ctx, a, ""))
				}
				until := time.Now().Add(48 * time.Hour)
				must(t, bmdbtest.BeginMaintenance(ctx, db, "operator", agents[0].Machine, &until, "nobody knows what it does"))
				time.Sleep(time.Hour)
				closed(t, db)

				db = openDB(t, restored) // as after a restart
				defer closed(t, db)
				env, err := db.Environment(ctx)
				must(t, err)
				old := strings.Contains(env.Restored, "40 days after the database was last used")
				if !strings.Contains(env.Restored, "restored from backup") || old != (days == 40) {
					t.Errorf("it says %q", env.Restored)
				}
				if withheld, err := db.Withheld(ctx); err != nil || len(withheld) > 0 {
					t.Errorf("withheld %+v, %v", withheld, err)
				}
				must(t, db.AcceptRestore(ctx, "operator"))
				now, err := db.Now(ctx)
				must(t, err)
				if behind := time.Since(now); behind.Abs() > time.Minute {
					t.Errorf("database time is behind by %s", behind)
				}
				record, err := db.Machine(ctx, agents[0].Machine)
				must(t, err)
				env, err = db.Environment(ctx)
				must(t, err)
				env.ListenerUpSince = now.Add(-time.Hour)
				if d := lifecycle.Decide(record, env, now.Add(24*time.Hour)); !strings.Contains(d.State.Words()+d.Reason, "maintenance") {
					t.Errorf("a day later the machine is %s: %s", d.State, d.Reason)
				}
			})
		})
	}
}

// TestABackupKeepsItsTime: a clock that the database does not believe is none for its backup.
func TestABackupKeepsItsTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, backup := filepath.Join(dir, "bmdb"), filepath.Join(dir, "backup")
	synctest.Test(t, func(t *testing.T) {
		closed(t, openDB(t, path))
		time.Sleep(800 * 24 * time.Hour) // the clock is wrong
		db := openDB(t, path)
		now, err := db.Now(t.Context())
		must(t, err)
		must(t, sqlite.Backup(t.Context(), path, backup))
		closed(t, db)
		db = openDB(t, backup)
		defer closed(t, db)
		then, err := db.Now(t.Context())
		must(t, err)
		env, err := db.Environment(t.Context())
		must(t, err)
		if then.Sub(now).Abs() > time.Hour || !strings.Contains(env.Restored, "800 days after the database was last used") {
			t.Errorf("its time is %s from that of the database: %s", then.Sub(now), env.Restored)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
