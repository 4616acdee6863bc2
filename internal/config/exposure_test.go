package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/token"
)

// TestExposedKeysOfOurOwn: the check tells of each key in dir that a start would refuse, and of
// none that no start reads.
func TestExposedKeysOfOurOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := []string{"ssh_key", "agent-ca.pem", "agent-server.pem", "operator-ca.pem", "operator-server.pem"}
	for _, name := range all {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load(t, minimal+"dir: "+dir+"\n"); err != nil {
			t.Fatalf("%s is closed: %v", name, err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		got := faults(t, minimal+"dir: "+dir+"\n")
		if len(got) != 1 || !strings.Contains(got[0], ": dir: "+path+" is open to others (mode 0644)") {
			t.Errorf("%s is open: %q", name, got)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range all {
		if err := os.Chmod(filepath.Join(dir, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := faults(t, minimal+"dir: "+dir+"\n"); len(got) != len(all) {
		t.Errorf("all are open: %q", got)
	}
	if got := faults(t, minimal+"dir: "+dir+"\noperator_api: {listen: ''}\n"); len(got) != 3 {
		t.Errorf("all are open, and there is only the socket: %q", got)
	}
}

// TestExposedSecrets has a configuration for each way in which a secret, or the fleet, is open to
// others.
func TestExposedSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const long = "a-token-that-nobody-guesses"
	open, closed, short := file("open", long, 0o644), file("closed", long, 0o600), file("short", "x", 0o600)
	equinix := func(token, url string) string {
		return minimal + "providers: [{name: a, kind: equinix, equinix: {project: 7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d11, " +
			"ssh_key_label: h, device_prefix: h, operating_system: d, token_file: " + token + ", api_url: '" + url + "'}}]\n"
	}
	for name, test := range map[string]struct{ content, want string }{
		"SSH key":           {minimal + "ssh: {key_file: " + open + "}\n", "ssh.key_file: " + open + " is open to others (mode 0644)"},
		"TLS key":           {minimal + "  tls: {certificate: " + open + ", key: " + open + "}\n", "agent_api.tls.key: " + open + " is open to others"},
		"database password": {minimal + "database: {url: 'postgres://u@db/x', password_file: " + open + "}\n", "database.password_file: " + open + " is open to others"},
		"API token":         {equinix(open, "https://api.example/"), "providers[0].equinix.token_file: " + open + " is open to others"},
		"short API token":   {equinix(short, "https://api.example/"), "providers[0].equinix.token_file: " + short + " does not hold one token of at least 8 characters"},
		"token over HTTP":   {equinix(closed, "http://api.example/"), "providers[0].equinix.api_url must be https: the token would be sent in the clear"},
		"user in a URL": {
			minimal + "providers: [{name: a, kind: static, static: {url: 'http://u:hunter2@lists.example/'}}]\n",
			"providers[0].static.url must be without a user or password",
		},
		"target path":      {minimal + "initializer: {agent_executable: /dev/null, target_path: /var/tmp/agent}\n", "initializer.target_path must not be in /var/tmp"},
		"directory of all": {minimal + "dir: /\n", "dir: / is a directory that all share"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content := test.content
			if strings.Count(content, "initializer:") > 1 {
				content = strings.TrimPrefix(content, "initializer: {agent_executable: /dev/null}\n")
			}
			got := faults(t, content)
			if len(got) != 1 || !strings.Contains(got[0], ": "+test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if all := strings.Join(got, " "); strings.Contains(all, "hunter2") || strings.Contains(all, long) {
				t.Errorf("a secret is shown: %s", all)
			}
		})
	}
	for name, content := range map[string]string{
		"closed": equinix(closed, "https://api.example/"),
		"here":   equinix(closed, "http://127.0.0.1:1/"),
		"named":  equinix(closed, "http://localhost/"),
	} {
		if _, err := load(t, content); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestListeningToOthersNeedsAToken opens the operator API to other hosts. Only whoever has the
// configuration checked asks for tokens: they expire, and a control plane goes on without.
func TestListeningToOthersNeedsAToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	none, some, open, ended := filepath.Join(dir, "none"), filepath.Join(dir, "some"), filepath.Join(dir, "open"), filepath.Join(dir, "ended")
	for _, file := range []string{some, open} {
		if _, _, err := token.Create(file, "ada", token.Viewer, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := token.Create(ended, "ada", token.Viewer, time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "f.yaml")
	check := func(content string, contents bool) []string {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := config.Load(config.Sources{File: file, Contents: contents})
		if err == nil {
			return nil
		}
		return strings.Split(err.Error(), "\n")
	}
	listening := func(address, file string) string {
		return minimal + "operator_api: {listen: '" + address + "', tokens_file: " + file + "}\n"
	}
	for _, address := range []string{"0.0.0.0:7480", ":7480", "[::]:7480", "192.0.2.1:7480", "herd.example:7480"} {
		want := "operator_api.listen: " + address + " is reached from other hosts, and there is no token that counts"
		for _, without := range []string{none, ended} {
			if got := check(listening(address, without), true); len(got) != 1 || !strings.Contains(got[0], want) {
				t.Errorf("%s: %q", address, got)
			}
			if got := check(listening(address, without), false); got != nil {
				t.Errorf("%s, to run: %q", address, got)
			}
		}
		if got := check(listening(address, some), true); got != nil {
			t.Errorf("%s with a token: %q", address, got)
		}
	}
	for _, address := range []string{"127.0.0.1:7480", "[::1]:0", "localhost:7480"} {
		if got := check(listening(address, none), true); got != nil {
			t.Errorf("%s: %q", address, got)
		}
	}
	if got := check(listening("127.0.0.1:1", open), true); len(got) != 1 || !strings.Contains(got[0], "operator_api.tokens_file: "+open+" is open to others") {
		t.Errorf("tokens that others can read: %q", got)
	}
	if got := faults(t, minimal+"operator_api: {names: ['a:1', 'https://b'], tls: {key: /dev/null}}\n"); len(got) != 3 {
		t.Errorf("bad names and half a key pair: %q", got)
	}
	if got := check(listening("127.0.0.1:1", open), false); got != nil {
		t.Errorf("tokens that others can read, to run: %q", got)
	}
}

// TestOneUndecodableValueHidesNothing puts a value that cannot be decoded where the rest of the
// checks depends on it. Every other section has a fault, which must be told all the same.
func TestOneUndecodableValueHidesNothing(t *testing.T) {
	t.Parallel()
	const rest = `
log: {level: loud}
database: {isolation: eventual, connections: 1}
agent_api: {endpoint: '0.0.0.0:1', drain: 0s, tls: {key: /dev/null}}
operator_api: {listen: nowhere}
session: {lease: 1ms}
loops: {updater: {parallelism: 0}}
initializer: {agent_executable: /nowhere, port: 0}
janitor: {batch: 0}
policy: {boot_timeout: 0s}
drain_timeout: 1s
`
	const provider = "  provisioner: {chunk_size: 0}\n  updater: {batch: -1}\n  install: {url: x}\n  static: {path: /nowhere, spacing: -1s}\n"
	whole := faults(t, "roles: [janitor, agent-api, initializer, operator-api]"+rest+"providers:\n- name: a\n  kind: static\n"+provider)
	for name, content := range map[string]string{
		"roles is a value":     "roles: janitor" + rest + "providers:\n- name: a\n  kind: static\n" + provider,
		"role is a list":       "roles: [[janitor]]" + rest + "providers:\n- name: a\n  kind: static\n" + provider,
		"role is none":         "roles: [king]" + rest + "providers:\n- name: a\n  kind: static\n" + provider,
		"kind is a list":       "roles: [janitor, agent-api, initializer, operator-api]" + rest + "providers:\n- name: a\n  kind: [static]\n" + provider,
		"kind is none":         "roles: [janitor, agent-api, initializer, operator-api]" + rest + "providers:\n- name: a\n  kind: statik\n" + provider,
		"lease is no duration": strings.Replace("roles: [janitor, agent-api, initializer, operator-api]"+rest, "1ms", "soon", 1) + "providers:\n- name: a\n  kind: static\n" + provider,
	} {
		got := faults(t, content)
		for _, want := range whole {
			if strings.Contains(want, "session.lease") || strings.Contains(want, "roles") {
				continue
			}
			if _, want, _ := strings.Cut(want, "yaml:"); !strings.Contains(strings.Join(got, "\n"), want) {
				t.Errorf("%s: missing %q in\n%s", name, want, strings.Join(got, "\n"))
			}
		}
	}
	got := strings.Join(faults(t, minimal+"database: {url: 'mysql://x', path: a, password_file: /nowhere}\n"), "\n")
	for _, want := range []string{"database.url: is not a URL", "database.path: is for SQLite", "database.password_file: "} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in\n%s", want, got)
		}
	}
}
