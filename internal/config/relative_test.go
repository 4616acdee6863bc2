package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ironherd/ironherd/internal/config"
)

// TestFilesFromOutsideAreRelativeToTheWorkingDirectory, those of a list as those of a single value:
// whoever writes them is there, and not where the configuration is.
func TestFilesFromOutsideAreRelativeToTheWorkingDirectory(t *testing.T) {
	dir, here := t.TempDir(), filepath.Join(t.TempDir(), "a,b")
	if err := os.Mkdir(here, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"agent", "arm", "other"} {
		if err := os.WriteFile(filepath.Join(here, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "ironherd.yaml")
	if err := os.WriteFile(file, []byte("agent_api: {endpoint: 'herd.example:8443'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(here)
	const single, list = "initializer.agent_executable", "initializer.other_agent_executables"
	for from, sources := range map[string]config.Sources{
		"environment": {Environ: []string{"IRONHERD_INITIALIZER_AGENT_EXECUTABLE=agent", "IRONHERD_INITIALIZER_OTHER_AGENT_EXECUTABLES=arm, other,/dev/null"}},
		"flags":       {Flags: []config.Override{{Flag: "--set", Key: single, Value: "agent"}, {Flag: "--set", Key: list, Value: "arm,./other,/dev/null"}}},
	} {
		sources.File = file
		got, err := config.Load(sources)
		if err != nil {
			t.Errorf("%s: %v", from, err)
			continue
		}
		if got.Initializer.AgentExecutable != here+"/agent" ||
			!slices.Equal(got.Initializer.OtherAgentExecutables, []string{here + "/arm", here + "/other", "/dev/null"}) {
			t.Errorf("%s: %s, %q", from, got.Initializer.AgentExecutable, got.Initializer.OtherAgentExecutables)
		}
	}
}
