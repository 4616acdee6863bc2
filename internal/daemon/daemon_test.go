package daemon_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/internal/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// settings returns a control plane with an empty host list.
func settings(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"agent": "an agent", "hosts.yaml": "hosts: []\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Now().Add(-time.Hour) // nobody writes it any more
	if err := os.Chtimes(filepath.Join(dir, "hosts.yaml"), at, at); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Dir = filepath.Join(dir, "herd")
	c.AgentAPI.Listen, c.AgentAPI.Endpoint = "127.0.0.1:0", "127.0.0.1:0"
	c.OperatorAPI.Listen = "127.0.0.1:0"
	c.Initializer.AgentExecutable = filepath.Join(dir, "agent")
	p := config.NewProvider("rack", builtin.Static)
	p.Static.Path = filepath.Join(dir, "hosts.yaml")
	c.Providers = []config.Provider{p}
	c.DrainTimeout = time.Minute
	c.Resolve(dir)
	return c
}

func open(t *testing.T, c config.Config) *daemon.Daemon {
	t.Helper()
	d, err := daemon.Open(t.Context(), c, daemon.Options{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// start runs the daemon until stop is called, which returns what Run did.
func start(t *testing.T, d *daemon.Daemon) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, nil) }()
	t.Cleanup(cancel)
	return func() error {
		cancel()
		return <-ended
	}
}

