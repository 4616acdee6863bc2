package cli_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestWhatGoesOnAfterARestoreIsShown: nothing of a backup goes on before it was shown.
func TestWhatGoesOnAfterARestoreIsShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ironherd.yaml")
	content := "dir: state\nagent_api: {listen: '127.0.0.1:0', endpoint: 'herd.example:1'}\ninitializer: {agent_executable: agent}\n"
	for name, content := range map[string]string{"ironherd.yaml": content, "agent": "an agent"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const machines = 60
	made := filepath.Join(dir, "state", "ironherd.db")
	if err := os.Mkdir(filepath.Dir(made), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, made, sqlite.Options{}), bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []fleet.MachineID
	for range machines {
		ids = append(ids, fleet.NewMachineID())
	}
	if err := bmdbtest.Stock(t.Context(), db, "p1", ids, nil); err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	slices.Reverse(ids) // the last one in their order, which a cut would hide
	if err := db.SetLevers(t.Context(), "p1", []fleet.Lever{fleet.LeverRelease}); err != nil {
		t.Fatal(err)
	}
	if _, err := bmdbtest.Operate(t.Context(), db, "ada", ids[0], fleet.OperationRelease, "its contract ends"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if r := run(t, nil, "db", "accept-authority", "--config", file); r.code != 0 || r.stderr != "" ||
		!strings.HasPrefix(r.stdout, "agents are given "+filepath.Join(dir, "state", "agent-ca.pem")+" from now on (SHA-256 fingerprint ") {
		t.Errorf("%d, %q, %q", r.code, r.stdout, r.stderr)
	}
	backup := filepath.Join(dir, "backup.db")
	if r := run(t, nil, "db", "migrate", "--config", file); r.code != 0 || r.stderr != "" || !strings.Contains(r.stdout, " has schema version ") {
		t.Fatalf("%d, %q, %q", r.code, r.stdout, r.stderr)
	}
	printed := func(of ...string) string {
		t.Helper()
		r := run(t, nil, append(of, "--config", file, "-o", "json")...)
		if r.code != 0 || r.stderr != "" {
			t.Fatalf("%d, %q", r.code, r.stderr)
		}
		return strings.ReplaceAll(r.stdout, dir, "DIR")
	}
	golden(t, "db_backup.json", printed("db", "backup", backup))
	if err := os.RemoveAll(filepath.Dir(made)); err != nil {
		t.Fatal(err)
	}
	golden(t, "db_restore.json", printed("db", "restore", backup))
	if err := os.RemoveAll(filepath.Dir(made)); err != nil {
		t.Fatal(err)
	}
	// The command that it names is for this database.
	again := run(t, nil, "db", "restore", backup, "--config", file)
	if want := " waits for `ironherd db accept-restore --config " + file + "`\n"; again.code != 0 || !strings.HasSuffix(again.stdout, want) {
		t.Errorf("%d, %q, %q, want %q", again.code, again.stdout, again.stderr, want)
	}
	r := run(t, nil, "db", "accept-restore", "--config", file)
	if r.code == 0 || !strings.Contains(r.stderr, "nothing is accepted yet") || !strings.Contains(r.stderr, "give --yes") {
		t.Errorf("%d, %q", r.code, r.stderr)
	}
	if first := strings.SplitN(r.stdout, "\n", 3)[1]; !strings.Contains(first, string(ids[0])+"  operation ") ||
		strings.Count(r.stdout, "  agent-start  ") != 50 || !strings.HasSuffix(r.stdout, "and 9 more (-o json shows all)\n") {
		t.Errorf("it shows %s", r.stdout)
	}
	if r := run(t, nil, "db", "accept-restore", "--config", file, "-o", "json"); !strings.Contains(r.stdout, `"goesOn": [`) {
		t.Errorf("as JSON it shows %s", r.stdout)
	}
	if r := run(t, nil, "db", "accept-restore", "--config", file, "--yes"); r.code != 0 || r.stderr != "" || !strings.Contains(r.stdout, "counts from now on") {
		t.Errorf("%d, %q, %q", r.code, r.stdout, r.stderr)
	}
	copied := run(t, nil, "db", "copy", "--from", "sqlite:"+made, "--to", "sqlite:"+filepath.Join(dir, "copy.db"), "--config", file)
	if want := "both databases wait for `ironherd db accept-restore --config " + file + "` on the one that counts"; copied.code != 0 || !strings.Contains(copied.stderr, want) {
		t.Errorf("%d, %q, want %q", copied.code, copied.stderr, want)
	}
}
