package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestFaultsThatPass has a configuration for each file that it can name and that is not there yet,
// as before a mount. All else stays until somebody changes it.
func TestFaultsThatPass(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := os.WriteFile(open, []byte("a-token-that-nobody-guesses"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	provider := func(keys string) string { return minimal + "providers: [{name: a, " + keys + "}]\n" }
	equinix := func(file string) string {
		return provider("kind: equinix, equinix: {project: 7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d11, ssh_key_label: h, device_prefix: h, " +
			"operating_system: d, token_file: " + file + "}")
	}
	install := func(keys string) string {
		return provider("kind: static, static: {url: 'https://lists.example/'}, install: {url: 'http://x/i', digest: 'sha256:" +
			strings.Repeat("a", 64) + "', " + keys + "}")
	}
	const agent = "agent_api: {endpoint: 'herd.example:8443'}\ninitializer: "
	for name, test := range map[string]struct {
		content string
		passes  []bool
	}{
		"database password": {minimal + "database: {url: postgres://db/x, password_file: /nowhere/x}\n", []bool{true}},
		"TLS files":         {minimal + "  tls: {certificate: /nowhere/c, key: /nowhere/k, ca_certificate: /nowhere/a}\n", []bool{true, true, true, true}},
		"operators' TLS":    {minimal + "operator_api: {tls: {certificate: /nowhere/c, key: /nowhere/k}}\n", []bool{true, true}},
		"SSH key":           {minimal + "ssh: {key_file: /nowhere/k}\n", []bool{true}},
		"agent":             {agent + "{agent_executable: /nowhere/a, other_agent_executables: [/nowhere/b]}\n", []bool{true, true}},
		"authority":         {agent + "{agent_executable: /dev/null, endpoint_ca: /nowhere/c}\n", []bool{true}},
		"API token":         {equinix("/nowhere/t"), []bool{true}},
		"list of hosts":     {provider("kind: static, static: {path: /nowhere/l}"), []bool{true}},
		"first-boot data":   {install("first_boot_data_file: /nowhere/f"), []bool{true}},
		"system's CA":       {install("seen_up: 'https://{address}/', seen_up_ca_file: /nowhere/c"), []bool{true}},

		"open to others":         {equinix(open), []bool{false}},
		"below a file":           {equinix("/dev/null/t"), []bool{false}},
		"a directory":            {agent + "{agent_executable: /}\n", []bool{false}},
		"an empty password":      {minimal + "database: {url: postgres://db/x, password_file: /dev/null}\n", []bool{false}},
		"a typing error as well": {equinix("/nowhere/t") + "log: {level: loud}\n", []bool{true, false}},
		"no file":                {minimal + "session: {lease: 1ms}\n", []bool{false}},
	} {
		_, err := load(t, test.content)
		all, _ := errors.AsType[config.Faults](err)
		var passes []bool
		for _, f := range all {
			passes = append(passes, f.Passes)
		}
		if !slices.Equal(passes, test.passes) || all.Pass() == slices.Contains(test.passes, false) {
			t.Errorf("%s: %v passes %v, want %v", name, err, passes, test.passes)
		}
		if fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s: %v is of kind %s", name, err, fleet.KindOf(err))
		}
	}
}
