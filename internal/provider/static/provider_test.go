package static

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hostKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBSbaqp5NGX0RWLDfBUMYvpV9WQnYj1tXnN1jx4vqJwe"

const fiveHosts = `# our rack
hosts:
  - {id: e, address: 192.0.2.5}
  - id: b
    address: 192.0.2.2
    location: rack 1
    host_key: ` + hostKey + ` root@b
  - {id: a, address: "2001:db8::1"}
  - {id: d, address: 192.0.2.4}
  - {id: "7", address: 192.0.2.7}
`

func writeList(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hosts.yaml")
	rewrite(t, path, content)
	return path
}

// rewrite writes a list anew, as somebody does who has ended long ago.
func rewrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-time.Hour) // another one each time
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func newProvider(t *testing.T, config Config) *Provider {
	t.Helper()
	config.InFlight = 1
	p, err := New(config, provider.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.remote.pause = 0 // real servers take real time
	t.Cleanup(p.CloseIdleConnections)
	return p
}

func fromFile(t *testing.T, content string) *Provider {
	t.Helper()
	return newProvider(t, Config{Path: writeList(t, content)})
}

func harness(p *Provider) providertest.Harness {
	return providertest.Harness{
		Provider: p, Free: []fleet.CapacityID{"a", "b", "d", "e"}, Absent: "nobody", AbsentCapacity: "nobody",
	}
}

func TestConformanceFromAFile(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		t.Helper()
		path := writeList(t, fiveHosts)
		h := harness(newProvider(t, Config{Path: path}))
		h.Break = map[fleet.Kind]func(){fleet.KindTemporary: func() {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}}
		h.Remove = func(id fleet.ProviderID) {
			lines := strings.SplitAfter(fiveHosts, "\n")
			kept := ""
			for _, line := range lines {
				if !strings.Contains(line, "{id: "+string(id)+",") {
					kept += line
				}
			}
			rewrite(t, path, kept)
		}
		return h
	})
}

func TestConformanceFromAURL(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		t.Helper()
		var status atomic.Int64
		stalled := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch s := status.Load(); s {
			case 0:
				fmt.Fprint(w, fiveHosts)
			case -1:
				select {
				case <-r.Context().Done():
				case <-stalled:
				}
			default:
				w.WriteHeader(int(s))
			}
		}))
		t.Cleanup(server.Close)
		t.Cleanup(func() { close(stalled) })
		h := harness(newProvider(t, Config{URL: server.URL + "/hosts.yaml?key=hidden"}))
		h.Stall = func() { status.Store(-1) }
		h.Break = map[fleet.Kind]func(){
			fleet.KindUnauthenticated: func() { status.Store(http.StatusUnauthorized) },
			fleet.KindForbidden:       func() { status.Store(http.StatusForbidden) },
			// A list that is not there must not make its hosts gone.
			fleet.KindInvalid: func() { status.Store(http.StatusNotFound) },
		}
		return h
	})
}

func TestEntriesSayWhatTheListSays(t *testing.T) {
	t.Parallel()
	entries, err := fromFile(t, fiveHosts).List(t.Context())
	if err != nil || len(entries) != 5 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	b := entries[2]
	if b.ID != "b" || b.Capacity != "b" || b.Address.String() != "192.0.2.2" || b.Location != "rack 1" ||
		b.Availability != fleet.AvailabilityPossiblyUsed || b.Status != fleet.ProviderStatusActive ||
		len(b.HostKeys) != 1 || b.HostKeys[0] != hostKey {
		t.Errorf("%+v", b)
	}
}

