package provider

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// holed is a connection whose path can be lost: then it takes what is sent, and nothing arrives.
type holed struct {
	net.Conn
	lost *atomic.Bool
}

func (c *holed) Write(p []byte) (int, error) {
	if c.lost.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// TestADeadHTTP2ConnectionIsFoundOut: a call over a connection whose path is lost ends well over a
// new one, before the time of its first attempt is over.
func TestADeadHTTP2ConnectionIsFoundOut(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	limits := Limits{AttemptTimeout: 30 * time.Second, Backoff: time.Millisecond}.withDefaults()
	if found := newHTTP(limits).HTTP2; found.SendPingTimeout+found.PingTimeout >= limits.AttemptTimeout {
		t.Errorf("a dead connection is found out after %+v, and an attempt ends after %s", found, limits.AttemptTimeout)
	}
	quick := limits            // nobody waits for the real times
	quick.AttemptTimeout /= 10 // the other connection answers a ping in time, on a busy host, too
	client := newHTTP(quick)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	client.TLSClientConfig = &tls.Config{RootCAs: roots}
	var dials atomic.Int32
	var first atomic.Bool
	dial := client.DialContext
	client.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		connection, err := dial(ctx, network, address)
		if err != nil || dials.Add(1) > 1 {
			return connection, err
		}
		return &holed{connection, &first}, nil
	}
	transport := NewTransport(limits, func(*http.Request) string { return "thing" }, Options{HTTP: client})
	defer transport.CloseIdleConnections()
	ask := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limits.AttemptTimeout/2)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			return "", err
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return "", err
		}
		text, err := io.ReadAll(response.Body)
		return string(text), errors.Join(err, response.Body.Close())
	}
	if text, err := ask(); err != nil || text != "HTTP/2.0" {
		t.Fatalf("%q, %v", text, err)
	}
	first.Store(true)
	if text, err := ask(); err != nil || text != "HTTP/2.0" || dials.Load() < 2 {
		t.Errorf("%q, %v, after %d connections", text, err, dials.Load())
	}
}
