package command_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/command"
)

// TestConfigurationIsFound: what the documentation and `plan` tell a person to run names no file.
func TestConfigurationIsFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { // whose fault tells that it was read
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("of_"+name+": 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	standard, named, other, empty := file("standard"), file("named"), file("other"), file("empty")
	if err := os.Truncate(empty, 0); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ standard, environ, args, want string }{
		{standard, "", "", standard + `:1: there is no key "of_standard"`},
		{standard, "IRONHERD_RECONCILER_CONFIG=" + other, "", other + `:1: there is no key "of_other"`},
		{standard, "IRONHERD_RECONCILER_CONFIG=" + other, "--config " + named, named + `:1: there is no key "of_named"`},
		{filepath.Join(dir, "none"), "", "", "etcd_endpoints must be set: " + filepath.Join(dir, "none") + " does not exist, and --config names no other file"},
		{filepath.Join(standard, "below"), "", "", "not a directory"},
		{standard, "", "--config " + empty, "etcd_endpoints must be set in " + empty},
		{"", "", "", "etcd_endpoints must be set\n"},
	} {
		var stderr bytes.Buffer
		code := command.Main(t.Context(), append([]string{"status"}, strings.Fields(test.args)...), command.Env{
			Stdout: &stderr, Stderr: &stderr, Environ: strings.Fields(test.environ), ConfigFile: test.standard, Hostname: "n1", Version: "test",
		})
		if code != 2 || !strings.Contains(stderr.String(), test.want) {
			t.Errorf("%+v: got %d, %q", test, code, stderr.String())
		}
	}
}
