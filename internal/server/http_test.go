package server_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
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
	"github.com/ironherd/ironherd/internal/token"
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
	_, _ = io.WriteString(w, strings.TrimSpace(c.Actor+" "+string(c.Role)))
})

// tokens are found by their text.
type tokens map[string]token.Token

func (t tokens) Find(text string) (token.Token, bool, error) {
	if text == "broken" {
		return token.Token{}, false, errors.New("the file is broken")
	}
	found, ok := t[text]
	return found, ok, nil
}

// known has a token for each role, whose text is the role's name.
func known() tokens {
	all := tokens{"old": {Name: "old", Role: token.Admin, Expires: time.Now()}}
	for _, role := range token.Roles() {
		all[string(role)] = token.Token{Name: "its-" + string(role), Role: role, Expires: time.Now().Add(time.Hour)}
	}
	return all
}

func bearer(text string) http.Header { return http.Header{"Authorization": {"Bearer " + text}} }

func basic(text string) http.Header {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth("anybody", text)
	return r.Header
}

// TestAccess also stands where a reverse proxy stands: on loopback, by this host's own name, with
// and without the headers that proxies add.
func TestAccess(t *testing.T) {
	t.Parallel()
	tcp := serve(t, "127.0.0.1:0", server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(rights), server.HTTPOptions{})
	without := serve(t, "127.0.0.1:0", server.NewAccess(nil, slog.New(slog.DiscardHandler)).Identify(rights), server.HTTPOptions{})
	socket := filepath.Join(t.TempDir(), "s")
	serve(t, "unix:"+socket, server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(rights), server.HTTPOptions{})
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		url    string
		socket string
		header http.Header
		want   string
	}{
		{"loopback", tcp.URL("http"), "", nil, "unknown"},
		{"loopback by name", tcp.URL("http"), "", http.Header{"Host": {"localhost:80"}}, "unknown"},
		{"loopback without tokens", without.URL("http"), "", nil, "unknown"},
		{"proxied, and it says so", tcp.URL("http"), "", http.Header{"X-Forwarded-For": {"203.0.113.7"}}, "unknown"},
		{"proxied, and it says that it is us", tcp.URL("http"), "", http.Header{"X-Forwarded-For": {"127.0.0.1"}, "Forwarded": {"for=127.0.0.1"}}, "unknown"},
		{"viewer", tcp.URL("http"), "", bearer("viewer"), "token its-viewer viewer"},
		{"metrics", tcp.URL("http"), "", bearer("metrics"), "token its-metrics metrics"},
		{"operator", tcp.URL("http"), "", bearer("operator"), "token its-operator operator"},
		{"admin", tcp.URL("http"), "", bearer("admin"), "token its-admin admin"},
		{"expired", tcp.URL("http"), "", bearer("old"), "unknown"},
		{"wrong token", tcp.URL("http"), "", bearer("guess"), "unknown"},
		{"empty token", tcp.URL("http"), "", bearer(""), "unknown"},
		{"tokens that cannot be read", tcp.URL("http"), "", bearer("broken"), "unknown"},
		{"no tokens", without.URL("http"), "", bearer(""), "unknown"},
		{"browser", tcp.URL("http"), "", basic("admin"), "token its-admin viewer"},
		{"browser with less", tcp.URL("http"), "", basic("metrics"), "token its-metrics metrics"},
		{"browser with a wrong password", tcp.URL("http"), "", basic("guess"), "unknown"},
		{"a header that is none", tcp.URL("http"), "", http.Header{"Authorization": {"Basic %"}}, "unknown"},
		{"socket", "http://ironherd", socket, nil, me.Username + " admin"},
		{"socket with a token of less", "http://ironherd", socket, bearer("viewer"), me.Username + " admin"},
	} {
		if _, got := get(t, newClient(t, c.socket), c.url, c.header); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestForgedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	l := serve(t, "127.0.0.1:0", server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(rights), server.HTTPOptions{})
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, l.URL("http"), strings.NewReader("{}"))
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	r.Header.Set("Authorization", "Bearer admin")
	a, err := newClient(t, "").Do(r)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != http.StatusForbidden {
		t.Errorf("status %d", a.StatusCode)
	}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	needs := map[string]token.Role{"/metrics": token.Metrics, "/change": token.Operator, "/health": token.None, "/": token.Viewer}
	l := serve(t, "127.0.0.1:0", server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(server.Guard(needs, rights)), server.HTTPOptions{})
	client := newClient(t, "")
	for _, c := range []struct {
		path   string
		header http.Header
		status int
		says   string
	}{
		{"/health", nil, http.StatusOK, "unknown"},
		{"/metrics", nil, http.StatusUnauthorized, "a token is needed: make one on the control plane's host with `ironherd token create NAME --role ROLE`, and name its file with --token-file"},
		{"/metrics", bearer("metrics"), http.StatusOK, ""},
		{"/metrics/more", bearer("metrics"), http.StatusForbidden, "token its-metrics has the role metrics, and this needs the role viewer"},
		{"/page", bearer("viewer"), http.StatusOK, ""},
		{"/page", bearer("old"), http.StatusUnauthorized, "the token old has expired at "},
		{"/page", bearer("broken"), http.StatusUnauthorized, "the tokens cannot be read at the moment"},
		{"/change", bearer("viewer"), http.StatusForbidden, "needs the role operator"},
		{"/change", basic("admin"), http.StatusForbidden, "changes need the token as a bearer token"},
		{"/change", bearer("operator"), http.StatusOK, ""},
	} {
		if status, body := get(t, client, l.URL("http")+c.path, c.header); status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s %v: %d %q", c.path, c.header, status, body)
		}
	}
	if _, err := server.Authorize(t.Context(), token.Metrics); fleet.KindOf(err) != fleet.KindUnauthenticated {
		t.Errorf("a context that nobody identified: %v", err)
	}
	if got := server.Needed(nil, "/"); got != token.Admin {
		t.Errorf("a table without rows asks for the role %q", got)
	}
}

