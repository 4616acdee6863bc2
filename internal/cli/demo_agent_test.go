package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/config"
)

// TestDemoAgentIsNamedFromHere: --agent is a file of who names it, wherever the demo's own
// directory is.
func TestDemoAgentIsNamedFromHere(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("agent", []byte("an agent"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	r := run(t, nil, "demo", "--machines", "1", "--agent", "agent", "--print-config")
	if want := "agent_executable: " + filepath.Join(dir, "agent"); r.code != 0 || !strings.Contains(r.stdout, want) {
		t.Errorf("%d, %s, %s; want %s", r.code, r.stderr, r.stdout, want)
	}
}

// TestDemoPrintsAConfiguration: it is one that a control plane takes, and names no directory that
// is removed.
func TestDemoPrintsAConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	agent, file := filepath.Join(dir, "agent"), filepath.Join(dir, "ironherd.yaml")
	if err := os.WriteFile(agent, []byte("an agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"demo", "--machines", "1", "--image-size", "4", "--agent", agent, "--print-config"}
	kept := run(t, nil, append(args, "--dir", filepath.Join(dir, "kept"))...)
	if err := os.WriteFile(file, []byte(kept.stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(config.Sources{File: file}); kept.code != 0 || err != nil {
		t.Errorf("%d, %v:\n%s", kept.code, err, kept.stdout)
	}
	if r := run(t, nil, args...); !strings.Contains(r.stdout, "token_file: DIRECTORY/world/token\n") || strings.Contains(r.stdout, "/ironherd-demo-") {
		t.Errorf("%d:\n%s", r.code, r.stdout)
	}
}
