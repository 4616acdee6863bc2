package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// output runs a program and returns what it prints, without surrounding space.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Env = append(os.Environ(), "LC_ALL=C", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if path, err := exec.LookPath("/usr/sbin/" + name); err == nil {
		command.Path, command.Err = path, nil
	}
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return strings.TrimSpace(*s)
}

// otherKey is a host key of somebody else.
func otherKey(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "other")
	output(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path)
	return strings.TrimSpace(read(t, path+".pub"))
}
