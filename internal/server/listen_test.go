package server_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

func TestListenTellsWhoIsThere(t *testing.T) {
	t.Parallel()
	first, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = server.Listen(t.Context(), first.Address())
	if fleet.KindOf(err) != fleet.KindInUse || err.Error() != "address "+first.Address()+" is in use by another process" {
		t.Errorf("got %v", err)
	}
	for address, kind := range map[string]fleet.Kind{
		"nonsense":        fleet.KindInvalid,
		"192.0.2.1:1234":  fleet.KindTemporary, // not of this host, or not yet
		"unix:":           fleet.KindInvalid,
		"no.invalid:1234": fleet.KindTemporary, // its name server may be away

		"127.0.0.1:65536":  fleet.KindInvalid,
		"127.0.0.1:nosuch": fleet.KindInvalid,
	} {
		if _, err := server.Listen(t.Context(), address); fleet.KindOf(err) != kind {
			t.Errorf("%s: got %v, want kind %s", address, err, kind)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	first, err := server.Listen(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v", info.Mode())
	}
	if _, err := server.Listen(t.Context(), "unix:"+path); fleet.KindOf(err) != fleet.KindInUse {
		t.Errorf("socket in use: got %v", err)
	}
	first.Close()

	leaveStale(t, path)
	again, err := server.Listen(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatalf("a stale socket is in the way: %v", err)
	}
	again.Close()

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Listen(t.Context(), "unix:"+file); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("a file in the way: got %v", err)
	}
	if content, _ := os.ReadFile(file); string(content) != "precious" {
		t.Error("the file was touched")
	}
}

// leaveStale leaves a socket as a process does that was killed.
func leaveStale(t *testing.T, path string) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
}

func TestListenerServesAgain(t *testing.T) {
	t.Parallel()
	l, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		var got string
		err := l.Serve(t.Context(), func(_ context.Context, ln net.Listener) error {
			got = ln.Addr().String()
			return ln.Close()
		})
		if err != nil || got != l.Address() {
			t.Errorf("served %s, %v; want %s", got, err, l.Address())
		}
	}
}

func TestLimitConnections(t *testing.T) {
	t.Parallel()
	l, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var limited net.Listener
	_ = l.Serve(t.Context(), func(_ context.Context, ln net.Listener) error {
		limited = server.LimitConnections(ln, server.Limit{PerSource: 2}, nil)
		return nil
	})
	defer limited.Close()
	accepted := make(chan net.Conn, 9)
	go func() {
		for {
			c, err := limited.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	dial := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", l.Address())
		if errors.Is(err, syscall.ECONNRESET) { // refused at once
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	closed := func(c net.Conn) bool {
		if c == nil {
			return true
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		_, err := c.Read(make([]byte, 1))
		return !os.IsTimeout(err)
	}
	dial("127.0.0.1")
	dial("127.0.0.1")
	one, two := <-accepted, <-accepted
	if !closed(dial("127.0.0.1")) {
		t.Error("a third connection from one address is served")
	}
	dial("127.0.0.2")
	(<-accepted).Close()
	one.Close()
	one.Close() // counts once
	dial("127.0.0.1")
	(<-accepted).Close()
	two.Close()
}

// TestASocketOnAReadOnlyFileSystem waits for whoever mounts it for writing again, also where the
// socket of a process that was killed is in the way.
func TestASocketOnAReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	if os.Getenv("CI") == "" && os.Geteuid() != 0 {
		t.Skip("this needs to be root, to mount a file system")
	}
	for _, stale := range []bool{false, true} {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		path := filepath.Join(dir, "s")
		if stale {
			ln, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			ln.(*net.UnixListener).SetUnlinkOnClose(false)
			_ = ln.Close()
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		_, err := server.Listen(t.Context(), "unix:"+path)
		if fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "read-only file system") {
			t.Errorf("stale %t: %s: %v", stale, fleet.KindOf(err), err)
		}
	}
}