// overSocket is an HTTP client of the operators' socket.
func overSocket(t *testing.T, d *daemon.Daemon) *http.Client {
	t.Helper()
	path := strings.TrimPrefix(d.Addresses().Socket, "unix://")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// create makes a token with the role's name and returns it.
func create(t *testing.T, c config.Config, role token.Role) string {
	t.Helper()
	text, _, err := token.Create(c.OperatorAPI.TokensFile, string(role), role, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// overTLS is an HTTP client that trusts the authority which the control plane leaves for callers,
// and no other. It shows the token, if there is one.
func overTLS(t *testing.T, c config.Config, text string) *http.Client {
	t.Helper()
	authority, err := os.ReadFile(filepath.Join(c.Dir, config.OperatorCAName))
	if err != nil || strings.Contains(string(authority), "PRIVATE") {
		t.Fatalf("the authority: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: withToken{transport, text}}
}

// withToken shows a token with each request.
type withToken struct {
	*http.Transport
	text string
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.text != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+w.text)
	}
	return w.Transport.RoundTrip(r)
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	// A connection over TCP on which nobody is admitted in time is cut.
	for tries := 1; err != nil && tries < 5 && request.URL.Scheme == "https"; tries++ {
		response, err = client.Do(request)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// await asks until the answer has the status that is wanted, and these words; a change may be
// noticed after seconds. On a busy host something else may be unwell before. The listeners answer
// while the parts are still being started.
func await(t *testing.T, client *http.Client, url string, want int, words string) {
	t.Helper()
	var code int
	var body string
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < 2*time.Minute; <-tick.C {
		if code, body = get(t, client, url); code == want && strings.Contains(body, words) {
			return
		}
	}
	t.Errorf("%s: no answer %d with %q; the last one was %d, %.300s", url, want, words, code, body)
}

func TestServesOperators(t *testing.T) {
	t.Parallel()
	c := settings(t)
	d := open(t, c)
	stop := start(t, d)
	client := overSocket(t, d)
	api := fleetv1connect.NewFleetServiceClient(client, "http://herd")

	version, err := api.GetVersion(t.Context(), &fleetv1.GetVersionRequest{})
	if err != nil || version.GetVersion() != "v1" || version.GetDatabase() != "sqlite" || version.GetSchema() == 0 {
		t.Errorf("version: %v, %v", version, err)
	}
	providers, err := api.ListProviders(t.Context(), &fleetv1.ListProvidersRequest{})
	if err != nil || len(providers.GetProviders()) != 1 || providers.GetProviders()[0].GetName() != "rack" {
		t.Errorf("providers: %v, %v", providers, err)
	}
	url := d.Addresses().OperatorURL
	overTCP := overTLS(t, c, "")
	await(t, client, "http://herd/readyz", http.StatusOK, "")
	viewer := overTLS(t, c, create(t, c, token.Viewer))
	for path, want := range map[string]string{
		"/healthz": `"status":"ok"`, "/readyz": `"status":"ok"`, "/metrics": "ironherd_fleet_up 1", "/": "<html",
	} {
		await(t, viewer, url+path, http.StatusOK, want)
		if code, body := get(t, overTCP, url+path); (code == http.StatusUnauthorized) == (len(path) > 2 && path[len(path)-1] == 'z') {
			t.Errorf("%s without a token: %d, %.300s", path, code, body)
		}
	}
	scraper := overTLS(t, c, create(t, c, token.Metrics))
	code, metrics := get(t, scraper, url+"/metrics")
	if code != http.StatusOK {
		t.Errorf("metrics with a token for them: %d", code)
	}
	for _, none := range []string{`certificate_faulty{listener="agent-api"} 0`, `certificate_faulty{listener="operator-api"} 0`, `database_faults 0`} {
		if !strings.Contains(metrics, "\nironherd_"+none+"\n") {
			t.Errorf("missing: %s", none)
		}
	}
	if code, _ := get(t, scraper, url+"/"); code != http.StatusForbidden {
		t.Errorf("the page with a token for metrics: %d", code)
	}
	if _, err := fleetv1connect.NewFleetServiceClient(viewer, url).RetryMachine(t.Context(), &fleetv1.RetryMachineRequest{Machine: "x"}); err == nil ||
		!strings.Contains(err.Error(), "token viewer has the role viewer, and this needs the role operator") {
		t.Errorf("a change by a viewer: %v", err)
	}
	if _, err := fleetv1connect.NewFleetServiceClient(overTCP, url, connect.WithGRPC()).GetVersion(t.Context(), &fleetv1.GetVersionRequest{}); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("gRPC without a token: %v", err)
	}
	if _, err := fleetv1connect.NewFleetServiceClient(viewer, url, connect.WithGRPC()).GetVersion(t.Context(), &fleetv1.GetVersionRequest{}); err != nil {
		t.Errorf("gRPC over TLS: %v", err)
	}
	for _, tcp := range []*http.Client{overTCP, viewer, scraper} {
		tcp.CloseIdleConnections()
	}
	client.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Errorf("an orderly end: %v", err)
	}
}

// TestComesBack is a restart: the same directory, the same keys.
func TestComesBack(t *testing.T) {
	t.Parallel()
	c := settings(t)
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(c.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	var before []string
	names := []string{"ssh_key", "agent-ca.pem", "agent-server.pem", "operator-ca.pem", "operator-server.pem", "operator-ca.crt"}
	d := open(t, c)
	if err := start(t, d)(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		before = append(before, read(name))
		if info, err := os.Stat(filepath.Join(c.Dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	open(t, c)
	for i, name := range names {
		if read(name) != before[i] {
			t.Errorf("%s was made anew", name)
		}
	}
}

// TestClosesWhatWasOpen starts over a directory and a database that others could read.
func TestClosesWhatWasOpen(t *testing.T) {
	t.Parallel()
	c := settings(t)
	if err := open(t, c).Close(); err != nil {
		t.Fatal(err)
	}
	want := map[string]os.FileMode{c.Dir: 0o700, c.Database.Path: 0o600, c.Database.Path + ".lock": 0o600, c.Database.Path + ".identity": 0o600}
	for path := range want {
		if err := os.Chmod(path, want[path]|0o055); err != nil {
			t.Fatal(err)
		}
	}
	open(t, c)
	for _, suffix := range []string{"-wal", "-shm"} { // SQLite gives them the mode of the database
		want[c.Database.Path+suffix] = 0o600
	}
	for path, mode := range want {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: mode %o, %v", filepath.Base(path), info.Mode().Perm(), err)
		}
	}
}

// TestClosesConnectionsToProviders: a connection over which a provider has answered is kept for the
// next call, and Close ends it.
func TestClosesConnectionsToProviders(t *testing.T) {
	t.Parallel()
	states := make(chan http.ConnState, 1000)
	list := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hosts: []\n")
	}))
	list.Config.ConnState = func(_ net.Conn, state http.ConnState) { states <- state }
	list.Start()
	defer list.Close()
	late := time.After(time.Minute) // the provider's client would keep them for longer
	kept, c := 0, settings(t)
	follow := func(until func(http.ConnState) bool) {
		t.Helper()
		for {
			select {
			case state := <-states:
				switch state {
				case http.StateNew:
					kept++
				case http.StateClosed:
					kept--
				}
				if until(state) {
					return
				}
			case <-late:
				t.Fatalf("%d connections are kept", kept)
			}
		}
	}
	c.Providers[0].Static.Path, c.Providers[0].Static.URL = "", list.URL
	d, err := daemon.Open(t.Context(), c, daemon.Options{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	stop := start(t, d)
	follow(func(state http.ConnState) bool { return state == http.StateIdle })
	if err := errors.Join(stop(), d.Close()); err != nil {
		t.Fatal(err)
	}
	follow(func(http.ConnState) bool { return kept == 0 })
}

// TestRefusesWhatOthersCanRead starts with each key and token open to others.
func TestRefusesWhatOthersCanRead(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ssh_key", "agent-ca.pem", "agent-server.pem", "operator-ca.pem", "operator-server.pem"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := settings(t)
			if err := open(t, c).Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(c.Dir, name)
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
			second, err := daemon.Open(t.Context(), c, daemon.Options{})
			if err == nil {
				t.Fatal("opened", second.Close())
			}
			if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), path+" is open to others (mode 0644)") {
				t.Errorf("got %s: %v", fleet.KindOf(err), err)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	first := settings(t)
	d := open(t, first)
	for name, test := range map[string]struct {
		change func(c *config.Config)
		kind   fleet.Kind
		want   string
	}{
		"port in use": {
			func(c *config.Config) { c.AgentAPI.Listen = d.Addresses().AgentAPI },
			fleet.KindInUse, "agent API: address " + d.Addresses().AgentAPI + " is in use by another process: stop that process, or set agent_api.listen to another address",
		},
		"port of operators in use": {
			func(c *config.Config) { c.OperatorAPI.Listen = d.Addresses().AgentAPI },
			fleet.KindInUse, "operator API: address " + d.Addresses().AgentAPI + " is in use by another process: stop that process, or set operator_api.listen to another address",
		},
		"socket in use": {
			func(c *config.Config) { c.OperatorAPI.Socket = first.OperatorAPI.Socket },
			fleet.KindInUse, "is in use by another process: stop that process first",
		},
		"database in use": {
			func(c *config.Config) { c.Database.Path = first.Database.Path },
			fleet.KindInUse, "database " + first.Database.Path + " is in use by another process",
		},
		"another program's database": {
			func(c *config.Config) {
				c.Database.Path = filepath.Join(t.TempDir(), "songs")
				foreign(t, c.Database.Path, "WAL")
			},
			fleet.KindInvalid, "it belongs to another program (it has a table song)",
		},
		"unreadable database": {
			func(c *config.Config) { c.Database.Path = c.Initializer.AgentExecutable },
			fleet.KindInvalid, "is not a usable SQLite database",
		},
		"bad key": {
			func(c *config.Config) { c.SSH.KeyFile = c.Initializer.AgentExecutable },
			fleet.KindInvalid, "not a private key",
		},
		"bad tokens": {
			func(c *config.Config) { c.OperatorAPI.TokensFile = c.Dir },
			fleet.KindInvalid, "operator_api.tokens_file: ",
		},
		"an address that this host does not have yet": {
			func(c *config.Config) { c.AgentAPI.Listen = "192.0.2.1:1234" },
			fleet.KindTemporary, "agent API: cannot listen on 192.0.2.1:1234: this host does not have that address",
		},
		"a key that is not there yet": {
			func(c *config.Config) {
				c.OperatorAPI.TLS.Certificate, c.OperatorAPI.TLS.Key = c.Initializer.AgentExecutable, "/nowhere/key"
			},
			fleet.KindTemporary, "the file /nowhere/key cannot be read: no such file or directory",
		},
		"a password that is not there yet": {
			func(c *config.Config) {
				c.Database.URL, c.Database.PasswordFile = "postgres://ironherd@localhost/ironherd", "/nowhere/password"
			},
			fleet.KindTemporary, "database.password_file: the file /nowhere/password cannot be read: no such file or directory",
		},
		"no agent": {
			func(c *config.Config) { c.Initializer.AgentExecutable = "/nowhere" },
			fleet.KindInvalid, "agent_executable: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := settings(t)
			test.change(&c)
			second, err := daemon.Open(t.Context(), c, daemon.Options{Logger: slog.New(slog.DiscardHandler)})
			if err == nil {
				t.Fatal("opened", second.Close())
			}
			if fleet.KindOf(err) != test.kind || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %s: %v", fleet.KindOf(err), err)
			}
			if strings.Contains(err.Error(), "an agent") {
				t.Error("the content of a secret is shown")
			}
		})
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	c := settings(t)
	c.Roles = []fleet.Role{fleet.RoleJanitor, fleet.RoleUpdater}
	d := open(t, c)
	if got := (daemon.Addresses{Endpoint: "127.0.0.1:0"}); d.Addresses() != got {
		t.Errorf("it listens: %+v", d.Addresses())
	}
	if err := start(t, d)(); err != nil {
		t.Error(err)
	}
}

func TestDatabaseCommands(t *testing.T) {
	t.Parallel()
	c := settings(t)
	if _, err := daemon.CheckDatabase(t.Context(), c); fleet.KindOf(err) != fleet.KindNotFound || !strings.Contains(err.Error(), "there is no database at") {
		t.Errorf("no database: %v", err)
	}
	d := open(t, c)
	if _, err := daemon.CheckDatabase(t.Context(), c); fleet.KindOf(err) != fleet.KindInUse {
		t.Errorf("in use: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if found, err := daemon.CheckDatabase(t.Context(), c); err != nil || len(found) != 0 {
		t.Errorf("a new database: %v, %v", found, err)
	}
	if from, to, err := daemon.Migrate(t.Context(), c); err != nil || from != to || to == 0 {
		t.Errorf("migrate: %d to %d, %v", from, to, err)
	}
	if r, err := daemon.AcceptRestore(t.Context(), c, "test", true); err != nil || r.Accepted {
		t.Errorf("accept: %+v, %v", r, err)
	}
	copied := c
	copied.Database.Path = filepath.Join(t.TempDir(), "copy.db")
	content, err := os.ReadFile(c.Database.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied.Database.Path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := daemon.AcceptRestore(t.Context(), copied, "test", true); err != nil || !r.Accepted || r.Evidence == "" {
		t.Errorf("a copy: %+v, %v", r, err)
	}
	if r, err := daemon.AcceptRestore(t.Context(), copied, "test", true); err != nil || r.Accepted {
		t.Errorf("once more: %+v, %v", r, err)
	}
}