func TestAFaultOfOneHostConcernsItAlone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ host, says string }{
		"no id":              {`{address: 192.0.2.1}`, "id must be"},
		"id with a slash":    {`{id: a/b, address: 192.0.2.1}`, "id must be"},
		"no address":         {`{id: x}`, "address must be"},
		"host name":          {`{id: x, address: node3.example}`, "address must be"},
		"any address":        {`{id: x, address: 0.0.0.0}`, "cannot be a host's"},
		"zone":               {`{id: x, address: 'fe80::1%eth0'}`, `address "fe80::1%eth0" has a zone, which is an interface of one control plane: use`},
		"jump host's zone":   {`{id: x, address: 10.0.0.1, jump: {address: 'fe80::1%eth0', host_key: x}}`, `jump: address "fe80::1%eth0" has a zone`},
		"unknown key":        {`{id: x, address: 192.0.2.1, host_kye: k}`, `"host_kye" is not known`},
		"key twice":          {`{id: x, address: 192.0.2.1, address: 192.0.2.9}`, "given twice"},
		"list for a text":    {`{id: x, address: [192.0.2.1]}`, "must be a text"},
		"text for a host":    {`x`, "a host is described by"},
		"bad port":           {`{id: x, address: 192.0.2.1, port: 65536}`, "port must be"},
		"port of words":      {`{id: x, address: 192.0.2.1, port: ssh}`, "port must be"},
		"bad host name":      {`{id: x, address: 192.0.2.1, hostname: "a b"}`, "hostname must"},
		"labels as a list":   {`{id: x, address: 192.0.2.1, labels: [a]}`, "labels are written"},
		"too many labels":    {`{id: x, address: 192.0.2.1, labels: {` + strings.Repeat("a: b, ", 20) + `a: "b c"}}`, "a host has at most 20 labels"},
		"a label twice":      {`{id: x, address: 192.0.2.1, labels: {role: web, zone: a, role: database}}`, "label role is given twice"},
		"label with spaces":  {`{id: x, address: 192.0.2.1, labels: {a: "b c"}}`, "a label has"},
		"jump without key":   {`{id: x, address: 192.0.2.1, jump: {address: 192.0.2.2}}`, "jump: host_key must be set"},
		"jump by name":       {`{id: x, address: 192.0.2.1, jump: {address: bastion, host_key: x}}`, "jump: address must be"},
		"jump as a text":     {`{id: x, address: 192.0.2.1, jump: bastion}`, "a jump host is described by"},
		"broken host key":    {`{id: x, address: 192.0.2.1, host_key: ssh-ed25519 AAAA}`, "host_key must be"},
		"private host key":   {`{id: x, address: 192.0.2.1, host_key: "-----BEGIN OPENSSH PRIVATE KEY-----"}`, "host_key must be"},
		"key of another one": {`{id: x, address: 192.0.2.1, host_key: ` + strings.Replace(hostKey, "ssh-ed25519 ", "ssh-rsa ", 1) + `}`, "host_key must be"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			entries, err := fromFile(t, "hosts:\n  - {id: good, address: 192.0.2.100}\n  - "+test.host+"\n").List(t.Context())
			if err != nil || len(entries) != 2 {
				t.Fatalf("%v, %v", entries, err)
			}
			for _, entry := range entries {
				if bad := entry.ID != "good"; bad != (entry.Invalid != "") {
					t.Errorf("%+v", entry)
				} else if bad && (!strings.Contains(entry.Invalid, test.says) || !strings.Contains(entry.Invalid, "line 3")) {
					t.Errorf("it says %q", entry.Invalid)
				}
			}
		})
	}
}

func TestEverythingThatDescribesAHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, everythingThatDescribesAHost)
}

