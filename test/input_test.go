package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/test/process"
)

const fiveFaults = `dir: %DIR%
session:
  lease: 5 seconds
agent_api:
  endpoint: nowhere
providers:
  - name: Metal 1
    kind: equinix
    equinix:
      token_file: /nowhere/token
      project: 7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d11
      ssh_key_label: herd
      device_prefix: herd-
      operating_system: debian_12
      spacings: 2s
`

// TestBadInput gives the program what it cannot use: one clear sentence (of a configuration: for
// each fault) and the right exit code.
func TestBadInput(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 2*time.Minute)
	herd := &process.Herd{Ironherd: ironherd, Dir: shortDir(t), Machines: 1}
	if err := herd.StartWorld(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(t, herd); err != nil {
			t.Error(err)
		}
	})
	startPlane(ctx, t, herd)
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(content, "%DIR%", dir)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad := write("bad.yaml", fiveFaults)
	garbage := write("garbage.db", strings.Repeat("no database\n", 1000))
	world := herd.Config()
	socket := "unix://" + herd.Socket()
	agents := agentAddress(t, herd)
	elsewhere := []string{"--set", "dir=" + dir, "--set", "operator_api.listen="}

	for name, test := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"unknown flag":    {[]string{"machine", "list", "--colour"}, 2, []string{"unknown flag: --colour"}},
		"unknown command": {[]string{"machine", "lst"}, 2, []string{`there is no command "machine lst": did you mean list?`}},
		"missing file":    {[]string{"serve", "--config", "/nowhere.yaml"}, 2, []string{"configuration file /nowhere.yaml does not exist"}},
		"missing agent":   {[]string{"demo", "--agent", "/nowhere"}, 2, []string{`the agent's executable was not found at "/nowhere"`}},
		"port in use": {
			append([]string{"serve", "--config", world, "--set", "agent_api.listen=" + agents}, elsewhere...), 5,
			[]string{"agent API: address " + agents + " is in use by another process"},
		},
		"unreadable database": {
			append([]string{"serve", "--config", world, "--set", "agent_api.listen=127.0.0.1:0", "--set", "database.path=" + garbage}, elsewhere...), 2,
			[]string{garbage + " is not a usable SQLite database"},
		},
		"database in use": {
			[]string{"db", "check", "--config", world}, 5, []string{"is in use by another process (pid "},
		},
		"unknown machine": {
			[]string{"machine", "show", "herd-9999", "--server", socket}, 3, []string{"herd-9999"},
		},
		"nobody there": {
			[]string{"machine", "list", "--server", "unix://" + dir + "/none.sock"}, 7, []string{"no control plane answers at unix://" + dir + "/none.sock"},
		},
		"world in use": {
			[]string{"sim", "--dir", filepath.Dir(world)}, 5, []string{"in use"},
		},
		"five faults": {
			[]string{"config", "check", bad}, 2, []string{
				bad + ":3: session.lease: \"5 seconds\" is not a duration",
				bad + ":5: agent_api.endpoint must be host:port",
				bad + ":7: providers[0].name: \"Metal 1\" cannot name a provider",
				bad + ":10: providers[0].equinix.token_file: the file /nowhere/token cannot be read",
				bad + ":15: providers[0].equinix.spacings: there is no such key; did you mean spacing?",
				"5 faults in the configuration",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := process.Run(bounded(t, time.Minute), ironherd, test.args...)
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			if code != test.code || stdout != "" || len(lines) != len(test.want) {
				t.Fatalf("exit code %d, want %d; standard output %q, standard error:\n%s", code, test.code, stdout, stderr)
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, "ironherd: ") || !strings.Contains(line, test.want[i]) {
					t.Errorf("got  %s\nwant %s", line, test.want[i])
				}
			}
		})
	}
	t.Run("the configuration that the world left is right", func(t *testing.T) {
		t.Parallel()
		if code, _, stderr := process.Run(bounded(t, time.Minute), ironherd, "config", "check", world); code != 0 {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
}

// agentAddress is where the control plane says that it listens for agents.
func agentAddress(t *testing.T, herd *process.Herd) string {
	t.Helper()
	_, rest, ok := strings.Cut(herd.Plane().Stderr(), "agents ")
	address, _, _ := strings.Cut(rest, ",")
	if !ok {
		t.Fatalf("the control plane does not say where agents find it: %s", herd.Plane().Stderr())
	}
	return address
}
