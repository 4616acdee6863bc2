package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
