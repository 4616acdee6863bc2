package remote

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// stream is one direction of a connection in memory.
type stream struct {
	mu     sync.Mutex
	change *sync.Cond
	data   bytes.Buffer
	closed bool
}

func newStream() *stream {
	s := new(stream)
	s.change = sync.NewCond(&s.mu)
	return s
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.data.Len() == 0 && !s.closed {
		s.change.Wait()
	}
	if s.data.Len() == 0 {
		return 0, io.EOF
	}
	return s.data.Read(p)
}

func (s *stream) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	defer s.change.Broadcast()
	return s.data.Write(p)
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.change.Broadcast()
}

// wire is one end of a connection in memory, which a bubble of fake time can hold.
type wire struct {
	net.Conn
	in, out *stream
}

func (w *wire) Read(p []byte) (int, error) { return w.in.read(p) }

func (w *wire) Write(p []byte) (int, error) { return w.out.write(p) }

func (w *wire) Close() error {
	w.in.close()
	w.out.close()
	return nil
}

func (w *wire) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (w *wire) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// once is a listener that has one connection.
type once struct {
	connection chan net.Conn
	closed     chan struct{}
	closing    sync.Once
}

func (o *once) Accept() (net.Conn, error) {
	select {
	case connection := <-o.connection:
		return connection, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

func (o *once) Close() error   { o.closing.Do(func() { close(o.closed) }); return nil }
func (o *once) Addr() net.Addr { return &net.TCPAddr{} }

// dialSlowly connects to a simulated machine. What we write arrives when carry returns, which is
// called with how much it is. The delay is not in Write, because who waits for a mutex of the
// library would keep the fake time from passing.
func dialSlowly(t *testing.T, silence time.Duration, carry func(bytes int)) *Host {
	t.Helper()
	key, hostKey := newTestKey(t), newTestKey(t)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "root/.ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "root/.ssh/authorized_keys"), []byte(key.Public()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := sshhost.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := sshhost.NewServer(sshhost.Options{
		Root: root, Hostname: "machine", HostKey: hostKey.signer, Store: store, Logger: slog.New(slog.DiscardHandler),
	})
	listener := &once{connection: make(chan net.Conn, 1), closed: make(chan struct{})}
	here, there, back := newStream(), newStream(), newStream()
	carried := make(chan struct{})
	go func() {
		defer close(carried)
		defer there.close()
		for buffer := make([]byte, 4<<10); ; {
			n, err := here.read(buffer)
			if err != nil {
				return
			}
			carry(n)
			_, _ = there.write(buffer[:n])
		}
	}()
	listener.connection <- &wire{in: there, out: back}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan struct{})
	go func() { defer close(served); server.Serve(ctx, listener) }()
	dialer := NewDialer(key, Options{Dial: func(context.Context, string, string) (net.Conn, error) {
		return &wire{in: back, out: here}, nil
	}})
	host, err := dialer.Dial(t.Context(), Target{
		Address: netip.MustParseAddrPort("192.0.2.1:22"), User: "root", Trust: Trust{Pinned: []string{hostKey.Public()}}, Silence: silence,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		host.Close()
		cancel()
		<-served
		<-carried
	})
	return host
}

// A slow link gets the time that its progress earns; one that carries nothing any more is left
// after the time of a step.
func TestASlowLinkGetsTheTimeThatItsProgressEarns(t *testing.T) {
	t.Parallel()
	content := incompressible(1 << 20)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		host := dialSlowly(t, 0, func(bytes int) { time.Sleep(time.Duration(bytes) * time.Second / 8000) })
		uploaded, err := host.Upload(t.Context(), content, "/root/agent/agent", 0o700)
		if took := time.Since(start); err != nil || uploaded.Sent < content.Size() || took < 2*time.Minute {
			t.Errorf("%+v, %v after %s", uploaded, err, took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		sent, gone := 0, make(chan struct{})
		host := dialSlowly(t, 0, func(bytes int) {
			if sent += bytes; sent > 1<<19 {
				<-gone
			}
		})
		defer close(gone)
		start := time.Now()
		_, err := host.Upload(t.Context(), content, "/root/agent/agent", 0o700)
		took := time.Since(start)
		if fleet.KindOf(err) != fleet.KindTimeout || !strings.Contains(err.Error(), "no progress within 15s") || took > time.Minute {
			t.Errorf("%v (%s) after %s", err, fleet.KindOf(err), took)
		}
	})
}
