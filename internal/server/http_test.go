package server_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server of the handler until the test ends, and returns where.
func serve(t *testing.T, address string, handler http.Handler, options server.HTTPOptions) *server.Listener {
	t.Helper()
	options.Logger = discard
	l, err := server.Listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- l.Serve(ctx, server.NewHTTP(handler, options).Serve) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l
}

func get(t *testing.T, client *http.Client, url string, header http.Header) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		r.Header[k] = v
	}
	if h := header.Get("Host"); h != "" {
		r.Host = h
	}
	a, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	body, _ := io.ReadAll(a.Body)
	return a.StatusCode, string(body)
}

func newClient(t *testing.T, socket string) *http.Client {
	t.Helper()
	transport := &http.Transport{}
	if socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// rights tells the caller who they are taken for.
var rights = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	c := server.CallerFrom(r.Context())
	text := c.Actor
	if c.Read {
		text += " reads"
	}
	if c.Write {
		text += " writes"
	}
	_, _ = io.WriteString(w, text)
})

func TestAccess(t *testing.T) {
	t.Parallel()
	const token = "a-token-that-nobody-guesses"
	tcp := serve(t, "127.0.0.1:0", server.NewAccess(token).Identify(rights), server.HTTPOptions{})
	outside := serve(t, "0.0.0.0:0", server.NewAccess("").Identify(rights), server.HTTPOptions{})
	socket := filepath.Join(t.TempDir(), "s")
	serve(t, "unix:"+socket, server.NewAccess(token).Identify(rights), server.HTTPOptions{})
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	bearer := func(s string) http.Header { return http.Header{"Authorization": {"Bearer " + s}} }
	basic := func(s string) http.Header {
		r := http.Request{Header: http.Header{}}
		r.SetBasicAuth("anybody", s)
		return r.Header
	}
	for _, c := range []struct {
		name   string
		url    string
		socket string
		header http.Header
		want   string
	}{
		{"loopback", tcp.URL("http"), "", nil, "unknown reads"},
		{"loopback by name", tcp.URL("http"), "", http.Header{"Host": {"localhost:80"}}, "unknown reads"},
		{"token", tcp.URL("http"), "", bearer(token), "operator reads writes"},
		{"wrong token", tcp.URL("http"), "", bearer("guess"), "unknown"},
		{"empty token", tcp.URL("http"), "", bearer(""), "unknown"},
		{"no token configured", outside.URL("http"), "", bearer(""), "unknown"},
		{"browser", tcp.URL("http"), "", basic(token), "operator reads"},
		{"browser with a wrong password", tcp.URL("http"), "", basic("guess"), "unknown"},
		{"another name that leads here", tcp.URL("http"), "", http.Header{"Host": {"evil.example"}}, "unknown"},
		{"proxied", tcp.URL("http"), "", http.Header{"X-Forwarded-For": {"203.0.113.7"}}, "unknown"},
		{"socket", "http://ironherd", socket, nil, me.Username + " reads writes"},
	} {
		if _, got := get(t, newClient(t, c.socket), c.url, c.header); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestForgedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	l := serve(t, "127.0.0.1:0", server.NewAccess("t").Identify(rights), server.HTTPOptions{})
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, l.URL("http"), strings.NewReader("{}"))
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	r.Header.Set("Authorization", "Bearer t")
	a, err := newClient(t, "").Do(r)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != http.StatusForbidden {
		t.Errorf("status %d", a.StatusCode)
	}
}

func TestRequireReadAndAuthorize(t *testing.T) {
	t.Parallel()
	l := serve(t, "127.0.0.1:0", server.NewAccess("t").Identify(server.RequireRead(rights)), server.HTTPOptions{})
	status, _ := get(t, newClient(t, ""), l.URL("http"), http.Header{"Host": {"evil.example"}})
	if status != http.StatusUnauthorized {
		t.Errorf("a stranger gets %d", status)
	}
	if _, err := server.Authorize(t.Context(), false); fleet.KindOf(err) != fleet.KindUnauthenticated {
		t.Errorf("a context that nobody identified: %v", err)
	}
}

func TestHTTPBoundsAndPanics(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("oh no")
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, "too large", http.StatusRequestEntityTooLarge)
		}
	})
	l := serve(t, "127.0.0.1:0", handler, server.HTTPOptions{MaxBody: 100})
	status, body := get(t, newClient(t, ""), l.URL("http")+"/panic", nil)
	if status != http.StatusInternalServerError || strings.Contains(body, "oh no") {
		t.Errorf("a panic is told as %d %q", status, body)
	}
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, l.URL("http"), strings.NewReader(strings.Repeat("x", 101)))
	a, err := newClient(t, "").Do(r)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a large body: %d", a.StatusCode)
	}
}

func TestServeDrains(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		select {
		case <-release:
			_, _ = io.WriteString(w, "finished")
		case <-r.Context().Done():
		}
	})
	l, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Serve(ctx, server.NewHTTP(handler, server.HTTPOptions{Logger: discard}).Serve) }()
	client := newClient(t, "")
	answer := make(chan string)
	go func() {
		_, body := get(t, client, l.URL("http"), nil)
		answer <- body
	}()
	<-entered
	cancel()
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	if body := <-answer; body != "finished" {
		t.Errorf("the request under way got %q", body)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestEventStreamsEndAtOnce(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	})
	l, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	options := server.HTTPOptions{Logger: discard, Drain: time.Hour}
	go func() { ended <- l.Serve(ctx, server.NewHTTP(handler, options).Serve) }()
	client, answered := newClient(t, ""), make(chan struct{})
	go func() {
		defer close(answered)
		get(t, client, l.URL("http"), http.Header{"Accept": {"text/event-stream"}})
	}()
	<-entered
	cancel()
	<-answered
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestDrainEnds: a request that ignores its cancellation does not keep the server from stopping.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-release
	})
	l, err := server.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, left := make(chan error, 1), make(chan struct{})
	options := server.HTTPOptions{Logger: discard, Drain: 100 * time.Millisecond}
	go func() { ended <- l.Serve(ctx, server.NewHTTP(handler, options).Serve) }()
	client := newClient(t, "")
	go func() {
		defer close(left)
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, l.URL("http"), nil)
		if a, err := client.Do(r); err == nil {
			a.Body.Close()
		}
	}()
	<-entered
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second): //nolint:forbidigo // nobody is to wait so long
		t.Error("the server waits for a request that ignores its cancellation")
	}
	close(release)
	<-left
}
