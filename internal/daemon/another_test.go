package daemon_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// TestNoOtherKeyIsMadeForAFleet: a first start makes the SSH key and the authority of agents. Once
// the database has machines, a start that misses one of them makes nothing, and says what to do; it
// goes on with the file that is put back, and with one that was made as the sentence says.
func TestNoOtherKeyIsMadeForAFleet(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ssh_key", "agent-ca.pem"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := settings(t)
			path := filepath.Join(c.Dir, name)
			restart(t, c)
			first := take(t, path)
			restart(t, c) // without machines another one does no harm
			if second := take(t, path); second == first {
				t.Fatal("not made anew")
			}
			if err := os.WriteFile(path, []byte(first), 0o600); err != nil {
				t.Fatal(err)
			}
			stocked(t, c.Database.Path)
			if name == "agent-ca.pem" { // a machine that has no agent yet knows no authority
				take(t, path)
				restart(t, c)
				first = take(t, path)
				if err := os.WriteFile(path, []byte(first), 0o600); err != nil {
					t.Fatal(err)
				}
				managed(t, c.Database.Path)
			}
			restart(t, c)
			if take(t, path) != first {
				t.Fatal("another one, although it was there")
			}

			before := names(t, c.Dir)
			d, err := daemon.Open(t.Context(), c, daemon.Options{})
			if err == nil {
				t.Fatal("opened", d.Close())
			}
			sentence := err.Error()
			if fleet.KindOf(err) != fleet.KindTemporary || strings.Contains(sentence, "\n") ||
				!strings.HasPrefix(sentence, path+" is missing, and no other is made, because the database knows machines (") {
				t.Errorf("%s: %s", fleet.KindOf(err), sentence)
			}
			if after := names(t, c.Dir); !slices.Equal(before, after) {
				t.Errorf("made: %q, before: %q", after, before)
			}

			if err := os.WriteFile(path, []byte(first), 0o600); err != nil {
				t.Fatal(err)
			}
			restart(t, c)
			if take(t, path) != first {
				t.Error("it was put back, and is another one")
			}
			if name == "ssh_key" {
				runQuoted(t, sentence)
			} else {
				accept(t, c)
			}
			restart(t, c)
		})
	}
}

// accept makes the authority of the configuration's dir count.
func accept(t *testing.T, c config.Config) {
	t.Helper()
	a, err := daemon.AcceptAuthority(t.Context(), c, "test")
	if err != nil {
		t.Fatal(err)
	}
	if a.File != filepath.Join(c.Dir, "agent-ca.pem") || len(a.Fingerprint) != 32*3-1 {
		t.Errorf("accepted %+v", a)
	}
}

// TestNobodyJoinsWithAnotherAuthority: a control plane whose dir has an authority of its own does
// not start once a machine has an agent, until it has the fleet's, or its own is accepted; then one
// with the old authority does not.
func TestNobodyJoinsWithAnotherAuthority(t *testing.T) {
	t.Parallel()
	c := settings(t)
	restart(t, c)
	other := settings(t)
	other.Database = c.Database
	restart(t, other) // nobody would refuse it
	restart(t, c)
	managed(t, c.Database.Path)
	refused := func(c config.Config) {
		t.Helper()
		d, err := daemon.Open(t.Context(), c, daemon.Options{})
		if err == nil {
			t.Fatal("opened", d.Close())
		}
		if fleet.KindOf(err) != fleet.KindTemporary || !strings.HasPrefix(err.Error(), filepath.Join(c.Dir, "agent-ca.pem")+" is another authority than ") {
			t.Errorf("%s: %v", fleet.KindOf(err), err)
		}
	}
	refused(other)
	restart(t, c)
	own := take(t, filepath.Join(other.Dir, "agent-ca.pem"))
	fleets, err := os.ReadFile(filepath.Join(c.Dir, "agent-ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{string(fleets), own} {
		if err := os.WriteFile(filepath.Join(other.Dir, "agent-ca.pem"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if content == own {
			refused(other)
			accept(t, other)
			refused(c)
		}
		restart(t, other)
	}
	other.AgentAPI.TLS.Certificate = filepath.Join(other.Dir, "agent-server.pem")
	if _, err := daemon.AcceptAuthority(t.Context(), other, "test"); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("with a certificate of its own: %v", err)
	}
}

// TestNothingIsComparedWhereAgentsAreGivenOthers: where the configuration says what agents are
// given, a process that starts none of them has its own authority all the same, and none is
// recorded.
func TestNothingIsComparedWhereAgentsAreGivenOthers(t *testing.T) {
	t.Parallel()
	c := settings(t)
	restart(t, c)
	other := settings(t)
	other.Database = c.Database
	restart(t, other)
	restart(t, c)
	managed(t, c.Database.Path)
	other.Initializer.EndpointCA = filepath.Join(t.TempDir(), "bundle.pem")
	var bundle []byte
	for _, dir := range []string{c.Dir, other.Dir} {
		both, err := os.ReadFile(filepath.Join(dir, "agent-ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		bundle = append(bundle, both[bytes.Index(both, []byte("-----BEGIN CERTIFICATE-----")):]...)
	}
	if err := os.WriteFile(other.Initializer.EndpointCA, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	other.Roles = []fleet.Role{fleet.RoleAgentAPI, fleet.RoleJanitor}
	restart(t, other)
	if _, err := daemon.AcceptAuthority(t.Context(), other, "test"); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("one is accepted where others are given: %v", err)
	}
}

// managed adds a machine that has an agent.
func managed(t *testing.T, path string) {
	t.Helper()
	db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, path, sqlite.Options{}), bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	bmdbtest.Manage(t, db, 1, nil)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// restart opens a control plane and closes it.
func restart(t *testing.T, c config.Config) {
	t.Helper()
	d, err := daemon.Open(t.Context(), c, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// take removes a file and returns what it had.
func take(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, path + ".pub"} {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return string(content)
}

// names returns the files under dir, but for those that an open database has beside it.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if !strings.HasSuffix(path, "-wal") && !strings.HasSuffix(path, "-shm") {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// runQuoted runs the command that a sentence has between backquotes, where its program is there.
func runQuoted(t *testing.T, sentence string) {
	t.Helper()
	_, rest, _ := strings.Cut(sentence, "`")
	command, _, ok := strings.Cut(rest, "`")
	program, _, _ := strings.Cut(command, " ")
	if !ok {
		t.Fatal("no command:", sentence)
	}
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("CI") == "" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), "sh", "-c", command)
	if output, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
}
