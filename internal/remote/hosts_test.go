package remote

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

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
			_, err = host.Upload(t.Context(), newContent([]byte("agent")), filepath.Join(t.TempDir(), "agent"), 0o700)
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
			_, err := host.Upload(t.Context(), newContent([]byte("agent")), "/tmp/agent", 0o700)
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

// greet has a start-up file of the shell greet everybody, whatever is run.
func greet(t *testing.T, s *sshd) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.home, ".bashrc"), []byte("echo 'Welcome, \x1b[31mstranger'; printf 'no end of line'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What a host writes before a command is no part of the answer, whatever it is.
func TestNoiseBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s := startSSHD(t)
	greet(t, s)
	host := s.dial(t)
	output, err := host.Run(t.Context(), Command{Args: []string{"printf", `\000\012answer`}})
	if err != nil || string(output) != "\x00\nanswer" {
		t.Errorf("%q, %v", output, err)
	}
	output, err = host.Run(t.Context(), Command{Args: []string{"sh", "-c", "echo out; exit 3"}})
	if exit, exited := errors.AsType[*ExitError](err); !exited || exit.Status != 3 || exit.Stdout != "out\n" || string(output) != "out\n" {
		t.Errorf("%q, %v", output, err)
	}
	base := filepath.Join(t.TempDir(), "agent")
	if _, err := host.Upload(t.Context(), newContent([]byte("agent")), base, 0o700); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(s.home, ".bashrc"), []byte("head -c 3000000 /dev/zero | tr '\\0' x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := host.Run(t.Context(), Command{Args: []string{"echo", "answer"}, OutputLimit: 10}); err != nil || string(output) != "answer\n" {
		t.Errorf("after three megabytes of noise: %q, %v", output, err)
	}
}

