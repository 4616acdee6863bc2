package cli_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/cli"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/token"
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

// TestServeOutlivesAHangup: SIGHUP, which many send to have a configuration read again, ends
// nothing.
func TestServeOutlivesAHangup(t *testing.T) { //nolint:paralleltest // it hangs up on all of this process
	dir := t.TempDir()
	file := filepath.Join(dir, "ironherd.yaml")
	if err := os.WriteFile(file, []byte("dir: state\nroles: [janitor]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	stderr := &untilSaid{text: "SIGHUP changes nothing", said: stop}
	code := cli.Main(ctx, []string{"serve", "--config", file}, cli.Env{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: stderr, Executable: filepath.Join(dir, "ironherd"),
		Notify: func(state string) error {
			if state == "READY=1" {
				return syscall.Kill(os.Getpid(), syscall.SIGHUP)
			}
			return nil
		},
	})
	if code != 0 || !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("it ended with %d (%v): %s", code, ctx.Err(), &stderr.all)
	}
}

// TestServeIsStoppedWhileItStarts: a control plane that is told to stop before it runs ends as a
// running one does, and says what the start failed with.
func TestServeIsStoppedWhileItStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ironherd.yaml")
	if err := os.WriteFile(file, []byte("dir: state\nroles: [janitor]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var stderr bytes.Buffer
	code := cli.Main(ctx, []string{"serve", "--config", file}, cli.Env{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Executable: filepath.Join(dir, "ironherd"),
		Notify: func(string) error { return nil },
	})
	said := regexp.MustCompile(`"told to stop while it started","err":"[^"]*context canceled`)
	if code != 0 || strings.Contains(stderr.String(), "interrupted") || !said.MatchString(stderr.String()) {
		t.Errorf("it ended with %d: %s", code, &stderr)
	}
}

// untilSaid keeps what is written, and tells when a text has been.
type untilSaid struct {
	text string
	said func()

	mu  sync.Mutex
	all bytes.Buffer
}

func (u *untilSaid) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all.Write(p)
	if strings.Contains(u.all.String(), u.text) {
		u.said()
	}
	return len(p), nil
}

// TestTokensAreAskedForByConfigCheckAlone: whoever backs up or repairs calls nobody, and a token
// ends by itself. A file of tokens that others can read stops serve alone.
func TestTokensAreAskedForByConfigCheckAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, tokens := filepath.Join(dir, "ironherd.yaml"), filepath.Join(dir, "tokens.yaml")
	content := "dir: state\nagent_api: {listen: '127.0.0.1:0', endpoint: 'herd.example:1'}\ninitializer: {agent_executable: agent}\n" +
		"operator_api: {listen: '0.0.0.0:0', tokens_file: tokens.yaml}\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "agent"), []byte("an agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := token.Create(tokens, "ada", token.Admin, time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Open(t.Context(), c, daemon.Options{}) // makes the database
	if err == nil {
		err = d.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "copy.db")
	expect := func(when string, wants map[string]int) {
		t.Helper()
		for args, want := range wants {
			if r := run(t, nil, strings.Fields(args)...); r.code != want {
				t.Errorf("%s, %s: got %d, %q, want %d", when, args, r.code, r.stderr, want)
			}
		}
	}
	others := map[string]int{
		"db migrate --config " + file:        0,
		"db check --config " + file:          0,
		"db accept-restore --config " + file: 0,
		"machine list --config " + file:      7, // nobody serves
		"config check " + file:               2,
	}
	expect("expired", others)
	if r := run(t, nil, "db", "backup", copied, "--config", file); r.code != 0 {
		t.Errorf("db backup: %d, %q", r.code, r.stderr)
	}
	if err := os.Chmod(tokens, 0o644); err != nil {
		t.Fatal(err)
	}
	expect("open to others", others)
	told := "operator_api.tokens_file: " + tokens + " is open to others"
	if r := run(t, nil, "serve", "--config", file); r.code != 2 || !strings.Contains(r.stderr, told) {
		t.Errorf("serve with tokens that others can read: %d, %q", r.code, r.stderr)
	}
	if err := os.Remove(c.Database.Path); err != nil {
		t.Fatal(err)
	}
	expect("to restore", map[string]int{"db restore " + copied + " --config " + file: 0})
}
