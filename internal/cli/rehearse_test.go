package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rehearsable is a configuration whose loops tick rarely, so that a rehearsal is quick.
const rehearsable = `initializer: {agent_executable: /dev/null}
agent_api: {endpoint: 'herd.example:8443'}
session: {lease: 2m}
janitor: {interval: 1m}
policy: {heartbeat_interval: 1m, silent_after: 4m, recovery_step_timeout: 4m}
loops:
  provisioner: {poll: 2m}
  initializer: {poll: 2m}
  updater: {poll: 2m}
  recoverer: {poll: 2m}
  operations: {poll: 2m}
providers:
  - name: rack
    kind: static
    static: {path: hosts.yaml}
`

// TestRehearseInstalls: what a provider's configuration asks for is installed on its machines.
func TestRehearseInstalls(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ironherd.yaml")
	const install = `    install: {image: os, root_disk: {erase: true}}
images:
  - {name: os, url: 'https://images.example/os.raw.zst', digest: 'sha256:0000000000000000000000000000000000000000000000000000000000000000', compression: zstd}
`
	if err := os.WriteFile(file, []byte(rehearsable+install), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts.yaml"), []byte("hosts: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"rehearse", "--config", file, "--scenario", "listener-down", "--machines", "3", "--control-planes", "1", "--hours", "4"}
	if r := run(t, nil, args...); r.code != 0 || !strings.Contains(r.stdout, "machines: 3 installed") || !strings.Contains(r.stdout, "\nEverything was well after ") {
		t.Errorf("exit code %d, %q:\n%s", r.code, r.stderr, r.stdout)
	}
	hang := slices.Replace(slices.Clone(args), 4, 5, "agents-die")
	if r := run(t, nil, hang...); r.code != 6 || !strings.Contains(r.stdout, "\nNothing goes on by itself after 1m0s, and 1 installed machine does not answer, ") ||
		!strings.Contains(r.stderr, "not everything was well in the end: 1 installed machine does not answer, and nobody finds that without install.watch") {
		t.Errorf("a machine that hangs and is not watched: exit code %d, %q:\n%s", r.code, r.stderr, r.stdout)
	}
	kept := strings.Replace(rehearsable+install, "erase: true", "pick: smallest", 1)
	if err := os.WriteFile(file, []byte(kept), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, nil, args...); r.code != 2 || !strings.Contains(r.stderr, "what provider rack installs is refused") {
		t.Errorf("an install that may not erase: exit code %d, %q", r.code, r.stderr)
	}
	broken := strings.Replace(rehearsable+install, "image: os", "image: another", 1)
	if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, nil, args...); r.code != 2 || !strings.Contains(r.stderr, "another") {
		t.Errorf("an image that is not in the catalogue: exit code %d, %q", r.code, r.stderr)
	}
}

// TestRehearseOnThisHost: where machines call is not rehearsed, as they are simulated.
func TestRehearseOnThisHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ironherd.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(rehearsable, "herd.example:8443", "127.0.0.1:7443", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts.yaml"), []byte("hosts: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, nil, "rehearse", "--config", file, "--scenario", "deploy", "--machines", "2", "--control-planes", "1", "--hours", "1")
	if r.code != 0 || !strings.Contains(r.stdout, "\nEverything was well after ") {
		t.Errorf("exit code %d, %q:\n%s", r.code, r.stderr, r.stdout)
	}
}

// TestRehearse: the answer is complete, the same seed gives the same, and nothing is left behind.
func TestRehearse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ironherd.yaml")
	if err := os.WriteFile(file, []byte(rehearsable), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts.yaml"), []byte("hosts: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"rehearse", "--config", file, "--scenario", "agents-die", "--machines", "4", "--control-planes", "1", "--hours", "4"}
	r := run(t, nil, args...)
	if r.code != 6 || !strings.Contains(r.stderr, "nothing real is touched") ||
		!strings.Contains(r.stderr, "not everything was well in the end: 1 machine waits for somebody: 1 silent") {
		t.Fatalf("exit code %d, %q", r.code, r.stderr)
	}
	for _, want := range []string{"1m0s  the agents of a tenth of the machines die, and half of these machines hang\n", "nothing goes on by itself any more\n", "and 1 machine waits for somebody: 1 silent.", "3 available, 1 silent", "Restarts: none", "Calls of rack:"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("the answer has no %q:\n%s", want, r.stdout)
		}
	}
	var first, second struct {
		Digest       string `json:"digest"`
		Well         bool   `json:"well"`
		SettledAfter string `json:"settledAfter"`
	}
	for _, answer := range []any{&first, &second} {
		again := run(t, nil, append(args, "-o", "json")...)
		if err := json.Unmarshal([]byte(again.stdout), answer); err != nil {
			t.Fatalf("%v: %s", err, again.stdout)
		}
	}
	if first.Digest == "" || first != second || first.Well || first.SettledAfter == "" {
		t.Errorf("%+v and %+v", first, second)
	}
	patient := filepath.Join(t.TempDir(), "ironherd.yaml")
	text := strings.Replace(rehearsable, "silent_after: 4m", "silent_after: 1h", 1)
	text = strings.Replace(text, "path: hosts.yaml", "path: "+filepath.Join(dir, "hosts.yaml"), 1)
	if err := os.WriteFile(patient, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	short := run(t, nil, append(args, "--config", patient, "--hours", "0.17")...)
	if short.code != 6 || !strings.Contains(short.stdout, "Not everything was well in the end") ||
		!strings.Contains(short.stderr, "ironherd: not everything was well in the end: ") {
		t.Errorf("a policy that is too patient: exit code %d, %q, %q", short.code, short.stdout, short.stderr)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v: something was left beside the configuration and the list", left, err)
	}
}