// The mark may arrive in pieces of any size.
func TestFramedBuffer(t *testing.T) {
	t.Parallel()
	const whole = "noisemamark\nanswer mark\n"
	for size := 1; size <= len(whole); size++ {
		b := &framedBuffer{mark: []byte("mark\n"), answer: limitedBuffer{limit: 100}}
		for at := 0; at < len(whole); at += size {
			piece := whole[at:min(at+size, len(whole))]
			if n, err := b.Write([]byte(piece)); n != len(piece) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		b.flush()
		if got := b.answer.kept.String(); got != "answer mark\n" || string(b.noise) != "noisema" {
			t.Errorf("in pieces of %d: %q after %q", size, got, b.noise)
		}
	}
}

// What a host says is quoted, bounded, and explained where its cause is known.
func TestWhatAHostSaysIsQuotedAndExplained(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		configuration string
		words, hint   string
	}{
		"another command": {configured("ForceCommand echo 'only backups here'"), `"only backups here"`, "ForceCommand"},
		"files only":      {configured("ForceCommand internal-sftp"), `"This service allows sftp connections only."`, "ForceCommand"},
		"nologin":         {configured("ForceCommand /usr/sbin/nologin"), `"This account is currently not available."`, "login shell"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSSHD(t, test.configuration)
			base := filepath.Join(t.TempDir(), "dir/agent")
			_, err := s.dial(t).Upload(t.Context(), newContent([]byte("agent")), base, 0o700)
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

// Hosts that do not come as far as a command. Each is left in bounded time, with one sentence.
func TestHostsThatDoNotLetUsIn(t *testing.T) {
	t.Parallel()
	banner := filepath.Join(t.TempDir(), "banner")
	if err := os.WriteFile(banner, bytes.Repeat([]byte("Authorized use only!\n"), 500), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := startSSHD(t, configured("Banner "+banner)).dial(t).Run(t.Context(), Command{Args: []string{"true"}}); err != nil {
		t.Errorf("after a banner of 10 KB: %v", err)
	}
	large := filepath.Join(t.TempDir(), "banner")
	if err := os.WriteFile(large, bytes.Repeat([]byte("Authorized use only!\n"), 150_000), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		configuration string
		kind          fleet.Kind
		says          []string
	}{
		// OpenSSH's server leaves it out.
		"a banner of megabytes": {"Banner " + large, 0, nil},
		"password only":         {"PubkeyAuthentication no\nPasswordAuthentication yes", fleet.KindUnauthenticated, []string{"by public key", "PubkeyAuthentication yes"}},
		"two factors":           {"AuthenticationMethods publickey,publickey", fleet.KindUnauthenticated, []string{"takes the key SHA256:", "wants more than that (publickey)", "AuthenticationMethods publickey"}},
		"other users":           {"AllowUsers nobody", fleet.KindUnauthenticated, []string{"refuses the key SHA256:", "user root"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSSHD(t, configured(test.configuration))
			host, err := NewDialer(s.key, Options{}).Dial(t.Context(), s.target())
			if err == nil {
				defer host.Close()
			}
			for _, says := range test.says {
				if err == nil || fleet.KindOf(err) != test.kind || !strings.Contains(err.Error(), says) {
					t.Errorf("%v (%s) does not say %q", err, fleet.KindOf(err), says)
				}
			}
		})
	}
}

// A server may send greetings without end, each of them short.
func TestAGreetingWithoutEnd(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(net.Conn, *ssh.ServerConfig){
		"before the handshake": func(connection net.Conn, _ *ssh.ServerConfig) {
			for {
				if _, err := connection.Write(bytes.Repeat([]byte("Welcome\r\n"), 1000)); err != nil {
					return
				}
			}
		},
		"in the handshake": func(connection net.Conn, config *ssh.ServerConfig) {
			// Each attempt to authenticate may bring one.
			config.BannerCallback = func(ssh.ConnMetadata) string { return strings.Repeat("x", 200<<10) }
			config.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
				return nil, &ssh.BannerError{Err: errors.New("no"), Message: strings.Repeat("x", 200<<10)}
			}
			_, _, _, _ = ssh.NewServerConn(connection, config)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, _, err := NewKey("host")
			if err != nil {
				t.Fatal(err)
			}
			client, host := loopback(t)
			config := new(ssh.ServerConfig)
			config.AddHostKey(key.signer)
			done := make(chan struct{})
			go func() { defer close(done); server(host, config); host.Close() }()
			dialer := NewDialer(key, Options{Dial: func(context.Context, string, string) (net.Conn, error) { return client, nil }})
			_, err = dialer.Dial(t.Context(), Target{
				Address: netip.MustParseAddrPort("127.0.0.1:22"), User: "root", Trust: Trust{Pinned: []string{key.Public()}},
			})
			if err == nil || len(err.Error()) > 500 {
				t.Error(err)
			}
			<-done
		})
	}
	o := new(offer)
	for i := range 100 {
		if err := o.banner(strings.Repeat("x", 1<<20)); (err != nil) != (i >= 4) {
			t.Fatalf("part %d of a greeting: %v", i, err)
		}
	}
}

// loopback returns the two ends of a connection.
func loopback(t *testing.T) (client, server net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.77.1.5:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if client, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// TestAHostSaysInItsOwnLanguageThatItExecutesNothing and so do security modules, in other words.
func TestAHostSaysInItsOwnLanguageThatItExecutesNothing(t *testing.T) {
	t.Parallel()
	const noexec = "the file system is mounted noexec, or a security module forbids it"
	for _, test := range []struct {
		exit ExitError
		want string // why another directory may do
	}{
		{ExitError{Status: 126, Stderr: "bash: line 1: /root/agent: Permission denied"}, noexec},
		{ExitError{Status: 126, Stderr: "bash: line 1: /root/agent: Operation not permitted"}, noexec},
		{ExitError{Status: 126, Stderr: "bash: Zeile 1: /root/agent: Keine Berechtigung"}, `the host did not execute it: "bash: Zeile 1: /root/agent: Keine Berechtigung"`},
		{ExitError{Status: 126, Stderr: "sh: 1: /root/agent: Input/output error"}, `the host did not execute it: "sh: 1: /root/agent: Input/output error"`},
		{ExitError{Status: 126}, "the host did not execute it, as where the file system is mounted noexec"},
		{ExitError{Status: 126, Stderr: "bash: line 1: /root/agent: cannot execute binary file: Exec format error"}, ""},
		{ExitError{Status: 126, Stderr: "/usr/local/bin/forced: Permission denied", other: true}, ""},
		{ExitError{Status: 127, Stderr: "sh: 1: /root/agent: Permission denied"}, ""},
		{ExitError{Status: 1, Stderr: "open /root/state: permission denied"}, ""},
	} {
		if got := Unusable(&test.exit); got != test.want || test.exit.noExec() != (test.want != "") {
			t.Errorf("%v: %t, %q", &test.exit, test.exit.noExec(), got)
		}
	}
}
