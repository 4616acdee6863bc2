package remote

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// What is on a host counts by its digest alone, which the host's sha256sum says, or else its bytes.
func TestUploadsAreCheckedAndResumed(t *testing.T) {
	t.Parallel()
	for name, environment := range map[string]string{"compressed": "", "plain": "PATH=/nowhere"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSSHD(t, environment)
			t.Run("tampered", func(t *testing.T) { testATamperedFileIsSentAnew(t, s) })
			t.Run("interrupted", func(t *testing.T) { testInterruptedUploadsAreResumed(t, s) })
			t.Run("damaged", func(t *testing.T) { testADamagedPartIsSentAnew(t, s, environment == "") })
		})
	}
}

// Name and size are no proof of what a file holds: it is run as root.
func testATamperedFileIsSentAnew(t *testing.T, s *sshd) {
	t.Helper()
	host := s.dial(t)
	content := NewContent(program(128 << 10))
	base := filepath.Join(t.TempDir(), "agent")
	tampered := bytes.Clone(content.data)
	tampered[1000]++
	if err := os.WriteFile(content.Path(base), tampered, 0o700); err != nil {
		t.Fatal(err)
	}
	uploaded, err := host.Upload(t.Context(), content, base, 0o700)
	if err != nil || uploaded.Sent == 0 {
		t.Errorf("%+v, %v", uploaded, err)
	}
	if written, err := os.ReadFile(uploaded.Path); err != nil || !bytes.Equal(written, content.data) {
		t.Errorf("%d bytes of something else, %v", len(written), err)
	}
	if again, err := host.Upload(t.Context(), content, base, 0o700); err != nil || again.Sent != 0 {
		t.Errorf("%+v, %v", again, err)
	}
	checkDir(t, base, uploaded.Path)
}

// breaker is a connection that breaks when so many bytes have been written.
type breaker struct {
	net.Conn
	left atomic.Int64
}

func (b *breaker) Write(p []byte) (int, error) {
	if b.left.Add(-int64(len(p))) < 0 {
		b.Conn.Close()
		return 0, io.ErrClosedPipe
	}
	return b.Conn.Write(p)
}

// incompressible is content that is sent as it is, more or less.
func incompressible(size int) *Content {
	data := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data)
	return NewContent(data)
}

// An upload that is interrupted goes on where it was, and leaves one file however often that
// happens.
func testInterruptedUploadsAreResumed(t *testing.T, s *sshd) {
	t.Helper()
	content := incompressible(12 << 20)
	base := filepath.Join(t.TempDir(), "agent")
	try := func(bytes int64) (Uploaded, error) {
		broken := new(breaker)
		broken.left.Store(bytes)
		host, err := NewDialer(s.key, Options{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			connection, err := new(net.Dialer).DialContext(ctx, network, address)
			broken.Conn = connection
			return broken, err
		}}).Dial(t.Context(), s.target())
		if err != nil {
			return Uploaded{}, err
		}
		defer host.Close()
		return host.Upload(t.Context(), content, base, 0o700)
	}
	for i := range 6 {
		if _, err := try(3 << 19); fleet.KindOf(err) != fleet.KindTemporary {
			t.Fatalf("attempt %d: %v (%s)", i+1, err, fleet.KindOf(err))
		}
		if entries, err := os.ReadDir(filepath.Dir(base)); err != nil || len(entries) != 1 {
			t.Fatalf("attempt %d leaves %v, %v", i+1, entries, err)
		}
	}
	uploaded, err := try(1 << 30)
	if err != nil || uploaded.Sent == 0 || uploaded.Sent > content.Size()-2<<20 {
		t.Errorf("the last attempt: %+v, %v", uploaded, err)
	}
	if written, err := os.ReadFile(uploaded.Path); err != nil || !bytes.Equal(written, content.data) {
		t.Errorf("%d bytes of something else, %v", len(written), err)
	}
	checkDir(t, base, uploaded.Path)
}

