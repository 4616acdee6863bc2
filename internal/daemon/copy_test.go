package daemon_test

import (
	"database/sql"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
)

// stocked makes an embedded database with one machine.
func stocked(t *testing.T, path string) {
	t.Helper()
	db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, path, sqlite.Options{}), bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bmdbtest.Stock(t.Context(), db, "p1", []fleet.MachineID{fleet.NewMachineID()}, nil); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCopyDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "new", "place", "to") // it is made
	stocked(t, from)
	tables, replaced, err := daemon.CopyDatabase(t.Context(), "sqlite:"+from, "sqlite:"+to, nil)
	if err != nil || replaced != 0 || len(tables) < 20 {
		t.Fatalf("%+v, %d, %v", tables, replaced, err)
	}
	for _, path := range []string{from, to} {
		r, err := daemon.AcceptRestore(t.Context(), config.Config{Database: config.Database{Path: path}}, "op", true)
		if err != nil || !r.Accepted || !strings.Contains(r.Evidence, "copied") {
			t.Fatalf("%s: %+v, %v", path, r, err)
		}
	}
	if _, _, err := daemon.CopyDatabase(t.Context(), "sqlite:"+from, "sqlite:"+from, nil); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "same database") {
		t.Errorf("into itself: %v", err)
	}
	for url, want := range map[string]fleet.Kind{
		"sqlite:" + to + "x": fleet.KindNotFound, "mysql://h/d": fleet.KindInvalid, "postgres://u:p@h/d": fleet.KindInvalid,
		"postgres://h/d?password=p": fleet.KindInvalid, "": fleet.KindInvalid,
		"postgres://127.0.0.1:1/d?sslkey=k&sslpassword=u:p@": fleet.KindInvalid,
	} {
		_, _, err := daemon.CopyDatabase(t.Context(), url, "sqlite:"+to+"y", nil)
		if err == nil || fleet.KindOf(err) != want || strings.Contains(err.Error(), "u:p@") {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
		if strings.Contains(url, "sslpassword") && !strings.Contains(err.Error(), "PGSSLPASSWORD for that of a key") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestCopyMigratesNeither: a copy that does not go leaves both databases as they are.
func TestCopyMigratesNeither(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		from, to func(t *testing.T, path string) *sql.DB
		want     string
	}{
		"older source": {makeOlder, nil, "older than this binary needs (version "},
		"newer source": {makeNewer, nil, "newer than this binary knows (version "},
		"older target": {nil, makeOlder, "a copy goes into a new database"},
		"newer target": {nil, makeNewer, "a copy goes into a new database"},
	} {
		dirs := map[string]string{"from": t.TempDir(), "to": t.TempDir()}
		from, to := filepath.Join(dirs["from"], "bmdb"), filepath.Join(dirs["to"], "bmdb")
		if test.from == nil {
			stocked(t, from)
		}
		for path, prepare := range map[string]func(t *testing.T, path string) *sql.DB{from: test.from, to: test.to} {
			if prepare == nil {
				continue
			}
			if err := prepare(t, path).Close(); err != nil {
				t.Fatal(err)
			}
		}
		before := map[string]map[string]string{"from": filesIn(t, dirs["from"]), "to": filesIn(t, dirs["to"])}
		_, _, err := daemon.CopyDatabase(t.Context(), "sqlite:"+from, "sqlite:"+to, nil)
		if fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
		for _, side := range []string{"from", "to"} {
			after := filesIn(t, dirs[side])
			if side == "from" && test.from == nil { // whoever opens a good source holds its lock
				delete(after, "bmdb.lock")
				delete(before[side], "bmdb.lock")
			}
			if !maps.Equal(before[side], after) {
				t.Errorf("%s: the files of %q changed", name, side)
			}
		}
	}
}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := config.Config{Database: config.Database{Path: filepath.Join(dir, "bmdb")}}
	stocked(t, c.Database.Path)
	if err := daemon.Backup(t.Context(), c, filepath.Join(dir, "backup")); err != nil {
		t.Fatal(err)
	}
	c.Database.Path = filepath.Join(dir, "new", "bmdb")
	if err := daemon.Restore(t.Context(), c, filepath.Join(dir, "backup")); err != nil {
		t.Fatal(err)
	}
	// an agent is to be started
	for _, sure := range []bool{false, true, false} {
		r, err := daemon.AcceptRestore(t.Context(), c, "op", sure)
		if err != nil || r.Accepted != sure {
			t.Fatalf("sure: %t: %+v, %v", sure, r, err)
		}
		if !sure && r.Evidence != "" && (len(r.GoesOn) != 1 || r.GoesOn[0].Process != string(fleet.ProcessAgentStart)) {
			t.Fatalf("what goes on is %+v", r.GoesOn)
		}
		if sure && !strings.Contains(r.Evidence, "backup") {
			t.Fatalf("evidence %q", r.Evidence)
		}
	}
	c.Database.URL = "postgres://h/d"
	if err := daemon.Backup(t.Context(), c, filepath.Join(dir, "other")); fleet.KindOf(err) != fleet.KindUnsupported {
		t.Fatalf("%v", err)
	}
}
