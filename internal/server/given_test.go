package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/server"
)

// TestAgentsAreGivenAnotherAuthorityThanIsMadeHere: a certificate that is made here has the fault
// that they refuse it, as a configured one has. What is given may hold more than its authority.
func TestAgentsAreGivenAnotherAuthorityThanIsMadeHere(t *testing.T) {
	t.Parallel()
	ours, theirs := t.TempDir(), t.TempDir()
	open(t, ours, "herd.example")
	open(t, theirs, "herd.example")
	read := func(dir string) string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, "agent-ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	given := filepath.Join(t.TempDir(), "given.pem")
	for name, test := range map[string]struct {
		content string
		refused bool
	}{
		"ours":       {read(ours), false},
		"theirs":     {read(theirs), true},
		"of both":    {read(theirs) + read(ours), false},
		"not given":  {"", false},
		"a key only": {"no certificate", true},
	} {
		path := given
		if test.content == "" {
			path = ""
		} else if err := os.WriteFile(given, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := server.CertificateConfig{}.Open(ours, []string{"herd.example"}, path, discard)
		if name == "a key only" {
			if err == nil || !strings.Contains(err.Error(), "holds no certificate") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		const want = "the certificate of the agent API, which is made here, does not lead to those of initializer.endpoint_ca, which agents are given: " +
			"remove that key, or name a certificate with agent_api.tls"
		if fault := c.Fault(time.Now()); (fault == want) != test.refused || fault != "" && !test.refused {
			t.Errorf("%s: fault %q", name, fault)
		}
		if fault := server.RefusedBy(ours, path); (fault == want) != test.refused || fault != "" && !test.refused {
			t.Errorf("%s: before a start, fault %q", name, fault)
		}
	}
	if err := os.WriteFile(given, []byte(read(ours)), 0o600); err != nil {
		t.Fatal(err)
	}
	if server.RefusedBy(t.TempDir(), given) == "" {
		t.Error("an authority that is made later is another one")
	}
}