func everythingThatDescribesAHost(t *testing.T) {
	t.Helper()
	path := writeList(t, `
- {id: rack1-node3, address: 192.0.2.17}
- {id: a, hostname: db3, address: 192.0.2.17, port: 2222, user: admin, labels: {role: database, rack: "7"},
   jump: {address: "2001:db8::1", user: jump, host_key: `+hostKey+`}}
- {id: b, address: 192.0.2.17, jump: {address: 192.0.2.1, port: 2200, host_key: `+hostKey+`}}
`)
	p := newProvider(t, Config{Path: path})
	entries, err := p.List(t.Context())
	if err != nil || len(entries) != 3 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, entry := range entries {
		if entry.Invalid != "" { // one address, but not one place
			t.Errorf("%s: %s", entry.ID, entry.Invalid)
		}
	}
	if got := entries[2]; got.Hostname != "rack1-node3" || got.Access != (provider.Access{}) || got.Labels != nil {
		t.Errorf("%+v", got)
	}
	got := entries[0]
	if jump := got.Access.Jump; got.Hostname != "db3" || got.Access.Port != 2222 || got.Access.User != "admin" || !slices.Equal(got.Labels, []string{"rack=7", "role=database"}) ||
		jump == nil || jump.Address.String() != "[2001:db8::1]:22" || jump.User != "jump" || jump.HostKey != strings.Join(strings.Fields(hostKey)[:2], " ") {
		t.Errorf("%+v, %+v", got, got.Access.Jump)
	}
	if jump := entries[1].Access.Jump; jump == nil || jump.Address.String() != "192.0.2.1:2200" {
		t.Errorf("%+v", jump)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// A change counts, also one that leaves size and time as they were, while the time is new.
	at := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Get(t.Context(), "a"); err != nil || got.Hostname != "db3" {
		t.Errorf("before the change: %+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(content), "db3", "db4", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Get(t.Context(), "a"); err != nil || got.Hostname != "db4" {
		t.Errorf("after a change: %+v, %v", got, err)
	}
	rewrite(t, path, "- broken: [\n")
	if _, err := p.Get(t.Context(), "a"); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("a broken list answers from memory: %v", err)
	}
	rewrite(t, path, string(content))
	if got, err := p.Get(t.Context(), "a"); err != nil || got.Hostname != "db3" {
		t.Errorf("after it was put right: %+v, %v", got, err)
	}
}

// Thousands of questions about one host each must not fetch a list thousands of times.
func TestAURLIsNotFetchedForEachHost(t *testing.T) {
	t.Parallel()
	var fetched atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		_, _ = w.Write([]byte(fiveHosts))
	}))
	defer server.Close()
	p := newProvider(t, Config{URL: server.URL})
	for range 2 {
		entries, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 500 {
			if _, err := p.Get(t.Context(), entries[0].ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := fetched.Load(); n != 3 { // the first one is fetched twice
		t.Errorf("the list was fetched %d times", n)
	}
}

func TestDuplicatesAreNamed(t *testing.T) {
	t.Parallel()
	p := fromFile(t, "- {id: a, address: 192.0.2.1}\n- {id: b, address: 192.0.2.2}\n- {id: a, address: 192.0.2.3}\n"+
		"- {id: c, address: 192.0.2.2}\n- {id: d, address: 192.0.2.4}\n")
	entries, err := p.List(t.Context())
	if err != nil || len(entries) != 4 {
		t.Fatalf("%v, %v", entries, err)
	}
	for i, says := range []string{`lines 1 and 3: host "a" is listed twice`, `lines 2 and 4: hosts "b" and "c"`, `lines 2 and 4: hosts "b" and "c"`, ""} {
		if got := entries[i].Invalid; says == "" && got != "" || !strings.Contains(got, says) {
			t.Errorf("%s: %q", entries[i].ID, got)
		}
	}
	_, err = p.Create(t.Context(), provider.CreateRequest{Capacity: "a", Token: fleet.NewToken(), Machine: fleet.NewMachineID()})
	if fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("a host that is listed twice can be taken: %v", err)
	}
}

// TestHostsOnOneAddress: a host that names no port is not told apart from another on its address.
func TestHostsOnOneAddress(t *testing.T) {
	t.Parallel()
	const jump = "jump: {address: 192.0.2.9, host_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJYkuhBCElqTLXHJoZwrvFaOz6bKLQNwNQCcDKZWwOTQ}"
	p := fromFile(t, "- {id: a, address: 192.0.2.1}\n- {id: b, address: 192.0.2.1, port: 22}\n"+
		"- {id: c, address: 192.0.2.2, port: 22}\n- {id: d, address: 192.0.2.2, port: 23}\n"+
		"- {id: e, address: 192.0.2.3}\n- {id: f, address: 192.0.2.3, "+jump+"}\n")
	entries, err := p.List(t.Context())
	if err != nil || len(entries) != 6 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, entry := range entries {
		shared := entry.ID == "a" || entry.ID == "b"
		if strings.Contains(entry.Invalid, "same address") != shared || !shared && entry.Invalid != "" {
			t.Errorf("%s: %q", entry.ID, entry.Invalid)
		}
	}
}

func TestAHostNameIsOfOneHost(t *testing.T) {
	t.Parallel()
	// c is called by its id
	p := fromFile(t, "- {id: a, address: 192.0.2.1, hostname: db3}\n- {id: b, address: 192.0.2.2, hostname: db3}\n"+
		"- {id: c, address: 192.0.2.3}\n- {id: d, address: 192.0.2.4, hostname: c}\n"+
		"- {id: e, address: 192.0.2.5, hostname: db4}\n- {id: db4, address: 192.0.2.6, hostname: db5}\n")
	entries, err := p.List(t.Context())
	if err != nil || len(entries) != 6 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, entry := range entries {
		says := map[fleet.ProviderID]string{
			"a": `lines 1 and 2: hosts "a" and "b" have the same hostname "db3"`, "b": `lines 1 and 2: hosts "a" and "b" have the same hostname "db3"`,
			"c": `lines 3 and 4: hosts "c" and "d" have the same hostname "c"`, "d": `lines 3 and 4: hosts "c" and "d" have the same hostname "c"`,
		}[entry.ID]
		if entry.Invalid != says {
			t.Errorf("%s: %q, want %q", entry.ID, entry.Invalid, says)
		}
	}
}

func TestAnUnreadableListFailsWithItsLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, anUnreadableListFailsWithItsLine)
}