// A browser asks for a token where it is told to. A program that calls the API by GET is answered
// as by POST.
func TestGuardAsksBrowsers(t *testing.T) {
	t.Parallel()
	l := serve(t, "127.0.0.1:0", server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(server.Guard(nil, rights)), server.HTTPOptions{})
	for path, c := range map[string]struct{ challenge, content string }{
		"/machine/": {`Basic realm="Ironherd: any user name, a token as password"`, "text/plain; charset=utf-8"},
		"/fleet.v1.FleetService/GetSummary?encoding=json&message=%7B%7D": {"", "application/json"},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, l.URL("http")+path, nil)
		a, err := newClient(t, "").Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(a.Body)
		a.Body.Close()
		if got := a.Header.Get("WWW-Authenticate"); a.StatusCode != http.StatusUnauthorized || got != c.challenge ||
			a.Header.Get("Content-Type") != c.content || !strings.Contains(string(answer), "a token is needed") {
			t.Errorf("%s: %d, challenge %q, %s: %s", path, a.StatusCode, got, a.Header.Get("Content-Type"), answer)
		}
	}
}

// TestGuardReadsNoBody sends the header of a request and waits for the answer before it sends
// anything else.
func TestGuardReadsNoBody(t *testing.T) {
	t.Parallel()
	l := serve(t, "127.0.0.1:0", server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(server.Guard(nil, rights)), server.HTTPOptions{})
	for content, want := range map[string]string{"application/json": `"code":"unauthenticated"`, "text/plain": "a token is needed"} {
		body, writer := io.Pipe()
		// A server that waits for the body does so for twice as long.
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, l.URL("http")+"/fleet.v1.FleetService/X", body)
		r.Header.Set("Content-Type", content)
		a, err := newClient(t, "").Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(a.Body)
		a.Body.Close()
		writer.Close()
		if a.StatusCode != http.StatusUnauthorized || !strings.Contains(string(answer), want) {
			t.Errorf("%s: %d %s", content, a.StatusCode, answer)
		}
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
	go func() {
		ended <- l.Serve(ctx, server.NewHTTP(handler, server.HTTPOptions{Logger: discard, Drain: time.Hour}).Serve)
	}()
	client := newClient(t, "")
	answer := make(chan string, 1)
	go func() {
		defer close(answer) // also when there is none
		_, body := get(t, client, l.URL("http"), nil)
		answer <- body
	}()
	<-entered
	cancel()
	for { // it drains as soon as nobody is let in any more
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Address())
		if err != nil {
			break
		}
		_ = c.Close()
	}
	close(release)
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
