package remote

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// configured makes lines of sshd_config of what startSSHD takes as the environment.
func configured(lines ...string) string { return "ADDED=1\n" + strings.Join(lines, "\n") }

// What a host writes is bounded on every stream, whatever is asked of it.
func TestAHostThatWritesWithoutEnd(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{"to standard error": "yes >&2", "to standard output": "yes"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSSHD(t, configured("ForceCommand "+command))
			var lines atomic.Int64
			host := s.dial(t)
			_, err := host.Run(t.Context(), Command{
				Args: []string{"mkdir", "-p", "/tmp"}, OnStderr: func(string) { lines.Add(1) }, Timeout: time.Minute,
			})
			if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), name) {
				t.Errorf("a command gives %v (%s)", err, fleet.KindOf(err))
			}
			if n := lines.Load(); n > stderrLines {
				t.Errorf("%d lines are told", n)
			}
			host = s.dial(t)
			_, err = host.Upload(t.Context(), NewContent([]byte("agent")), filepath.Join(t.TempDir(), "agent"), 0o700)
			if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "ForceCommand") {
				t.Errorf("an upload gives %v (%s)", err, fleet.KindOf(err))
			}
		})
	}
}

// A host that accepts a command and never answers is left after the time of one step.
func TestEveryStepHasATimeLimit(t *testing.T) {
	t.Parallel()
	s := startSSHD(t, configured("ForceCommand sleep 600"))
	dialer := NewDialer(s.key, Options{StepTimeout: 300 * time.Millisecond})
	for name, operation := range map[string]func(*Host) error{
		"run": func(host *Host) error {
			_, err := host.Run(t.Context(), Command{Args: []string{"true"}})
			return err
		},
		"upload": func(host *Host) error {
			_, err := host.Upload(t.Context(), NewContent([]byte("agent")), "/tmp/agent", 0o700)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			host, err := dialer.Dial(t.Context(), s.target())
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			if err := operation(host); fleet.KindOf(err) != fleet.KindTimeout || !strings.Contains(err.Error(), "within 300ms") {
				t.Errorf("%v (%s)", err, fleet.KindOf(err))
			}
		})
	}
}

// What a host says is quoted, bounded, and explained where its cause is known.
func TestWhatAHostSaysIsQuotedAndExplained(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		configuration string
		words, hint   string
	}{
		"noise in a start-up file": {"", `"Welcome, \x1b[31mstranger`, ".bashrc"},
		"another command":          {configured("ForceCommand echo 'only backups here'"), `"only backups here"`, "ForceCommand"},
		"files only":               {configured("ForceCommand internal-sftp"), `"This service allows sftp connections only."`, "ForceCommand"},
		"nologin":                  {configured("ForceCommand /usr/sbin/nologin"), `"This account is currently not available."`, "login shell"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSSHD(t, test.configuration)
			if test.configuration == "" {
				if err := os.WriteFile(filepath.Join(s.home, ".bashrc"), []byte("echo 'Welcome, \x1b[31mstranger'\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			base := filepath.Join(t.TempDir(), "dir/agent")
			_, err := s.dial(t).Upload(t.Context(), NewContent([]byte("agent")), base, 0o700)
			if err == nil || !strings.Contains(err.Error(), test.words) || !strings.Contains(err.Error(), test.hint) || len(err.Error()) > 500 {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(filepath.Dir(base)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the host was written to: %v", err)
			}
		})
	}
}

func TestACommandsLastWordsAreQuoted(t *testing.T) {
	t.Parallel()
	host := startSSHD(t).dial(t)
	_, err := host.Run(t.Context(), Command{Args: []string{"sh", "-c", `printf '\033[2Jgone\n' >&2; exit 3`}, OnStderr: func(string) {}})
	if err == nil || strings.Contains(err.Error(), "\x1b") || !strings.Contains(err.Error(), `"\x1b[2Jgone"`) {
		t.Errorf("%q", err)
	}
	_, err = host.Run(t.Context(), Command{Args: []string{"sh", "-c", `head -c 3000 /dev/zero | tr '\0' x >&2; exit 3`}, OnStderr: func(string) {}})
	if err == nil || len(err.Error()) > 400 || !strings.Contains(err.Error(), "3000 bytes") {
		t.Errorf("%q", err)
	}
	_, err = host.Run(t.Context(), Command{Args: []string{"sh", "-c", `echo not here; exit 3`}})
	if err == nil || !strings.Contains(err.Error(), `"not here"`) {
		t.Errorf("%q", err)
	}
}
