package daemon_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestNoOtherDatabaseIsMade: where a database was, a start without it makes none (rule 11). It goes
// on with the one that comes back, and with an empty one that was made as the sentence says.
func TestNoOtherDatabaseIsMade(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lose    func(t *testing.T, c *config.Config) (back func())
		telling func(c config.Config) string
	}{
		"moved away, and its identity stays": {
			func(t *testing.T, c *config.Config) func() {
				t.Helper()
				return moved(t, c.Database.Path)
			}, identity,
		},
		"emptied": {
			func(t *testing.T, c *config.Config) func() {
				t.Helper()
				back := moved(t, c.Database.Path)
				if err := os.WriteFile(c.Database.Path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				return back
			}, identity,
		},
		"on a mount that is not there": {
			func(t *testing.T, c *config.Config) func() {
				t.Helper()
				return moved(t, filepath.Dir(c.Database.Path))
			}, authority("agent-ca.pem"),
		},
		"under another name, and agents know another authority": {
			func(t *testing.T, c *config.Config) func() {
				t.Helper()
				take(t, filepath.Join(c.Dir, "agent-ca.pem"))
				right := c.Database.Path
				c.Database.Path += "s"
				return func() { c.Database.Path = right }
			}, authority("operator-ca.pem"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := settings(t)
			c.Database.Path = filepath.Join(t.TempDir(), "disk", "bmdb")
			restart(t, c)
			stocked(t, c.Database.Path)
			back := test.lose(t, &c)
			before := everything(t, c)
			d, err := daemon.Open(t.Context(), c, daemon.Options{})
			if err == nil {
				t.Fatal("opened", d.Close())
			}
			sentence := err.Error()
			if fleet.KindOf(err) != fleet.KindTemporary || strings.Contains(sentence, "\n") ||
				!strings.HasPrefix(sentence, "there is no database in "+c.Database.Path+", and "+test.telling(c)+" tells that there was one: ") {
				t.Errorf("%s: %s", fleet.KindOf(err), sentence)
			}
			if _, err := daemon.CheckDatabase(t.Context(), c); fleet.KindOf(err) != fleet.KindNotFound || err.Error() != sentence {
				t.Errorf("a check says %s: %v", fleet.KindOf(err), err)
			}
			if after := everything(t, c); !slices.Equal(before, after) {
				t.Errorf("there are now: %q, before: %q", after, before)
			}

			back()
			restart(t, c)
			test.lose(t, &c)
			_, command, _ := strings.Cut(sentence, "to begin with an empty one, ")
			runQuoted(t, command)
			restart(t, c)
		})
	}
}

// everything returns the files in dir and around the database.
func everything(t *testing.T, c config.Config) []string {
	t.Helper()
	return slices.Concat(names(t, c.Dir), names(t, filepath.Dir(filepath.Dir(c.Database.Path))))
}

// TestAFirstStartNeedsNoDatabase: an SSH key or tokens of one's own do not tell of a database, nor
// does what a first start leaves that was cut short.
func TestAFirstStartNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	c := settings(t)
	restart(t, c)
	for _, path := range []string{c.Database.Path, identity(c)} {
		take(t, path)
	}
	for _, name := range []string{"agent-ca.pem", "operator-ca.pem"} {
		take(t, filepath.Join(c.Dir, name))
	}
	restart(t, c) // with the SSH key alone
	if err := os.WriteFile(c.Database.Path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	take(t, identity(c))
	restart(t, c) // where it was cut short, the file is empty and has no identity
}

func identity(c config.Config) string { return c.Database.Path + ".identity" }

func authority(name string) func(c config.Config) string {
	return func(c config.Config) string { return filepath.Join(c.Dir, name) }
}

// moved gives a file, or a directory, another name until it is put back.
func moved(t *testing.T, path string) (back func()) {
	t.Helper()
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}
}
