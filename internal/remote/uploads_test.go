package remote

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// withoutSFTP is what startSSHD takes for a host without SFTP.
var withoutSFTP = configured("Subsystem other /bin/true")

// fewPrograms returns a directory with no more programs than an upload through the shell needs.
func fewPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"sh", "ls", "mkdir", "mv", "rm", "chmod", "dd", "cat", "uname", "id", "find"} {
		program, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(program, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What is on a host counts by its digest alone, which the host's sha256sum says, or else its bytes.
func TestUploadsAreCheckedAndResumed(t *testing.T) {
	t.Parallel()
	for name, environment := range map[string]string{
		"compressed": "", "plain": "PATH=" + fewPrograms(t), "without SFTP": withoutSFTP, "without SFTP, plain": "PATH=" + fewPrograms(t) + " " + withoutSFTP,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSSHD(t, environment)
			t.Run("tampered", func(t *testing.T) { testATamperedFileIsSentAnew(t, s) })
			t.Run("interrupted", func(t *testing.T) { testInterruptedUploadsAreResumed(t, s) })
			t.Run("damaged", func(t *testing.T) { testADamagedPartIsSentAnew(t, s, !strings.Contains(environment, "PATH")) })
		})
	}
}

// Name and size are no proof of what a file holds: it is run as root.
func testATamperedFileIsSentAnew(t *testing.T, s *sshd) {
	t.Helper()
	host := s.dial(t)
	content := newContent(program(128 << 10))
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
	return newContent(data)
}

// An upload that is interrupted goes on where it was, however long ago that was. It leaves one file
// however often that happens, and takes away what else uploads have left although it fails.
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
		leaveLongAgo(t, content.Path(base)+".0123456789ab.tmp")
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

// slowPacket is a file whose first packet is answered last.
type slowPacket struct {
	answer  chan struct{}
	highest atomic.Int64
}

func (s *slowPacket) WriteAt(p []byte, at int64) (int, error) {
	if at == packet {
		<-s.answer
	}
	for highest := s.highest.Load(); at > highest && !s.highest.CompareAndSwap(highest, at); {
		highest = s.highest.Load()
	}
	return len(p), nil
}

