package server_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

// takesNoFile moves a directory to where files of it can be read, and no file can be written beside
// them: a path of theirs with the longer name of one that is being written is longer than Linux
// allows. It stands for a disk that is full.
func takesNoFile(t *testing.T, dir, longest string) string {
	t.Helper()
	const most = 4095
	full := t.TempDir()
	for size := most - len("/") - len(longest); len(full) < size; {
		name := size - len("/") - len(full)
		if name > 200 {
			name = 100
		}
		full = filepath.Join(full, strings.Repeat("d", name))
	}
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, full); err != nil {
		t.Fatal(err)
	}
	return full
}

// TestARenewalThatCannotBeStored: a start goes on with a certificate that is good, says that its
// successor cannot be stored, and makes it when there is room. One that clients refuse ends it.
func TestARenewalThatCannotBeStored(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, test := range map[string]struct {
		age  time.Duration
		host string
		goes bool
	}{
		"not due":      {100 * day, "herd.example", true},
		"due":          {300 * day, "herd.example", true},
		"expired":      {366 * day, "herd.example", false},
		"another host": {300 * day, "new.example", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "dir")
				first := open(t, dir, "herd.example")
				full := takesNoFile(t, dir, "agent-server.pem")
				time.Sleep(test.age) // fake time
				var log bytes.Buffer
				c, err := server.OpenCertificates(server.ForAgents, full, []string{test.host}, slog.New(slog.NewTextHandler(&log, nil)))
				if (err == nil) != test.goes {
					t.Fatalf("opened: %v", err)
				}
				if err != nil {
					return
				}
				due := test.age > 250*day
				warning := c.Warning(time.Now())
				if !leaf(t, c).Equal(leaf(t, first)) || c.Fault(time.Now()) != "" {
					t.Errorf("another certificate, or a fault: %q", c.Fault(time.Now()))
				}
				if strings.HasPrefix(warning, "the certificate of the agent API cannot be renewed: store certificate: ") != due {
					t.Errorf("it warns %q", warning)
				}
				if strings.Contains(log.String(), "cannot renew the certificate") != due {
					t.Errorf("logged: %s", &log)
				}
				if err := os.Rename(full, dir); err != nil {
					t.Fatal(err)
				}
				again := open(t, dir, "herd.example")
				if leaf(t, again).Equal(leaf(t, first)) == due || again.Warning(time.Now()) != "" {
					t.Errorf("with room: due %t, the same: %t, %q", due, !due, again.Warning(time.Now()))
				}
			})
		})
	}
}

// TestADamagedServerCertificate, unlike an authority, can be made anew: the sentence says so, and
// is right.
func TestADamagedServerCertificate(t *testing.T) {
	t.Parallel()
	for _, purpose := range []server.Purpose{server.ForAgents, server.ForOperators} {
		dir := t.TempDir()
		made := func() (*server.Certificates, error) {
			return server.OpenCertificates(purpose, dir, []string{"herd.example"}, discard)
		}
		first, err := made()
		if err != nil {
			t.Fatal(err)
		}
		const remedy = ": remove it, and another one is made"
		files := purpose.KeyFiles(dir)
		for i, path := range files {
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = made()
			if fleet.KindOf(err) != fleet.KindInvalid || !strings.HasPrefix(err.Error(), path+" is not a certificate and key that were made here: ") ||
				strings.HasSuffix(err.Error(), remedy) != (i == 1) {
				t.Errorf("%s: %v", path, err)
			}
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(files[1]); err != nil {
			t.Fatal(err)
		}
		again, err := made()
		if err != nil {
			t.Fatal(err)
		}
		if err := verify(t, again, first.Authority(), "herd.example"); err != nil {
			t.Error(err)
		}
	}
}
