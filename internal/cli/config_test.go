package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhereAConfigurationIsLookedFor is told to whoever has none there.
func TestWhereAConfigurationIsLookedFor(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/etc/ironherd/ironherd.yaml"); err == nil && os.Getenv("CI") == "" {
		t.Skip("this host has a configuration")
	}
	const want = "ironherd: there is no /etc/ironherd/ironherd.yaml, and no /none/.local/state/ironherd/ironherd.yaml: " +
		"name the configuration with --config or $IRONHERD_CONFIG\n"
	if r := run(t, []string{"HOME=/none"}, "config", "check"); r.code != 2 || r.stderr != want {
		t.Errorf("%d, %q", r.code, r.stderr)
	}
}

// TestRootChecksForAnother: what root finds right, the user of the service may not be able to read.
// Root is told whose the control plane is, and how to check it as that user.
func TestRootChecksForAnother(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("a directory is given away by root: run this test as root")
	}
	home := t.TempDir()
	dir, file := filepath.Join(home, "state"), filepath.Join(home, "ironherd.yaml")
	content := "dir: state\nagent_api: {endpoint: 'herd.example:1'}\ninitializer: {agent_executable: /dev/null}\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	right := file + " is right: 0 providers, 9 roles\n"
	told := func(name, as string) string {
		return fmt.Sprintf("That is what root can read. %s is %s's, so check it as that user: %s -- ironherd config check %s\n", dir, name, as, file)
	}
	check := func(when, want string) {
		t.Helper()
		if r := run(t, nil, "config", "check", file); r.code != 0 || r.stdout != right || r.stderr != want {
			t.Errorf("%s: %d, %q, %q, want %q", when, r.code, r.stdout, r.stderr, right+want)
		}
	}
	check("it is not there", "")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	check("it is root's", "")
	for uid, want := range map[int]string{
		12345: told("user 12345", "setpriv --reuid 12345 --regid 54321 --clear-groups"),
		1:     told("daemon", "runuser -u daemon"),
	} {
		if err := os.Chown(dir, uid, 54321); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("it is %d's", uid), want)
	}
}

// TestConfigCheckInFull: what is right, or each fault, for programs. People are told the faults,
// too.
func TestConfigCheckInFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, test := range map[string]struct {
		content string
		code    int
		stderr  string
	}{
		"config_check.json": {
			"agent_api: {endpoint: 'herd.example:1'}\ninitializer: {agent_executable: /dev/null}\nroles: [janitor]\nproviders:\n" +
				"  - {name: rack, kind: static, static: {path: hosts.yaml}}\n", 0, "",
		},
		"config_check_faults.json": {
			"initializer: {agent_executable: /dev/null}\nroles: [janitr]\n", 2,
			"ironherd: FILE:1: agent_api.endpoint must be set",
		},
	} {
		file := filepath.Join(dir, strings.TrimSuffix(name, ".json")+".yaml")
		if err := os.WriteFile(file, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "hosts.yaml"), []byte("hosts: []\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := run(t, nil, "config", "check", file, "-o", "json")
		if stderr := strings.ReplaceAll(r.stderr, file, "FILE"); r.code != test.code || !strings.HasPrefix(stderr, test.stderr) || (stderr == "") != (test.stderr == "") {
			t.Errorf("%s: %d, %q", name, r.code, stderr)
		}
		golden(t, name, strings.ReplaceAll(r.stdout, file, "FILE"))
	}
}

// TestConfigCheckTellsCaveats: a provider's install may await what its image never does.
func TestConfigCheckTellsCaveats(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hosts.yaml"), []byte("hosts: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		firstBoot, seenUp string
		told              bool
	}{
		"cloud-init":                   {"first_boot: nocloud, ", "unit", true},
		"cloud-init, asked by SSH":     {"first_boot: nocloud, ", "ssh", false},
		"an image that reads the area": {"", "unit", false},
	} {
		file := filepath.Join(dir, "ironherd.yaml")
		content := "agent_api: {endpoint: 'herd.example:1'}\ninitializer: {agent_executable: /dev/null}\nroles: [janitor]\nimages:\n" +
			"  - {name: os, " + test.firstBoot + "url: 'https://h/os.raw', digest: 'sha256:" + strings.Repeat("ab", 32) + "'}\nproviders:\n" +
			"  - {name: rack, kind: static, static: {path: hosts.yaml}, install: {image: os, seen_up: " + test.seenUp + "}}\n"
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		const mind = "Of providers[0].install, mind that the installed system counts as up when a unit of it calls"
		r := run(t, nil, "config", "check", file)
		if r.code != 0 || strings.HasPrefix(r.stderr, mind) != test.told || strings.Contains(r.stderr, "with seen_up: ssh the system is asked") != test.told {
			t.Errorf("%s: %d, %q, %q", name, r.code, r.stdout, r.stderr)
		}
	}
}
