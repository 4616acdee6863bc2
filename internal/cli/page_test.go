package cli_test

import (
	"bytes"
	"crypto/ed25519"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/cli"
)

// pages returns what people read first, by the name of its file.
func pages(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../../docs/ops/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no pages: %v", err)
	}
	texts := map[string]string{}
	for _, path := range append(paths, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(path)] = string(text)
	}
	return texts
}

// TestPagesShowConfigurationsThatAreRight: what a page shows by `cat` is accepted as it stands. The
// files that it names are stand-ins, and so is a host key that the page cuts short.
func TestPagesShowConfigurationsThatAreRight(t *testing.T) {
	t.Parallel()
	key, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public())
	if err != nil {
		t.Fatal(err)
	}
	hostKey := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	shown := regexp.MustCompile(`(?m)^[$#] cat (\S+\.yaml)\n((?:[^$#\n].*\n)+)`)
	checked := map[string]bool{}
	for page, text := range pages(t) {
		dir := t.TempDir()
		put := func(name, content string) string {
			t.Helper()
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		for _, name := range []string{"database-password", "metal.token", "ironherd-agent"} {
			put(name, "a-stand-in")
		}
		local := strings.NewReplacer("/etc/ironherd/", dir+"/", "ssh-ed25519 AAAA…", hostKey)
		var configurations []string
		for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(text, -1) {
			for _, file := range shown.FindAllStringSubmatch(block[1], -1) {
				path := put(filepath.Base(file[1]), local.Replace(file[2]))
				if !strings.HasPrefix(file[2], "hosts:") {
					configurations = append(configurations, path)
				}
			}
		}
		for _, path := range configurations {
			var stderr bytes.Buffer
			code := cli.Main(t.Context(), []string{"config", "check", path}, cli.Env{
				Stdout: &stderr, Stderr: &stderr, Executable: filepath.Join(dir, "ironherd"), Version: "v1.2.3",
			})
			if code != 0 {
				t.Errorf("%s: %d, %s", page, code, stderr.String())
			}
			checked[page+" "+filepath.Base(path)] = true
		}
	}
	for _, want := range []string{"running.md herd.yaml", "running.md metal.yaml", "database.md ironherd.yaml"} {
		if !checked[want] {
			t.Errorf("%s was not found: %v", want, checked)
		}
	}
}

// TestDocsAreWhereTheHelpSays, on a host that has the package, and so is the page that the sample
// configuration names.
func TestDocsAreWhereTheHelpSays(t *testing.T) {
	t.Parallel()
	const installed = "/usr/share/doc/ironherd/docs"
	for file, wants := range map[string]string{
		"../../deploy/deb/nfpm.yaml":     "  - src: docs/*.md\n    dst: " + installed + "/\n",
		"../../deploy/ironherd.yaml":     "# " + installed + "/reference/config.md; ",
		"../../docs/reference/config.md": "# Configuration",
		"testdata/help.txt":              " " + installed + " ",
	} {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), wants) {
			t.Errorf("%s does not have %q: %v", file, wants, err)
		}
	}
}

// TestPagesShowProcessesThatTell: each process of an example has the operator API, without which
// nobody hears of its metrics, its health and what its janitor has found.
func TestPagesShowProcessesThatTell(t *testing.T) {
	t.Parallel()
	lists := 0
	for page, text := range pages(t) {
		for _, line := range regexp.MustCompile(`(?m)^\s*roles: .*$`).FindAllString(text, -1) {
			processes := regexp.MustCompile(`\[[^\]]*\]`).FindAllString(line, -1)
			for _, roles := range processes {
				lists++
				if !strings.Contains(roles, "operator-api") {
					t.Errorf("%s: a process has %s, without operator-api", page, roles)
				}
			}
			if strings.Count(strings.Join(processes, ""), "janitor") == 0 {
				t.Errorf("%s: no process has the role janitor: %s", page, line)
			}
		}
	}
	if lists == 0 {
		t.Error("no page has an example")
	}
}
