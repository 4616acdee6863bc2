package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestServeBeforeItsFilesAreThere: a mount or a credential may come after us, so serve ends as with
// all that passes, and systemd tries it again. Whoever checks the file wants a verdict.
func TestServeBeforeItsFilesAreThere(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ironherd.yaml")
	content := "dir: state\nagent_api: {endpoint: 'herd.example:1'}\ninitializer: {agent_executable: /dev/null}\n" +
		"database: {url: postgres://db/x, password_file: /nowhere/password}\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	told := "ironherd: " + file + ":4: database.password_file: the file /nowhere/password cannot be read: no such file or directory\n"
	for args, want := range map[string]int{
		"serve --config " + file:                         7,
		"serve --set session.lease=1ms --config " + file: 2,
		"config check " + file:                           2,
		"db check --config " + file:                      2,
	} {
		if r := run(t, nil, strings.Fields(args)...); r.code != want || !strings.HasPrefix(r.stderr, told) {
			t.Errorf("%s: got %d, %q, want %d, %q", args, r.code, r.stderr, want, told)
		}
	}
}
