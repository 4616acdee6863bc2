package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

func TestRun(t *testing.T) {
	t.Parallel()
	host := startSSHD(t).dial(t)
	awkward := []string{"", " ", "a b", "it's", `"`, `\`, "$HOME", "`id`", "*", "a\nb", "-n", "é", "';exit 9;'"}
	for _, arg := range awkward {
		output, err := host.Run(t.Context(), Command{Args: []string{"printf", "%s", "[" + arg + "]"}})
		if err != nil || string(output) != "["+arg+"]" {
			t.Errorf("%q arrives as %q, %v", arg, output, err)
		}
	}
	output, err := host.Run(t.Context(), Command{Args: []string{"cat"}, Stdin: strings.NewReader("from stdin")})
	if err != nil || string(output) != "from stdin" {
		t.Errorf("%q, %v", output, err)
	}
	// Standard input that never ends must not keep a command that does.
	endless, writer := io.Pipe()
	defer writer.Close()
	if output, err = host.Run(t.Context(), Command{Args: []string{"echo", "done"}, Stdin: endless}); err != nil || string(output) != "done\n" {
		t.Errorf("%q, %v", output, err)
	}
}

func TestRunTellsHowACommandFailed(t *testing.T) {
	t.Parallel()
	host := startSSHD(t).dial(t)
	var lines []string
	output, err := host.Run(t.Context(), Command{
		Args:     []string{"sh", "-c", "echo out; echo one >&2; echo >&2; printf two >&2; exit 3"},
		OnStderr: func(line string) { lines = append(lines, line) },
	})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Status != 3 || exit.Stderr != "two" || string(output) != "out\n" {
		t.Errorf("%q, %v", output, err)
	}
	if strings.Join(lines, ",") != "one,two" {
		t.Errorf("%q", lines)
	}
	_, err = host.Run(t.Context(), Command{Args: []string{"no-such-program"}})
	if !errors.As(err, &exit) || exit.Status != notFound {
		t.Error(err)
	}
	_, err = host.Run(t.Context(), Command{Args: []string{"sh", "-c", "kill -9 $$"}})
	if !errors.As(err, &exit) || exit.Signal != "KILL" && exit.Status != 137 {
		t.Error(err)
	}
	if _, err = host.Run(t.Context(), Command{}); fleet.KindOf(err) != fleet.KindInvalid {
		t.Error(err)
	}
	if _, err = host.Run(t.Context(), Command{Args: []string{"true"}}); err != nil {
		t.Errorf("the connection is of no use after commands that failed: %v", err)
	}
}

func TestRunBoundsOutput(t *testing.T) {
	t.Parallel()
	s := startSSHD(t)
	host := s.dial(t)
	start := time.Now()
	output, err := host.Run(t.Context(), Command{Args: []string{"yes"}, OutputLimit: 1000})
	if output != nil || fleet.KindOf(err) != fleet.KindInvalid || time.Since(start) > time.Minute {
		t.Errorf("%d bytes, %v after %s", len(output), err, time.Since(start))
	}
	host = s.dial(t) // the other connection is closed
	output, err = host.Run(t.Context(), Command{Args: []string{"printf", "12345"}, OutputLimit: 5})
	if err != nil || len(output) != 5 {
		t.Errorf("output as large as the limit: %q, %v", output, err)
	}
	longest := 0
	_, err = host.Run(t.Context(), Command{
		Args:     []string{"sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x >&2"},
		OnStderr: func(line string) { longest = max(longest, len(line)) },
	})
	if err != nil || longest != stderrLineLimit {
		t.Errorf("a line of 300000 bytes is given as %d, %v", longest, err)
	}
}

func TestContextEndsARunningCommand(t *testing.T) {
	t.Parallel()
	host := startSSHD(t).dial(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("people said so")
	_, err := host.Run(ctx, Command{
		Args:     []string{"sh", "-c", "echo started >&2; sleep 60"},
		OnStderr: func(string) { cancel(cause) },
	})
	if fleet.KindOf(err) != fleet.KindTimeout || !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
	if _, err := host.Run(t.Context(), Command{Args: []string{"true"}}); fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("the connection is still used: %v", err)
	}
}

func TestAHostThatHangsUpEndsACommand(t *testing.T) {
	t.Parallel()
	host := startSSHD(t).dial(t)
	output, err := host.Run(t.Context(), Command{Args: []string{"sh", "-c", "echo out; kill -9 $PPID; sleep 60"}})
	if output != nil || fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("%q, %v (%s)", output, err, fleet.KindOf(err))
	}
	if _, err := host.Upload(t.Context(), newContent([]byte("agent")), "/tmp/agent", 0o755); fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
}

// freezer is a connection that can stop carrying anything, without being closed, as a host that
// lost its power does.
type freezer struct {
	net.Conn
	frozen chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (f *freezer) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	select {
	case <-f.frozen:
		<-f.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (f *freezer) Write(p []byte) (int, error) {
	select {
	case <-f.frozen:
		<-f.closed
		return 0, net.ErrClosed
	default:
		return f.Conn.Write(p)
	}
}

func (f *freezer) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Conn.Close()
}

func TestAHostThatFreezesDoesNotHangTheCaller(t *testing.T) {
	t.Parallel()
	s := startSSHD(t)
	for name, operation := range map[string]func(context.Context, *Host) error{
		"run": func(ctx context.Context, host *Host) error {
			_, err := host.Run(ctx, Command{Args: []string{"true"}})
			return err
		},
		"upload": func(ctx context.Context, host *Host) error {
			_, err := host.Upload(ctx, newContent(make([]byte, 1<<20)), "/tmp/frozen", 0o755)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			frozen := &freezer{frozen: make(chan struct{}), closed: make(chan struct{})}
			host, err := NewDialer(s.key, Options{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				connection, err := new(net.Dialer).DialContext(ctx, network, address)
				frozen.Conn = connection
				return frozen, err
			}}).Dial(t.Context(), s.target())
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			close(frozen.frozen)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			start := time.Now()
			if err := operation(ctx, host); fleet.KindOf(err) != fleet.KindTimeout || time.Since(start) > time.Minute {
				t.Errorf("%v after %s", err, time.Since(start))
			}
		})
	}
}

// program is content that compresses like one.
func program(size int) []byte {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // test data
	data := make([]byte, size)
	words := make([]byte, 1<<14)
	for i := range words {
		words[i] = byte(random.Uint32())
	}
	for at := 0; at < size; {
		from, length := random.IntN(len(words)-64), 4+random.IntN(28)
		at += copy(data[at:], words[from:from+length])
	}
	return data
}

func TestUpload(t *testing.T) {
	t.Parallel()
	forbidden := t.TempDir()
	if err := os.WriteFile(filepath.Join(forbidden, "gzip"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, environment := range map[string][]string{
		"compressed": nil, "without gzip": {"PATH=/nowhere"}, "gzip must not be executed": {"PATH=" + forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := startSSHD(t, environment...).dial(t)
			content := newContent(program(512 << 10))
			base := filepath.Join(t.TempDir(), "it's an agent")
			uploaded, err := host.Upload(t.Context(), content, base, 0o755)
			if err != nil {
				t.Fatal(err)
			}
			if uploaded.Path != base+"-"+content.Digest() {
				t.Errorf("it is at %s", uploaded.Path)
			}
			if compressed := uploaded.Sent < content.Size(); uploaded.Sent == 0 || compressed != (environment == nil) {
				t.Errorf("%d of %d bytes were sent", uploaded.Sent, content.Size())
			}
			written, err := os.ReadFile(uploaded.Path)
			if err != nil || !bytes.Equal(written, content.data) {
				t.Errorf("%d bytes were written, %v", len(written), err)
			}
			checkDir(t, base, uploaded.Path)
			if info, err := os.Stat(uploaded.Path); err != nil || info.Mode() != 0o755 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			testUploadAgain(t, host, content, base)
		})
	}
}

// checkDir checks that the upload left nothing besides its result.
func checkDir(t *testing.T, base, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(base))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}

func testUploadAgain(t *testing.T, host *Host, content *Content, base string) {
	t.Helper()
	path := content.Path(base)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := host.Upload(t.Context(), content, base, 0o755)
	if err != nil || again.Sent != 0 || again.Path != path {
		t.Errorf("a second upload: %+v, %v", again, err)
	}
	after, err := os.Stat(path)
	if err != nil || before.Sys().(*syscall.Stat_t).Ino != after.Sys().(*syscall.Stat_t).Ino {
		t.Errorf("a second upload replaced the file, %v", err)
	}
	// A file that lost its mode gets it back; one that lost its end is sent again.
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err = host.Upload(t.Context(), content, base, 0o755); err != nil || again.Sent != 0 {
		t.Errorf("after a chmod: %+v, %v", again, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o755 {
		t.Errorf("the mode was not put right: %v, %v", info.Mode(), err)
	}
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	if again, err = host.Upload(t.Context(), content, base, 0o755); err != nil || again.Sent == 0 {
		t.Errorf("after a truncation: %+v, %v", again, err)
	}
	checkDir(t, base, path)
}

func TestUploadFailures(t *testing.T) {
	t.Parallel()
	host := startSSHD(t).dial(t)
	content := newContent([]byte("agent"))
	for _, base := range []string{"agent", "", "/tmp/a\nb"} {
		if _, err := host.Upload(t.Context(), content, base, 0o755); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%q: %v", base, err)
		}
	}
	result, err := host.Upload(t.Context(), content, "/proc/none/agent", 0o755)
	if result != (Uploaded{}) || fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("into a directory that cannot be made: %+v, %v", result, err)
	}
	base := filepath.Join(t.TempDir(), "agent")
	if err := os.MkdirAll(content.Path(base)+"/full", 0o755); err != nil {
		t.Fatal(err)
	}
	if result, err = host.Upload(t.Context(), content, base, 0o755); result != (Uploaded{}) || err == nil {
		t.Errorf("over a directory: %+v, %v", result, err)
	}
	checkDir(t, base, content.Path(base))
}

func TestManyUploadsOfTheSameContent(t *testing.T) {
	t.Parallel()
	s := startSSHD(t)
	content := newContent(program(256 << 10))
	base := filepath.Join(t.TempDir(), "agent")
	var uploads sync.WaitGroup
	for range 8 {
		uploads.Go(func() {
			host, err := NewDialer(s.key, Options{}).Dial(t.Context(), s.target())
			if err != nil {
				t.Error(err)
				return
			}
			defer host.Close()
			if _, err := host.Upload(t.Context(), content, base, 0o755); err != nil {
				t.Error(err)
			}
		})
	}
	uploads.Wait()
	checkDir(t, base, content.Path(base))
}

func TestContent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(path, []byte("agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	content, err := ReadContent(path)
	if err != nil || content.Size() != 5 || content.Digest() != "d4f0bc5a29de06b510f9aa428f1eedba926012b591fef7a518e776a7c9bd1824" {
		t.Errorf("%v, %v", content, err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{path, path + "-none"} {
		if _, err := ReadContent(wrong); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// What an upload costs on both sides: the CPU time of this process, and of sshd with its children.
func BenchmarkUpload(b *testing.B) {
	for name, environment := range map[string][]string{"compressed": nil, "plain": {"PATH=/nowhere"}} {
		b.Run(name, func(b *testing.B) {
			host := startSSHD(b, environment...).dial(b)
			content := newContent(program(12 << 20))
			content.gzipped()
			base := filepath.Join(b.TempDir(), "agent")
			b.SetBytes(content.Size())
			before := cpu(b)
			sent := int64(0)
			for b.Loop() {
				uploaded, err := host.Upload(b.Context(), content, base, 0o755)
				if err != nil {
					b.Fatal(err)
				}
				sent = uploaded.Sent
				if err := os.Remove(uploaded.Path); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N)/1e6, "client-cpu-ms/op")
			b.ReportMetric(float64(sent)/1e6, "MB-sent/op")
		})
	}
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
