package agentapi_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var discard = slog.New(slog.DiscardHandler)

const providerName = fleet.ProviderName("lab")

// fixture is a control plane's agent API, on loopback with real TLS, over a real database.
type fixture struct {
	t            testing.TB
	db           *bmdb.DB
	counter      *counter
	certificates *server.Certificates
	config       agentapi.Config
	api          *agentapi.Server
	address      string
	// machinesAt is the address of all machines.
	machinesAt netip.Addr
	stop       func() error
}

// counter counts transactions, and their statements, by the kind of the transaction.
type counter struct {
	mu           sync.Mutex
	transactions map[string]int
	statements   map[string]int
}

func (c *counter) Transaction(kind string, _ time.Duration, statements int, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.transactions[kind]++
	c.statements[kind] += statements
}

func (c *counter) Outcome(fleet.Process, string, time.Duration) {}

func (c *counter) Happened(bmdb.Happening, string) {}

func (c *counter) of(kinds ...string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := 0
	for _, k := range kinds {
		sum += c.statements[k]
	}
	return sum
}

// took returns how many transactions of a kind there were.
func (c *counter) took(kind string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.transactions[kind]
}

func newFixture(tb testing.TB, adapt func(*agentapi.Config, *fleet.Policy)) *fixture {
	tb.Helper()
	return newFixtureOn(tb, sqlitetest.Open(tb, filepath.Join(tb.TempDir(), "bmdb"), sqlite.Options{Logger: discard}), adapt)
}

func newFixtureOn(tb testing.TB, engine bmdb.Engine, adapt func(*agentapi.Config, *fleet.Policy)) *fixture {
	tb.Helper()
	h := newIdleFixture(tb, engine, adapt)
	h.start()
	return h
}

// newIdleFixture is a fixture that serves nobody yet.
func newIdleFixture(tb testing.TB, engine bmdb.Engine, adapt func(*agentapi.Config, *fleet.Policy)) *fixture {
	tb.Helper()
	h := &fixture{t: tb, machinesAt: netip.MustParseAddr("127.0.0.1"), counter: &counter{transactions: map[string]int{}, statements: map[string]int{}}}
	var err error
	h.db, err = bmdb.Open(tb.Context(), engine, bmdb.Options{Logger: discard, Observer: h.counter})
	h.must(err)
	tb.Cleanup(func() { h.must(h.db.Close()) })
	h.must(h.db.RegisterProvider(tb.Context(), providerName, "static", 0))
	h.certificates, err = server.OpenCertificates(server.ForAgents, tb.TempDir(), []string{"127.0.0.1"}, discard)
	h.must(err)
	config := agentapi.DefaultConfig()
	config.Endpoint, config.FlushInterval = "127.0.0.1:1", 20*time.Millisecond
	config.CallRate, config.ReportRate = fleet.Rate{Every: time.Millisecond, Burst: 1000}, fleet.Rate{Every: time.Millisecond, Burst: 1000}
	config.AdmitWithin = time.Hour // a busy host takes long to admit
	policy := fleet.DefaultPolicy()
	if adapt != nil {
		adapt(&config, &policy)
	}
	h.must(config.Validate())
	h.config = config
	_, err = h.db.SetPolicy(tb.Context(), policy)
	h.must(err)
	h.api = agentapi.New(h.db, config, agentapi.Options{Logger: discard, Certificates: h.certificates})
	return h
}

func (h *fixture) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// start serves; it can be called again after stop.
func (h *fixture) start() {
	h.t.Helper()
	l, err := server.Listen(h.t.Context(), "127.0.0.1:0")
	h.must(err)
	h.address = l.Address()
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- l.Serve(ctx, h.api.Serve) }()
	h.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	h.t.Cleanup(func() { h.must(h.stop()) })
}

// host is a machine with the key of its agent.
type host struct {
	id         fleet.MachineID
	generation fleet.TakeoverGeneration
	key        ed25519.PrivateKey
}

func (h *fixture) session() *bmdb.Session {
	h.t.Helper()
	s, err := h.db.StartSession(h.t.Context(), bmdb.SessionOptions{Component: "test", Host: "here", Lease: time.Minute})
	h.must(err)
	return s
}

// claim takes what is due of a process, as a loop would.
func (h *fixture) claim(s *bmdb.Session, process fleet.Process) []*bmdb.Work {
	h.t.Helper()
	c, err := s.Claim(h.t.Context(), bmdb.ClaimRequest{Process: process, Limit: 100})
	h.must(err)
	return c.Works
}

// machines brings up that many machines with an agent each; install may be nil.
func (h *fixture) machines(n int, install *fleet.InstallRequest) []*host {
	h.t.Helper()
	ctx, s := h.t.Context(), h.session()
	works := h.claim(s, fleet.ProcessProvision)
	if len(works) != 1 {
		h.t.Fatalf("%d provision works are due", len(works))
	}
	intents := make([]bmdb.NewIntent, n)
	for i := range intents {
		id := fleet.NewMachineID()
		intents[i] = bmdb.NewIntent{Capacity: fleet.CapacityID("slot-" + string(id)), Machine: id, Token: fleet.NewToken(), Install: install}
	}
	var opened []fleet.Intent
	h.must(works[0].Note(ctx, bmdb.OpenIntents(0, intents, &opened)))
	var changes []bmdb.Change
	for _, i := range opened {
		changes = append(changes, bmdb.IntentCalled(i.Machine), bmdb.CloseIntentProvided(i.Machine, fleet.ProviderID(i.Capacity), fleet.Provided{
			Status: fleet.ProviderStatusActive, Address: h.machinesAt, Capacity: i.Capacity,
		}))
	}
	h.must(works[0].Finish(ctx, changes...))
	hosts := make([]*host, 0, n)
	for _, w := range h.claim(s, fleet.ProcessAgentStart) {
		hosts = append(hosts, h.takeover(w))
	}
	if len(hosts) != n {
		h.t.Fatalf("%d of %d machines wanted an agent", len(hosts), n)
	}
	h.must(s.Close(ctx, "done"))
	return hosts
}