func anUnreadableListFailsWithItsLine(t *testing.T) {
	t.Helper()
	for content, says := range map[string]string{
		"":                             "it is empty",
		"hosts:\n  - id: [\n":          "line 2",
		"hosts: 7\n":                   "line 1: hosts must be a list",
		"# none\nhosts:\n":             "line 2: hosts must be a list",
		"machines: []\n":               `line 1: "machines" is not known`,
		"hosts: []\nhosts: []\n":       "line 2: hosts is given twice",
		"hosts: []\n---\nhosts: []\n":  "more than one document",
		"\nnothing\n":                  "line 2: a list of hosts is expected",
		"{}\n":                         "hosts is missing",
		"hosts: []\n---\n\t- broken\n": "line",
		"- &a {id: x}\n- *b\n":         "unknown anchor",
	} {
		entries, err := fromFile(t, content).List(t.Context())
		if entries != nil || fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%q gives %v, %v", content, entries, err)
		}
	}
	if entries, err := fromFile(t, "hosts: []\n").List(t.Context()); err != nil || len(entries) != 0 {
		t.Errorf("a list without hosts gives %v, %v", entries, err)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	entries, err := fromFile(t, `{"hosts":[{"id":"a","address":"192.0.2.1","host_key":null}]}`).List(t.Context())
	if err != nil || len(entries) != 1 || entries[0].Invalid != "" || entries[0].ID != "a" {
		t.Errorf("%+v, %v", entries, err)
	}
}

// TestAListThatIsNotThere: no call takes a 404 or 410 of the URL for an answer about a host. The
// sentence names the list and what the server said.
func TestAListThatIsNotThere(t *testing.T) {
	t.Parallel()
	for status, says := range map[int]string{http.StatusNotFound: "404 Not Found", http.StatusGone: "410 Gone"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		defer server.Close()
		p := newProvider(t, Config{URL: server.URL + "/hosts.yaml?key=hidden"})
		want := "fetch host list " + server.URL + "/hosts.yaml: the answer is " + says
		for name, call := range map[string]func() error{
			"List":         func() error { _, err := p.List(t.Context()); return err },
			"ListMachines": func() error { _, err := p.ListMachines(t.Context()); return err },
			"Get":          func() error { _, err := p.Get(t.Context(), "a"); return err },
			"FindByToken":  func() error { _, err := p.FindByToken(t.Context(), "a", "token"); return err },
			"Create": func() error {
				_, err := p.Create(t.Context(), provider.CreateRequest{Capacity: "a", Token: "token"})
				return err
			},
		} {
			if err := call(); err == nil || err.Error() != want || fleet.KindOf(err) != fleet.KindInvalid {
				t.Errorf("%s: %v (%s), want %q", name, err, fleet.KindOf(err), want)
			}
		}
	}
}

func TestErrorsHideWhatTheURLHides(t *testing.T) {
	t.Parallel()
	p := newProvider(t, Config{URL: "http://127.0.0.1:1/hosts?key=hidden"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, cancelled := p.List(ctx)
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, missing := newProvider(t, Config{URL: server.URL + "/hosts?key=hidden"}).List(t.Context())
	if err := errors.Join(cancelled, missing); strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	t.Parallel()
	err := Config{Path: "a", URL: "ftp://x", Spacing: -1}.Validate()
	for _, says := range []string{"path and url", "url must be", "spacing must", "in_flight must"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q is missing in: %v", says, err)
		}
	}
	config := DefaultConfig()
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), "path or url must be set") {
		t.Error(err)
	}
	config.URL = "https://user:hidden@lists.example/"
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), "url must be without a user") || strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
	config.URL = "http://lists.example/"
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), "url must be https") {
		t.Error(err)
	}
	config.URL = "http://127.0.0.1:80/"
	if err := config.Validate(); err != nil {
		t.Error(err)
	}
	config.Path, config.URL = "hosts.yaml", ""
	if err := config.Validate(); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(fiveHosts))
	f.Add([]byte("- {id: a, address: 192.0.2.1}\n- *x\n"))
	f.Add([]byte("hosts: [[{}], &a {id: b}, *a, ~]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, _, err := parse(data)
		if err != nil && entries != nil {
			t.Error("a list came with an error")
		}
		for _, entry := range entries {
			if entry.Invalid == "" && (entry.ID == "" || !entry.Address.IsValid()) {
				t.Errorf("accepted: %+v", entry)
			}
		}
	})
}
