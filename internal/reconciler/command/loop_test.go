package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExposeToItself: a kubeconfig that leads to the port of expose is refused. The port would
// never open, because it waits for the answer of the API server behind itself.
func TestExposeToItself(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	for server, addresses := range map[string]struct{ itself, others []string }{
		"https://192.0.2.11:6443":       {[]string{"192.0.2.11:6443", ":6443", "[::]:6443"}, []string{"192.0.2.11:7443", "192.0.2.12:6443", ""}},
		"https://[2001:db8:0::b]:6443/": {[]string{"[2001:db8::b]:6443", "0.0.0.0:6443"}, []string{"[2001:db8::c]:6443"}},
		"https://NODE":                  {[]string{"node:443"}, []string{"node:6443"}},
		"https://127.0.0.1:6443":        {[]string{"127.0.0.1:6443"}, []string{":6443", "192.0.2.11:6443"}},
	} {
		file := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(file, []byte(strings.Replace(kubeconfig, "http://127.0.0.1:9", server, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, address := range addresses.itself {
			_, said := p.run(2, "config", "check", "--kubeconfig", file, "--expose", address)
			contains(t, "config check", said, "where expose itself listens")
			_, said = p.run(2, "expose", "--kubeconfig", file, "--expose", address)
			contains(t, "expose", said, "where expose itself listens")
		}
		for _, address := range addresses.others {
			p.run(0, "config", "check", "--kubeconfig", file, "--expose", address)
		}
	}
}
