package remote

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/test/freeport"
)

// sshd is OpenSSH's own server on an address of 127/8, for one test.
type sshd struct {
	address netip.AddrPort
	key     *Key
	// hostKeys are the public keys by kind, such as "ed25519".
	hostKeys map[string]string
	log      *logBuffer
	// home is where the user's start-up files are.
	home string
}

// logBuffer is a buffer that a process writes and a test reads.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends.
func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns what was written so far.
func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// hostKey is a pair as OpenSSH writes it.
type hostKey struct{ private, public []byte }

// hostKeys are what every server of this binary has, by kind. Each is made once, because a key for
// RSA takes a second.
var hostKeys = map[string]func() (hostKey, error){
	"ed25519": sync.OnceValues(func() (hostKey, error) { return newHostKey("ed25519") }),
	"ecdsa":   sync.OnceValues(func() (hostKey, error) { return newHostKey("ecdsa") }),
	"rsa":     sync.OnceValues(func() (hostKey, error) { return newHostKey("rsa") }),
}

func newHostKey(kind string) (k hostKey, err error) {
	dir, err := os.MkdirTemp("", "ironherd-hostkey-")
	if err != nil {
		return hostKey{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, kind)
	if out, err := exec.Command("ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path).CombinedOutput(); err != nil {
		return hostKey{}, fmt.Errorf("ssh-keygen: %w: %s", err, out)
	}
	if k.private, err = os.ReadFile(path); err == nil {
		k.public, err = os.ReadFile(path + ".pub")
	}
	return k, err
}

// startSSHD starts a server that admits the returned key only, and gives commands the environment
// besides its own. It needs root, as OpenSSH's server does to be of use. Commands have an empty
// home: what root's own shell start-up files do here, and how long they take, is no part of a test.
func startSSHD(tb testing.TB, environment ...string) *sshd {
	tb.Helper()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		tb.Skip("sshd takes logins only as root: run this test as root")
	}
	program, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		tb.Fatalf("OpenSSH's sshd is needed: run `make setup` (Debian: apt-get install openssh-server): %v", err)
	}
	// Where sshd was installed and never started by the system, its directory is missing.
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		tb.Fatal(err)
	}
	dir, home := tb.TempDir(), tb.TempDir()
	s := &sshd{hostKeys: make(map[string]string), log: new(logBuffer), home: home}
	config := new(strings.Builder)
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		path := filepath.Join(dir, kind)
		k, err := hostKeys[kind]()
		if err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, k.private, 0o600); err != nil {
			tb.Fatal(err)
		}
		s.hostKeys[kind] = string(k.public)
		fmt.Fprintf(config, "HostKey %s\n", path)
	}
	if s.key, _, err = NewKey("test"); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "authorized"), []byte(s.key.Public()+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.address = freeAddress(tb)
	fmt.Fprintf(config, "ListenAddress %s\nAuthorizedKeysFile %s/authorized\nPidFile none\nUsePAM no\nStrictModes no\n"+
		"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nLogLevel VERBOSE\n"+
		"MaxStartups 100\nSetEnv HOME=%s %s\n", s.address, dir, home, strings.Join(environment, " "))
	if !strings.Contains(config.String(), "Subsystem") {
		config.WriteString("Subsystem sftp internal-sftp\n")
	}
	path := filepath.Join(dir, "config")
	if err := os.WriteFile(path, []byte(config.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	server := exec.Command(program, "-D", "-e", "-f", path)
	server.Stderr = s.log
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	waitForListener(tb, s)
	return s
}

// waitForListener returns when the server accepts connections: its own process says so first, which
// the connect then confirms.
func waitForListener(tb testing.TB, s *sshd) {
	tb.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if strings.Contains(s.log.String(), "Server listening on") {
			if connection, err := net.Dial("tcp", s.address.String()); err == nil {
				connection.Close()
				return
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatalf("sshd does not listen: %s", s.log)
		}
	}
}

var addresses atomic.Uint32

// freeAddress is an address of which nobody else has the port, also not of all addresses at once.
func freeAddress(tb testing.TB) netip.AddrPort {
	tb.Helper()
	port, err := freeport.Find(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	n := addresses.Add(1)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 78, byte(n >> 8), byte(n)}), uint16(port))
}

func (s *sshd) target() Target {
	return Target{Address: s.address, User: "root", Trust: Trust{Pinned: []string{s.hostKeys["ed25519"]}}}
}

func (s *sshd) dial(tb testing.TB) *Host {
	tb.Helper()
	host, err := NewDialer(s.key, Options{}).Dial(tb.Context(), s.target())
	if err != nil {
		tb.Fatalf("%v\n%s", err, s.log)
	}
	tb.Cleanup(func() { host.Close() })
	return host
}

// strictServer is an SSH server that tells which of its clients began to authenticate.
type strictServer struct {
	address netip.AddrPort
	hostKey ssh.PublicKey

	mu       sync.Mutex
	attempts []string
	done     chan struct{}
}

// startStrictServer starts a server that admits nobody. With hangUp it ends the connection instead
// of saying so.
func startStrictServer(t *testing.T, hangUp bool) *strictServer {
	t.Helper()
	key, _, err := NewKey("host")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.77.1.2:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &strictServer{
		address: listener.Addr().(*net.TCPAddr).AddrPort(), hostKey: key.signer.PublicKey(), done: make(chan struct{}),
	}
	var current net.Conn
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(meta ssh.ConnMetadata, _ ssh.PublicKey) (*ssh.Permissions, error) {
			if hangUp {
				current.Close()
			}
			return nil, fmt.Errorf("%s is not admitted", meta.User())
		},
		AuthLogCallback: func(meta ssh.ConnMetadata, method string, _ error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.attempts = append(s.attempts, method+" "+meta.User())
		},
	}
	config.AddHostKey(key.signer)
	go func() {
		defer close(s.done)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			current = connection
			_, _, _, err = ssh.NewServerConn(connection, config)
			_ = err // every handshake fails here
			connection.Close()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-s.done
	})
	return s
}

// seen returns the attempts to authenticate of all connections so far; the listener is closed by
// it.
func (s *strictServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.attempts...)
}
