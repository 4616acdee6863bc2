package daemon_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/daemon"
)

// TestAnotherProjectUnderTheOldName: the machines of the one before would count as gone, and run
// on. Another spelling of the project, another token and another way to the API are no other
// project.
func TestAnotherProjectUnderTheOldName(t *testing.T) {
	t.Parallel()
	c := settings(t)
	token := filepath.Join(t.TempDir(), "token")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("0123456789abcdef")
	c.Providers = append(c.Providers, equinix("cloud", token))
	cloud := &c.Providers[len(c.Providers)-1].Equinix
	restart(t, c)
	db, err := sql.Open("sqlite", c.Database.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "UPDATE provider SET machines = 3 WHERE name = 'cloud'"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	own := cloud.Project
	write("fedcba9876543210")
	cloud.Project, cloud.APIURL = strings.ToUpper(own), "https://api.example.net/v1/"
	restart(t, c)
	cloud.Project = "6c0b9a5e-3d4f-4f0b-9d57-2f8f4a1c7e10"
	d, err := daemon.Open(t.Context(), c, daemon.Options{})
	if err == nil {
		t.Fatal("opened", d.Close())
	}
	if want := "provider cloud has machines of project " + own + " (3, "; !strings.Contains(err.Error(), want) {
		t.Errorf("refused with %v, want %s", err, want)
	}
	cloud.Project = own
	restart(t, c)
}
