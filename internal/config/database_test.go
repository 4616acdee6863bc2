package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironherd/ironherd/internal/config"
)

func TestDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const address = "postgres://u@db.example:5432/fleet?sslmode=verify-full"
	for name, content := range map[string]string{
		"short":   "database: " + address + "\n",
		"section": "database: {url: '" + address + "', password_file: " + secret + "}\n",
	} {
		c, err := load(t, minimal+content)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c.Database.URL != address || c.Database.String() != "postgres://u@db.example:5432/fleet" || c.Database.Isolation != config.ReadCommitted || !c.Database.Notify {
			t.Errorf("%s: %+v", name, c.Database)
		}
		if password, err := c.Database.ReadPassword(); err != nil || (password == "hunter2") != (name == "section") {
			t.Errorf("%s: password %q, %v", name, password, err)
		}
	}
	c, err := load(t, minimal+"database: sqlite:here.db\n")
	if err != nil || !strings.HasSuffix(c.Database.Path, "/here.db") || c.Database.URL != "" {
		t.Errorf("sqlite: %+v, %v", c.Database, err)
	}
	c, err = load(t, minimal+"database: sqlite:here.db\n", "IRONHERD_DATABASE_PATH="+secret)
	if err != nil || c.Database.Path != secret {
		t.Errorf("from the environment: %+v, %v", c.Database, err)
	}
}

// TestDatabaseIsNamedWithoutParameters: one of them may be a secret.
func TestDatabaseIsNamedWithoutParameters(t *testing.T) {
	t.Parallel()
	d := config.Database{URL: "postgres://u:hunter2@db/fleet?sslkey=k.pem&sslpassword=hunter2"}
	if got := d.String(); got != "postgres://u:xxxxx@db/fleet" {
		t.Error(got)
	}
}

func TestDatabaseFaults(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"database: mysql://x":                                 `ironherd.yaml:4: database: a section with path, url, password_file, isolation, connections and notify is expected, not a single value`,
		"database: postgres://u:hunter2@db/fleet":             "ironherd.yaml:4: database.url: must not hold a password: put it into a file and name that as database.password_file, or use PGPASSWORD or ~/.pgpass",
		"database: {url: 'postgres://u@db/fleet?password=x'}": "ironherd.yaml:4: database.url: must not hold a password",
		"database: {url: 'postgres://u@db/fleet?sslmode=verify-full&sslkey=k.pem&sslpassword=hunter2'}": "ironherd.yaml:4: database.url: must not hold the password of a key (sslpassword): use PGSSLPASSWORD",
		"database: {url: 'mysql://u:hunter2@db'}":                                                       "ironherd.yaml:4: database.url: is not a URL such as postgres://",
		"database: {url: 'postgres://db/x', path: a}":                                                   "ironherd.yaml:4: database.path: is for SQLite",
		"database: {password_file: /dev/null}":                                                          "ironherd.yaml:4: database.password_file: is for PostgreSQL",
		"database: {url: postgres://db, password_file: /no/pw}":                                         "ironherd.yaml:4: database.password_file: the file /no/pw cannot be read: no such file or directory",
		"database: {url: postgres://db, isolation: eventual}":                                           `ironherd.yaml:4: database.isolation: must be read-committed or serializable, not "eventual"`,
		"database: {url: postgres://db, connections: 1}":                                                "ironherd.yaml:4: database.connections: must be at least 2, not 1",
		"database: {url: postgres://db, password_file: /dev/null}":                                      "ironherd.yaml:4: database.password_file: /dev/null is empty",
	} {
		got := faults(t, minimal+content+"\n")
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s\n%s", content, cmp.Diff([]string{want}, got))
		}
		if strings.Contains(strings.Join(got, "\n"), "hunter2") {
			t.Errorf("%s: the password is shown: %v", content, got)
		}
	}
}