// takeover puts an agent in charge.
func (h *fixture) takeover(w *bmdb.Work) *host {
	h.t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	h.must(err)
	m := &host{id: w.Subject.Machine, key: key}
	h.must(w.Note(h.t.Context(), bmdb.MintTakeover(0, &m.generation)))
	h.must(w.Finish(h.t.Context(), bmdb.SetAgentStarted(fleet.AgentStarted{
		TakeoverGeneration: m.generation, PublicKey: key.Public().(ed25519.PublicKey), AgentVersion: "test", BootID: "boot-1",
	})))
	return m
}

// dial connects as an agent with this key; without one, it shows no certificate.
func (h *fixture) dial(key ed25519.PrivateKey) agentv1.AgentCallbackClient {
	h.t.Helper()
	return h.dialNamed("", key)
}

// dialNamed is dial with a certificate that names its owner, as those of agents name their machine.
func (h *fixture) dialNamed(name string, key ed25519.PrivateKey) agentv1.AgentCallbackClient {
	h.t.Helper()
	return agentv1.NewAgentCallbackClient(h.connect(name, key))
}

// connect returns the connection of dialNamed.
func (h *fixture) connect(name string, key ed25519.PrivateKey, options ...grpc.DialOption) *grpc.ClientConn {
	h.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(h.certificates.Authority())
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	if key != nil {
		config.Certificates = []tls.Certificate{selfSigned(h.t, name, key)}
	}
	conn, err := grpc.NewClient(h.address, append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))...)
	h.must(err)
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

func selfSigned(tb testing.TB, name string, key ed25519.PrivateKey) tls.Certificate {
	tb.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// beat is a heartbeat of the host.
func (m *host) beat() *agentv1.HeartbeatRequest {
	return &agentv1.HeartbeatRequest{MachineId: string(m.id), TakeoverGeneration: int64(m.generation), BootId: "boot-1", AgentVersion: "test"}
}

func (h *fixture) heartbeat(client agentv1.AgentCallbackClient, req *agentv1.HeartbeatRequest) *agentv1.HeartbeatResponse {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Minute) // one that waits for ever fails
	defer cancel()
	resp, err := client.Heartbeat(ctx, req)
	h.must(err)
	return resp
}

// known makes all known of an agent that its later heartbeats would ask the database for: until its
// hardware is known, a sweep has it look for an install.
func (h *fixture) known(client agentv1.AgentCallbackClient, m *host) {
	h.t.Helper()
	h.heartbeat(client, m.beat())
	key, _ := m.key.Public().(ed25519.PublicKey)
	identity := bmdb.AgentIdentity{Machine: m.id, TakeoverGeneration: m.generation, PublicKey: key}
	h.must(h.db.RecordHardware(h.t.Context(), identity, []byte("r"), nil))
	h.heartbeat(client, m.beat())
}

func (h *fixture) record(m *host) fleet.Record {
	h.t.Helper()
	r, err := h.db.Machine(h.t.Context(), m.id)
	h.must(err)
	return r
}

// details returns what history says of the events of a kind.
func (h *fixture) details(m *host, event fleet.Event) (details []string) {
	h.t.Helper()
	rows, err := h.db.History(h.t.Context(), m.id, 1000)
	h.must(err)
	for _, row := range rows {
		if row.Event == event {
			details = append(details, row.Detail)
		}
	}
	return details
}

// until waits for what happens in the background.
func (h *fixture) until(what string, done func() bool) {
	h.t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			h.t.Fatalf("waited in vain for: %s", what)
		}
	}
}

func image() *fleet.InstallRequest {
	return &fleet.InstallRequest{
		Actor: "test", Image: fleet.Image{URL: "http://127.0.0.1/image", Digest: "sha256:" + string(make64()), Compression: fleet.CompressionZstd, Size: 1 << 20, Kexec: true, Architecture: fleet.ArchitectureARM64},
		RootDisk: fleet.DiskSelector{Pick: fleet.PickSmallest}, FirstBootData: []byte("hello"),
	}
}

func make64() []byte {
	b := make([]byte, 64)
	for i := range b {
		b[i] = 'a'
	}
	return b
}

func report() *agentv1.HardwareReport {
	return &agentv1.HardwareReport{System: &agentv1.System{Vendor: "ACME", Serial: "S\x001\x1b[31m"}, Memory: &agentv1.Memory{UsableBytes: 1 << 30}}
}

// openBMDB opens a database for a test that needs no fixture, and closes it in the end.
func openBMDB(t *testing.T) *bmdb.DB {
	t.Helper()
	db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}), bmdb.Options{Logger: discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}
