package daemon_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
)

// TestTheCertificateIsForWhatAgentsAreTold: agents verify the control plane by the host that they
// are told to call, which need not be that of its own endpoint.
func TestTheCertificateIsForWhatAgentsAreTold(t *testing.T) {
	t.Parallel()
	c := settings(t)
	c.AgentAPI.Endpoint, c.Initializer.Endpoint = "cp1.example:0", "vip.example:8443"
	restart(t, c)
	content, err := os.ReadFile(filepath.Join(c.Dir, "agent-server.pem"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest := pem.Decode(content) // the key
	block, _ := pem.Decode(rest)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"cp1.example", "vip.example"} {
		if err := leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
}

// TestADirectoryThatTakesNoFile keeps nobody from a start that has nothing to write there: what
// stands for a full disk is a path that is as long as Linux allows.
func TestADirectoryThatTakesNoFile(t *testing.T) {
	t.Parallel()
	c := settings(t)
	elsewhere := t.TempDir()
	c.Database.Path, c.SSH.KeyFile = filepath.Join(elsewhere, "ironherd.db"), filepath.Join(elsewhere, "ssh_key")
	c.OperatorAPI.Socket = filepath.Join(elsewhere, "ironherd.sock")
	restart(t, c)
	const most = 4095
	full := t.TempDir()
	for size := most - len("/operator-server.pem"); len(full) < size; {
		name := size - len("/") - len(full)
		if name > 200 {
			name = 100
		}
		full = filepath.Join(full, strings.Repeat("d", name))
	}
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.Dir, full); err != nil {
		t.Fatal(err)
	}
	c.Dir = full
	logged := func() string {
		t.Helper()
		var log bytes.Buffer
		d, err := daemon.Open(t.Context(), c, daemon.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		return log.String()
	}
	const told = "cannot store the certificate of the operator CA; callers may not be able to verify the operator API"
	if log := logged(); strings.Contains(log, told) {
		t.Errorf("with nothing to write: %s", log)
	}
	if err := os.Truncate(filepath.Join(full, config.OperatorCAName), 0); err != nil {
		t.Fatal(err)
	}
	if log := logged(); !strings.Contains(log, told) {
		t.Errorf("with something to write: %s", log)
	}
}