// What was left is no proof either: a damaged part is thrown away.
func testADamagedPartIsSentAnew(t *testing.T, s *sshd, packed bool) {
	t.Helper()
	host := s.dial(t)
	content := incompressible(2 << 20)
	base := filepath.Join(t.TempDir(), "agent")
	for _, part := range []string{content.partial(base, true), content.partial(base, false)} {
		if err := os.WriteFile(part, make([]byte, 1<<20+1<<19), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	_ = os.Chtimes(content.partial(base, !packed), old, old)
	stale := content.Path(base) + ".0123456789ab.tmp"
	if err := os.WriteFile(stale, []byte("left by another"), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.Chtimes(stale, old, old)
	uploaded, err := host.Upload(t.Context(), content, base, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if written, err := os.ReadFile(uploaded.Path); err != nil || !bytes.Equal(written, content.data) {
		t.Errorf("%d bytes of something else, %v", len(written), err)
	}
	checkDir(t, base, uploaded.Path)
}

// Who can write to the directory can run what they like as root.
func TestUploadRefusesDirectoriesThatOthersCanWriteTo(t *testing.T) {
	t.Parallel()
	s := startSSHD(t)
	const nobody = 65534
	for name, test := range map[string]struct {
		prepare func(top string) error
		dir     string
		refused string
	}{
		"its own":  {func(top string) error { return os.Chmod(top, 0o755) }, "", ""},
		"none yet": {func(string) error { return nil }, "a/b", ""},
		"below a directory like /tmp": {func(top string) error {
			return errors.Join(os.Chmod(top, 0o777|os.ModeSticky), os.Mkdir(top+"/a", 0o755))
		}, "a", ""},
		"through a link of root's": {func(top string) error {
			return errors.Join(os.Mkdir(top+"/a", 0o755), os.Symlink("a", top+"/link"))
		}, "link", ""},
		"everybody's":  {func(top string) error { return os.Chmod(top, 0o777) }, "", "mode 0777"},
		"like /tmp":    {func(top string) error { return os.Chmod(top, 0o777|os.ModeSticky) }, "", "mode 0777"},
		"a group's":    {func(top string) error { return os.Chmod(top, 0o775) }, "", "mode 0775"},
		"somebody's":   {func(top string) error { return os.Chown(top, nobody, nobody) }, "", "user 65534"},
		"below theirs": {func(top string) error { return errors.Join(os.Chmod(top, 0o777), os.Mkdir(top+"/a", 0o755)) }, "a", "mode 0777"},
		"linked theirs": {func(top string) error {
			return errors.Join(os.Mkdir(top+"/a", 0o755), os.Chmod(top+"/a", 0o777), os.Symlink("a", top+"/link"))
		}, "link", "mode 0777"},
		"a file": {func(top string) error { return os.WriteFile(top+"/a", nil, 0o600) }, "a", "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			if err := test.prepare(top); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(top, test.dir)
			_, err := s.dial(t).Upload(t.Context(), NewContent([]byte("agent")), dir+"/agent", 0o700)
			if test.refused == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if fleet.KindOf(err) != fleet.KindForbidden || !strings.Contains(err.Error(), test.refused) {
				t.Errorf("%v (%s)", err, fleet.KindOf(err))
			}
			if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
				t.Errorf("it was written to all the same: %v", entries)
			}
		})
	}
}

// mount makes a small file system, and unmounts it when the test ends.
func mount(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("needs to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestAFullDiskIsNamed(t *testing.T) {
	t.Parallel()
	// Too small for the compressed form, or for the content alone.
	s := startSSHD(t)
	for name, content := range map[string]*Content{"sent": incompressible(2 << 20), "unpacked": NewContent(bytes.Repeat([]byte("agent"), 1<<20))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := s.dial(t)
			dir := mount(t, "size=1m,mode=0755")
			_, err := host.Upload(t.Context(), content, dir+"/agent", 0o700)
			if err == nil || !strings.Contains(err.Error(), "no space left") {
				t.Errorf("%v (%s)", err, fleet.KindOf(err))
			}
		})
	}
}

func TestAMountThatForbidsExecutionIsNamed(t *testing.T) {
	t.Parallel()
	host := startSSHD(t).dial(t)
	dir := mount(t, "size=1m,mode=0755")
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	uploaded, err := host.Upload(t.Context(), NewContent([]byte("#!/bin/sh\n")), dir+"/agent", 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = host.Run(t.Context(), Command{Args: []string{uploaded.Path}}); err == nil || !strings.Contains(err.Error(), "noexec") {
		t.Error(err)
	}
}

func TestAProgramForAnotherArchitectureIsNotSent(t *testing.T) {
	t.Parallel()
	host := startSSHD(t).dial(t)
	data, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(t.TempDir(), "agent")
	uploaded, err := host.Upload(t.Context(), NewContent(bytes.Clone(data)), base, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	checkDir(t, base, uploaded.Path)
	other, called := elf.EM_AARCH64, "aarch64"
	if runtime.GOARCH == "arm64" {
		other, called = elf.EM_X86_64, "x86_64"
	}
	binary.LittleEndian.PutUint16(data[18:], uint16(other)) // e_machine
	_, err = host.Upload(t.Context(), NewContent(data), base, 0o700)
	if fleet.KindOf(err) != fleet.KindUnsupported || !strings.Contains(err.Error(), "for "+called) {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
	checkDir(t, base, uploaded.Path)
}

// answering starts a server on which every command writes the output, and the subsystem does what
// it is told to.
func answering(t *testing.T, output string, subsystem func(*ssh.Request, ssh.Channel)) *Host {
	t.Helper()
	target, key := startServer(t, func(_ *ssh.ServerConn, channels <-chan ssh.NewChannel) {
		for offered := range channels {
			channel, requests, err := offered.Accept()
			if err != nil {
				return
			}
			for request := range requests {
				if request.Type == "subsystem" {
					subsystem(request, channel)
					continue
				}
				_ = request.Reply(true, nil)
				_, _ = io.WriteString(channel, output)
				_, _ = channel.SendRequest("exit-status", false, make([]byte, 4))
				_ = channel.Close()
			}
		}
	})
	host, err := NewDialer(key, Options{}).Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	return host
}

func TestHostsWithoutSFTP(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		subsystem func(*ssh.Request, ssh.Channel)
		text      []string
	}{
		"no subsystem": {func(request *ssh.Request, _ ssh.Channel) { _ = request.Reply(false, nil) }, []string{"no SFTP", "Subsystem sftp"}},
		"no program": {func(request *ssh.Request, channel ssh.Channel) {
			_ = request.Reply(true, nil)
			_, _ = io.WriteString(channel.Stderr(), "sftp-server: not found\n")
			_ = channel.Close()
		}, []string{`"sftp-server: not found"`}},
		"noise": {func(request *ssh.Request, channel ssh.Channel) {
			_ = request.Reply(true, nil)
			_, _ = io.WriteString(channel, "Hi\n")
		}, []string{`"Hi"`, ".bashrc"}},
		"endless errors": {func(request *ssh.Request, channel ssh.Channel) {
			_ = request.Reply(true, nil)
			go func() {
				for {
					if _, err := channel.Stderr().Write(make([]byte, 1<<15)); err != nil {
						return
					}
				}
			}()
		}, []string{"standard error"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := answering(t, "x86_64\n0\n", test.subsystem)
			_, err := host.Upload(t.Context(), NewContent([]byte("agent")), "/tmp/agent", 0o700)
			for _, text := range test.text {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("no %s: %v", text, err)
				}
			}
		})
	}
}
