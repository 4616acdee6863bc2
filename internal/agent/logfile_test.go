package agent

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// TestLogIsOurOwn: whoever may write to /var/log must not have the agent, which is root's, write to
// another file, or throw half of it away.
func TestLogIsOurOwn(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(victim, path string) error{
		"a link":      os.Symlink,
		"a hard link": os.Link,
		"a link to nothing": func(victim, path string) error {
			return os.Symlink(victim+"-none", path)
		},
		"a pipe":      func(_, path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory": func(_, path string) error { return os.Mkdir(path, 0o700) },
		"somebody else's": func(_, path string) error {
			if os.Getuid() != 0 {
				return os.Mkdir(path, 0o700)
			}
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 4242, 4242))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			victim, path := filepath.Join(t.TempDir(), "sshd_config"), filepath.Join(t.TempDir(), "x.log")
			content := strings.Repeat("Port 22\n", maxLog/8+1)
			if err := errors.Join(os.WriteFile(victim, []byte(content), 0o644), put(victim, path)); err != nil {
				t.Fatal(err)
			}
			if n, err := (&logFile{path: path}).Write([]byte("a line\n")); err == nil {
				t.Errorf("%d bytes were written", n)
			}
			if now, err := os.ReadFile(victim); err != nil || string(now) != content {
				t.Errorf("the victim has %d bytes of %d, %v", len(now), len(content), err)
			}
			if _, err := os.Lstat(victim + "-none"); !os.IsNotExist(err) {
				t.Errorf("what the link names: %v", err)
			}
		})
	}
}

// TestTakeoverWithoutLog: an agent is worth more than its log.
func TestTakeoverWithoutLog(t *testing.T) {
	t.Parallel()
	h, authority := newHost(t), newAuthority(t)
	p := newPlane(t, authority)
	init := initMessage(5, authority)
	init.Endpoint, init.HeartbeatIntervalMs = p.listen(t), 100
	log := logPath(h.root)
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), os.Symlink(filepath.Join(h.root, "nothing"), log)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := takeover.StopAgent(context.WithoutCancel(t.Context()), h.root); err != nil {
			t.Error(err)
		}
	})
	command := h.command(t, "takeover")
	command.Stdin = bytes.NewReader(encoded(t, init))
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if _, err := command.Output(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	if !strings.Contains(stderr.String(), "no log is kept: ") || !strings.Contains(stderr.String(), log) {
		t.Errorf("it says %q", stderr.String())
	}
	until(t, "heartbeat", func() bool { return len(p.seen()) > 0 })
	if _, err := os.Lstat(filepath.Join(h.root, "nothing")); !os.IsNotExist(err) {
		t.Errorf("what the link names: %v", err)
	}
}
