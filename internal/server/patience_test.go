package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/server"
)

// TestOldTLSIsRefused: what is older than TLS 1.3 is not spoken, to agents or to people.
func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	c := load(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	for name, config := range map[string]*tls.Config{"agents": c.TLS(), "people": c.ServerTLS()} {
		for version, want := range map[uint16]bool{tls.VersionTLS12: false, tls.VersionTLS13: true} {
			here, there := net.Pipe()
			go func() {
				_ = tls.Server(there, config).HandshakeContext(t.Context())
				_ = there.Close()
			}()
			client := tls.Client(here, &tls.Config{InsecureSkipVerify: true, MaxVersion: version}) //nolint:gosec // the version is what counts
			if err := client.HandshakeContext(t.Context()); (err == nil) != want {
				t.Errorf("%s, %s: %v", name, tls.VersionName(version), err)
			}
			_ = here.Close()
		}
	}
}

// TestPatienceWithClients: a client that sends nothing, or reads nothing, keeps its connection for
// so long, and what it sends before its body is no more than so much.
func TestPatienceWithClients(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path == "/much" {
			for range 64 { // more than any buffer holds
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					panic(http.ErrAbortHandler)
				}
			}
		}
	})
	for name, c := range map[string]struct {
		sends string
		lasts time.Duration
	}{
		"a header that does not end": {"GET / HTTP/1.1\r\n", 10 * time.Second},
		"a body that does not come":  {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", time.Minute},
		"an answer that is not read": {"GET /much HTTP/1.1\r\nHost: x\r\n\r\n", 2 * time.Minute},
		"no further request":         {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conn, closed, end := serveConn(t, handler)
				defer end()
				start := time.Now()
				if _, err := io.WriteString(conn, c.sends); err != nil {
					t.Fatal(err)
				}
				if name != "an answer that is not read" {
					go func() { _, _ = io.Copy(io.Discard, conn) }()
				}
				select {
				case <-closed:
				case <-time.After(time.Hour):
				}
				if took := time.Since(start); took < c.lasts || took > c.lasts+2*time.Second {
					t.Errorf("the connection lasted %s, want %s", took, c.lasts)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		for size, want := range map[int]int{60 << 10: http.StatusOK, 80 << 10: http.StatusRequestHeaderFieldsTooLarge} {
			conn, _, end := serveConn(t, handler)
			go func() {
				_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", size)+"\r\n\r\n")
			}()
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != want {
				t.Errorf("a header of %d bytes gives %d, want %d", size, answer.StatusCode, want)
			}
			end()
		}
	})
}

// told is a connection that tells when it is closed.
type told struct {
	remote
	closed func() // the first time
}

func (c told) Close() error {
	c.closed()
	return c.remote.Close()
}

// serveConn serves one client, until end is called. closed tells that the server has left it.
func serveConn(t *testing.T, handler http.Handler) (conn net.Conn, closed <-chan struct{}, end func()) {
	t.Helper()
	d := newDoor(t, server.Limit{})
	ctx, cancel := context.WithCancel(t.Context())
	ended, left := make(chan error, 1), make(chan struct{})
	go func() { ended <- server.NewHTTP(handler, server.HTTPOptions{Logger: discard}).Serve(ctx, d) }()
	here, there := net.Pipe()
	d.incoming <- told{remote{there, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}, sync.OnceFunc(func() { close(left) })}
	return here, left, func() {
		_ = here.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