// An upload that breaks off while one packet is late has no hole before the end that the next one
// sends again.
func TestNothingIsSentFarAheadOfALatePacket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := &slowPacket{answer: make(chan struct{})}
		data := make([]byte, 100*packet+1)
		var written atomic.Int64
		ended := make(chan error, 1)
		go func() { ended <- writePackets(t.Context(), file, data, packet, func() { written.Add(1) }) }()
		synctest.Wait()
		if got := file.highest.Load(); got != inFlight*packet {
			t.Errorf("the packet at %d was sent while the one at %d had no answer, want up to %d", got, packet, inFlight*packet)
		}
		close(file.answer)
		if err := <-ended; err != nil || written.Load() != 100 || file.highest.Load() != 100*packet {
			t.Errorf("%v, %d packets, the last at %d", err, written.Load(), file.highest.Load())
		}
	})
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
	// Somebody else is uploading another version.
	underWay := newContent([]byte("another")).partial(base, !packed)
	if err := os.WriteFile(underWay, []byte("ano"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := time.Now().Add(-5 * time.Second)
	_ = os.Chtimes(underWay, before, before)
	uploaded, err := host.Upload(t.Context(), content, base, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if written, err := os.ReadFile(uploaded.Path); err != nil || !bytes.Equal(written, content.data) {
		t.Errorf("%d bytes of something else, %v", len(written), err)
	}
	if err := os.Remove(underWay); err != nil {
		t.Errorf("what somebody else is uploading: %v", err)
	}
	checkDir(t, base, uploaded.Path)
}

// Who can write to the directory can run what they like as root.
func TestUploadRefusesDirectoriesThatOthersCanWriteTo(t *testing.T) {
	t.Parallel()
	for _, environment := range []string{"", withoutSFTP} {
		t.Run(strings.Fields(environment + " SFTP")[0], func(t *testing.T) {
			t.Parallel()
			testUploadRefusesDirectories(t, startSSHD(t, environment))
		})
	}
}

func testUploadRefusesDirectories(t *testing.T, s *sshd) {
	t.Helper()
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
			_, err := s.dial(t).Upload(t.Context(), newContent([]byte("agent")), dir+"/agent", 0o700)
			if test.refused == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if wrong, ok := errors.AsType[*DirectoryError](err); !ok || wrong.Directory != dir || !strings.Contains(err.Error(), test.refused) {
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
		t.Fatalf("root that may mount is needed: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestAFullOrReadOnlyDiskIsNamed(t *testing.T) {
	t.Parallel()
	for _, environment := range []string{"", withoutSFTP} {
		s := startSSHD(t, environment)
		for name, test := range map[string]struct {
			content *Content
			below   string
			flags   uintptr
			says    string
		}{
			// Too small for the compressed form, or for the content alone.
			"full when it is sent":     {incompressible(2 << 20), "", 0, "no space left"},
			"full when it is unpacked": {newContent(bytes.Repeat([]byte("agent"), 1<<20)), "", 0, "no space left"},
			"read-only":                {incompressible(1 << 10), "", syscall.MS_RDONLY, "read-only"},
			"read-only above":          {incompressible(1 << 10), "/a/b", syscall.MS_RDONLY, "read-only"},
		} {
			t.Run(strings.TrimSpace(environment+" "+name), func(t *testing.T) {
				t.Parallel()
				host := s.dial(t)
				dir := mount(t, "size=1m,mode=0755")
				if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|test.flags, ""); err != nil {
					t.Fatal(err)
				}
				_, err := host.Upload(t.Context(), test.content, dir+test.below+"/agent", 0o700)
				wrong, ok := errors.AsType[*DirectoryError](err)
				if !ok || wrong.Directory != dir+test.below || !strings.Contains(strings.ToLower(err.Error()), test.says) {
					t.Errorf("%v (%s)", err, fleet.KindOf(err))
				}
				if _, err := host.Upload(t.Context(), test.content, t.TempDir()+"/agent", 0o700); err != nil {
					t.Errorf("another directory: %v", err)
				}
			})
		}
	}
}

func TestAMountThatForbidsExecutionIsNamed(t *testing.T) {
	t.Parallel()
	host := startSSHD(t).dial(t)
	dir := mount(t, "size=1m,mode=0755")
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	uploaded, err := host.Upload(t.Context(), newContent([]byte("#!/bin/sh\n")), dir+"/agent", 0o700)
	if err != nil {
		t.Fatal(err)
	}
	_, err = host.Run(t.Context(), Command{Args: []string{uploaded.Path}})
	if exit, exited := errors.AsType[*ExitError](err); !exited || !exit.noExec() || !strings.Contains(err.Error(), "noexec") {
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
	uploaded, err := host.Upload(t.Context(), newContent(bytes.Clone(data)), base, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	checkDir(t, base, uploaded.Path)
	other, called := elf.EM_AARCH64, "aarch64"
	if runtime.GOARCH == "arm64" {
		other, called = elf.EM_X86_64, "x86_64"
	}
	binary.LittleEndian.PutUint16(data[18:], uint16(other)) // e_machine
	_, err = host.Upload(t.Context(), newContent(data), base, 0o700)
	if fleet.KindOf(err) != fleet.KindUnsupported || !strings.Contains(err.Error(), "for "+called) {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
	checkDir(t, base, uploaded.Path)
}

// answering starts a server on which every command writes the output, and every subsystem does what
// it is told to.
func answering(t *testing.T, output func(command string) string, subsystem func(*ssh.Request, ssh.Channel)) *Host {
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
				_, _ = io.WriteString(channel, output(string(request.Payload[4:])))
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

// markOf returns the mark that a command line begins with.
func markOf(line string) string {
	mark, _, _ := strings.Cut(strings.TrimPrefix(line, "echo "), ";")
	return mark
}

// A host without SFTP, in whatever way, is asked by commands.
func TestHostsWithoutSFTP(t *testing.T) {
	t.Parallel()
	for name, subsystem := range map[string]string{
		"no subsystem":    "Subsystem other /bin/true",
		"no program":      "Subsystem sftp /nowhere/sftp-server",
		"ends at once":    "Subsystem sftp /bin/true",
		"something else":  "Subsystem sftp /bin/echo hi",
		"noise before it": "Subsystem sftp /usr/lib/openssh/sftp-server",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSSHD(t, configured(subsystem))
			if name == "noise before it" {
				greet(t, s)
			}
			content := newContent(program(700 << 10))
			base := filepath.Join(t.TempDir(), "a/it's an agent")
			uploaded, err := s.dial(t).Upload(t.Context(), content, base, 0o700)
			if err != nil || uploaded.Path != content.Path(base) || uploaded.Sent == 0 {
				t.Fatalf("%+v, %v", uploaded, err)
			}
			if written, err := os.ReadFile(uploaded.Path); err != nil || !bytes.Equal(written, content.data) {
				t.Errorf("%d bytes of something else, %v", len(written), err)
			}
			if info, err := os.Stat(uploaded.Path); err != nil || info.Mode() != 0o700 {
				t.Errorf("%v, %v", info, err)
			}
			checkDir(t, base, uploaded.Path)
			testUploadAgain(t, s.dial(t), content, base)
		})
	}
}

func TestAnSFTPServerThatWritesWithoutEnd(t *testing.T) {
	t.Parallel()
	host := answering(t, func(line string) string { return markOf(line) + "\nx86_64\n0\n" }, func(request *ssh.Request, channel ssh.Channel) {
		_ = request.Reply(true, nil)
		go func() {
			for {
				if _, err := channel.Stderr().Write(make([]byte, 1<<15)); err != nil {
					return
				}
			}
		}()
	})
	_, err := host.Upload(t.Context(), newContent([]byte("agent")), "/tmp/agent", 0o700)
	if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "standard error") {
		t.Error(err)
	}
}

// What `ls -ldn` writes is from the host.
func FuzzParseListed(f *testing.F) {
	f.Add("drwxr-xr-t. 2 0 0 4096 Nov 22 08:00 /tmp")
	f.Add("crw-rw-rw- 1 0 0 1, 3 Nov 22 08:00 /dev/null")
	f.Add("-rwsr-Sr-T 1 65534 0 7 Nov 22 08:00 a b")
	f.Fuzz(func(t *testing.T, line string) {
		listed, err := parseListed(line)
		if err != nil && listed != (entry{}) || err == nil && listed.mode.IsRegular() && listed.mode.Perm()&^0o777 != 0 {
			t.Errorf("%q is %+v, %v", line, listed, err)
		}
	})
}

func TestParseMode(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]fs.FileMode{
		"-rwxr-xr-x": 0o755, "drwxrwxrwt": fs.ModeDir | fs.ModeSticky | 0o777, "drwxrwxrwT": fs.ModeDir | fs.ModeSticky | 0o776,
		"-rwsr-S---": fs.ModeSetuid | fs.ModeSetgid | 0o740, "lrwxrwxrwx": fs.ModeSymlink | 0o777,
	} {
		if got, known := parseMode(text); got != want || !known {
			t.Errorf("%s is %v, %v", text, got, known)
		}
	}
	for _, text := range []string{"?rwxr-xr-x", "-xwrr-xr-x", "-rwxr-xr-s", "-rwtr-xr-x"} {
		if _, known := parseMode(text); known {
			t.Errorf("%s is taken for a mode", text)
		}
	}
}
