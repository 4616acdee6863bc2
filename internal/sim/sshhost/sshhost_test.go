package sshhost_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a store and the machines that share it.
type rig struct {
	t     *testing.T
	dir   string
	store *sshhost.Store
	key   ssh.Signer
	n     int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), key: newKey(t)}
	var err error
	if r.store, err = sshhost.OpenStore(filepath.Join(r.dir, "store")); err != nil {
		t.Fatal(err)
	}
	return r
}

func newKey(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// host is a machine that is up.
type host struct {
	root, address string
	key           ssh.PublicKey
	powerOff      func()
}

func (r *rig) host(change func(*sshhost.Options)) *host {
	r.t.Helper()
	r.n++
	root := filepath.Join(r.dir, fmt.Sprint("host", r.n))
	for _, dir := range []string{"root/.ssh", "root/agent", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	authorized := append([]byte("# comment\nnot a key\n"), ssh.MarshalAuthorizedKey(r.key.PublicKey())...)
	if err := os.WriteFile(filepath.Join(root, "root/.ssh/authorized_keys"), authorized, 0o600); err != nil {
		r.t.Fatal(err)
	}
	hostKey := newKey(r.t)
	options := sshhost.Options{
		Root: root, Hostname: "host", KernelRelease: "6.1", HostKey: hostKey, Store: r.store, Logger: slog.New(slog.DiscardHandler),
		Execute: func(context.Context, sshhost.Program) sshhost.Status { return sshhost.Status{Code: 99} },
	}
	if change != nil {
		change(&options)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	var done sync.WaitGroup
	done.Go(func() { sshhost.NewServer(options).Serve(ctx, listener) })
	h := &host{root: root, address: listener.Addr().String(), key: hostKey.PublicKey(), powerOff: func() { cancel(); done.Wait() }}
	r.t.Cleanup(h.powerOff)
	return h
}

func (r *rig) dial(h *host, user string, key ssh.Signer) (*ssh.Client, error) {
	return ssh.Dial("tcp", h.address, &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(h.key), Timeout: 5 * time.Second,
	})
}

func (r *rig) client(h *host) *ssh.Client {
	r.t.Helper()
	client, err := r.dial(h, "root", r.key)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = client.Close() })
	return client
}

// run runs a command line and returns its output and its exit code.
func run(t *testing.T, client *ssh.Client, line string, stdin io.Reader) (stdout, stderr string, code int) {
	t.Helper()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	var out, errs bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = stdin, &out, &errs
	err = session.Run(line)
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		code = exit.ExitStatus()
	} else if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return out.String(), errs.String(), code
}

func TestOnlyRootWithAnAuthorizedKeyIsAdmitted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.host(nil)
	for name, try := range map[string]func() (*ssh.Client, error){
		"another key":  func() (*ssh.Client, error) { return r.dial(h, "root", newKey(t)) },
		"another user": func() (*ssh.Client, error) { return r.dial(h, "admin", r.key) },
	} {
		if client, err := try(); err == nil {
			_ = client.Close()
			t.Errorf("%s was admitted", name)
		}
	}
	client, err := r.dial(h, "root", r.key)
	if err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
}

func TestCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.host(func(o *sshhost.Options) {
		o.Execute = func(_ context.Context, p sshhost.Program) sshhost.Status {
			input, _ := io.ReadAll(p.Stdin)
			_, _ = fmt.Fprintf(p.Stdout, "%s %q got %q", p.Path, p.Args, input)
			_, _ = fmt.Fprint(p.Stderr, "to stderr")
			return sshhost.Status{Code: 7}
		}
	})
	if err := os.WriteFile(h.root+"/root/agent/a b", []byte("\x7fELF"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.root+"/etc/motd", []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	client := r.client(h)
	for _, c := range []struct {
		line, stdin    string
		stdout, stderr string
		code           int
	}{
		{line: "cat /etc/motd", stdout: "hello\n"},
		{line: "cat", stdin: "through", stdout: "through"},
		{line: "cat < /etc/motd", stdout: "hello\n"},
		{line: "cat /etc/nothing", stderr: "cat: /etc/nothing: no such file or directory\n", code: 1},
		{line: "echo one 'two  three' \"fo\\\"ur\" fi\\ ve", stdout: "one two  three fo\"ur fi ve\n"},
		{line: "mkdir -p /srv/x/y && test -d /srv/x/y && echo yes", stdout: "yes\n"},
		{line: "test -x /etc/motd || echo no; chmod 755 /etc/motd; [ -x /etc/motd ] && echo now", stdout: "no\nnow\n"},
		{line: "false && echo no || echo yes", stdout: "yes\n"},
		{line: "echo written > /tmp-file; mv /tmp-file /etc/new && cat /etc/new && rm /etc/new; test -e /etc/new", stdout: "written\n", code: 1},
		{line: "echo lost 2>/dev/null >&2", stdout: ""},
		{line: "sha256sum", stdin: "abc", stdout: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  -\n"},
		{line: "uname -sr", stdout: "Linux 6.1\n"},
		{line: "/root/agent/a\\ b take over", stdin: "in", stdout: "/root/agent/a b [\"take\" \"over\"] got \"in\"", stderr: "to stderr", code: 7},
		{line: "nothing", stderr: "sh: 1: nothing: not found\n", code: 127},
		{line: "/root/agent/none", stderr: "sh: 1: /root/agent/none: not found\n", code: 127},
		{line: "/root/.ssh/authorized_keys", stderr: "sh: 1: /root/.ssh/authorized_keys: Permission denied\n", code: 126},
		{line: "cat $HOME", stderr: "sh: '$' is not supported here\n", code: 2},
		{line: "cat /etc/motd | cat", stderr: "sh: '|' is not supported here\n", code: 2},
		{line: "echo 'open", stderr: "sh: syntax error: unterminated quoted string\n", code: 2},
		{line: "&& echo", stderr: "sh: syntax error: a command is missing before \"&&\"\n", code: 2},
		{line: "cat ../../../../etc/passwd", stderr: "cat: ../../../../etc/passwd: no such file or directory\n", code: 1},
	} {
		stdout, stderr, code := run(t, client, c.line, strings.NewReader(c.stdin))
		if stdout != c.stdout || stderr != c.stderr || code != c.code {
			t.Errorf("%s:\n got %q, %q, %d\nwant %q, %q, %d", c.line, stdout, stderr, code, c.stdout, c.stderr, c.code)
		}
	}
}

func TestSignalsReachTheProgram(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.host(func(o *sshhost.Options) {
		o.Execute = func(ctx context.Context, p sshhost.Program) sshhost.Status {
			_, _ = io.WriteString(p.Stdout, "ready")
			select {
			case name := <-p.Signals:
				return sshhost.Status{Signal: name}
			case <-ctx.Done():
				return sshhost.Status{Code: 1}
			}
		}
	})
	if err := os.WriteFile(h.root+"/root/agent/a", []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	session, err := r.client(h).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("/root/agent/a"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if err := session.Signal(ssh.SIGTERM); err != nil {
		t.Fatal(err)
	}
	exit, ok := errors.AsType[*ssh.ExitError](session.Wait())
	if !ok || exit.Signal() != "TERM" {
		t.Fatalf("ended with %v, want signal TERM", exit)
	}
}

func TestUploadOverSFTP(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.host(nil)
	client, err := sftp.NewClient(r.client(h), sftp.UseConcurrentWrites(true))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	data := randomBytes(1, 3<<20)
	file, err := client.Create("/root/agent/x.tmp")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.ReadFrom(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Close(), client.Chmod("/root/agent/x.tmp", 0o755), client.PosixRename("/root/agent/x.tmp", "/root/agent/x")); err != nil {
		t.Fatal(err)
	}
	info, err := client.Stat("/root/agent/x")
	if err != nil || info.Size() != int64(len(data)) || info.Mode() != 0o755 {
		t.Fatalf("uploaded: %v, %v", info, err)
	}
	got, err := os.ReadFile(h.root + "/root/agent/x")
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("what arrived differs (%v)", err)
	}
	if _, err := client.Stat("/root/agent/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat of nothing: %v", err)
	}
	entries, err := client.ReadDir("/root/agent")
	if err != nil || len(entries) != 1 || entries[0].Name() != "x" {
		t.Errorf("listing: %v, %v", entries, err)
	}
	if err := client.Rename("/root/agent/x", "/root/.ssh/authorized_keys"); err == nil {
		t.Error("a plain rename replaced a file")
	}
}

func TestNothingLeadsOutOfTheMachine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret := filepath.Join(r.dir, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := r.host(nil)
	client, err := sftp.NewClient(r.client(h))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for link, target := range map[string]string{"/abs": secret, "/rel": "../secret", "/dir": r.dir} {
		if err := client.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"/abs", "/rel", "/dir/secret", "/../secret", "../../secret", "/root/../../secret"} {
		if file, err := client.Open(name); err == nil {
			t.Errorf("%s could be opened", name)
			_ = file.Close()
		}
		if file, err := client.Create(name + ".made"); err == nil {
			_ = file.Close()
		}
	}
	if err := client.PosixRename("/root/agent", "/dir/agent"); err == nil {
		t.Error("something was moved out")
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "store" && e.Name() != "secret" && e.Name() != "host1" {
			t.Errorf("%s appeared outside", e.Name())
		}
	}
}

func randomBytes(seed uint64, n int) []byte {
	data := make([]byte, n)
	random := mathrand.NewChaCha8([32]byte{byte(seed)})
	_, _ = random.Read(data)
	return data
}

func zipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestMachinesShareWhatTheyHaveInCommonUntilOneWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	data := randomBytes(2, 1<<20)
	packed := zipped(t, data)
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	var hosts []*host
	for range 3 {
		h := r.host(nil)
		hosts = append(hosts, h)
		out, errs, code := run(t, r.client(h), "gzip -dc >'/root/agent/x' && chmod 0755 '/root/agent/x' && sha256sum /root/agent/x", bytes.NewReader(packed))
		if code != 0 || out != sum+"  /root/agent/x\n" {
			t.Fatalf("upload: %q, %q, %d", out, errs, code)
		}
	}
	if a, b := inodeOf(t, hosts[0]), inodeOf(t, hosts[2]); a != b {
		t.Errorf("equal contents have inodes %d and %d", a, b)
	}
	// A mode of its own, and a write of its own, leave the others alone.
	if _, errs, code := run(t, r.client(hosts[0]), "chmod 700 /root/agent/x", nil); code != 0 {
		t.Fatal(errs)
	}
	if _, errs, code := run(t, r.client(hosts[1]), "echo more >> /root/agent/x", nil); code != 0 {
		t.Fatal(errs)
	}
	for i, want := range []struct {
		mode os.FileMode
		data []byte
	}{{0o700, data}, {0o755, append(bytes.Clone(data), "more\n"...)}, {0o755, data}} {
		path := hosts[i].root + "/root/agent/x"
		info, err := os.Stat(path)
		if err != nil || info.Mode() != want.mode {
			t.Errorf("host %d: mode %v, want %v (%v)", i, info.Mode(), want.mode, err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want.data) {
			t.Errorf("host %d has another content (%v)", i, err)
		}
	}
	// A store that is opened again knows what it has.
	again, err := sshhost.OpenStore(filepath.Join(r.dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	r.store = again
	h := r.host(nil)
	if _, errs, code := run(t, r.client(h), "gzip -dc >/root/agent/x && chmod 0755 /root/agent/x", bytes.NewReader(packed)); code != 0 {
		t.Fatal(errs)
	}
	if a, b := inodeOf(t, hosts[2]), inodeOf(t, h); a != b {
		t.Errorf("after a restart equal contents have inodes %d and %d", a, b)
	}
}

func inodeOf(t *testing.T, h *host) uint64 {
	t.Helper()
	info, err := os.Stat(h.root + "/root/agent/x")
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestADamagedStreamIsNotInstalled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	packed := zipped(t, randomBytes(3, 1<<20))
	for range 2 { // the second time the store has seen it
		if _, _, code := run(t, r.client(r.host(nil)), "gzip -dc >/root/agent/x", bytes.NewReader(packed[:len(packed)/2])); code == 0 {
			t.Error("half a stream was accepted")
		}
	}
}

func TestPowerOffEndsEverything(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	started := make(chan struct{})
	h := r.host(func(o *sshhost.Options) {
		o.Execute = func(ctx context.Context, _ sshhost.Program) sshhost.Status {
			close(started)
			<-ctx.Done()
			return sshhost.Status{Signal: "KILL"}
		}
	})
	if err := os.WriteFile(h.root+"/root/agent/a", []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	client := r.client(h)
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("/root/agent/a"); err != nil {
		t.Fatal(err)
	}
	<-started
	h.powerOff()
	if err := session.Wait(); err == nil {
		t.Error("the command ended well")
	}
	if conn, err := net.DialTimeout("tcp", h.address, time.Second); err == nil {
		_ = conn.Close()
		t.Error("a machine without power accepts connections")
	}
}

// disturber refuses the first connection and drops the second.
type disturber struct {
	mu sync.Mutex
	n  int
}

func (d *disturber) Connection() (bool, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
	if d.n == 2 {
		return false, time.Millisecond
	}
	return d.n == 1, 0
}

func (*disturber) Uploaded(int64) {}

func TestDisturbedConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.host(func(o *sshhost.Options) { o.Observer = new(disturber) })
	if client, err := r.dial(h, "root", r.key); err == nil {
		_ = client.Close()
		t.Error("the first connection was not refused")
	}
	if client, err := r.dial(h, "root", r.key); err == nil {
		if err := client.Wait(); err == nil {
			t.Error("the second connection was not dropped")
		}
	}
	if _, _, code := run(t, r.client(h), "true", nil); code != 0 {
		t.Error("the third connection does not work")
	}
}

func FuzzCommandLine(f *testing.F) {
	f.Add("gzip -dc >'/root/x' && chmod 0755 '/root/x'")
	f.Add("echo \"a\\\"b\" 2>&1 | cat")
	f.Fuzz(func(t *testing.T, line string) { sshhost.CheckLine(line) })
}
