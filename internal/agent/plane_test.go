package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

const machineID = "0190a0a0-0000-7000-8000-000000000001"

// authority is a self-signed server certificate for 127.0.0.1, valid in the fake time of a bubble
// (2000) too.
type authority struct {
	certificate tls.Certificate
	pem         []byte
}

func newAuthority(tb testing.TB) authority {
	tb.Helper()
	return newAuthorityFrom(tb, time.Unix(0, 0))
}

// newAuthorityFrom is one whose certificate is not valid before an instant.
func newAuthorityFrom(tb testing.TB, notBefore time.Time) authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "plane"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: notBefore, NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return authority{
		certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem:         pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}
}

// plane is a control plane's agent API that does what a test says.
type plane struct {
	agentv1.UnimplementedAgentCallbackServer
	authority authority
	server    *grpc.Server

	mu     sync.Mutex
	calls  []call
	answer func(n int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error)
}

// call is a heartbeat that arrived.
type call struct {
	*agentv1.HeartbeatRequest
	at  time.Time
	key ed25519.PublicKey
}

func newPlane(tb testing.TB, authority authority) *plane {
	tb.Helper()
	p := &plane{authority: authority}
	p.server = grpc.NewServer(grpc.ReadBufferSize(bufferSize), grpc.WriteBufferSize(bufferSize), grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{authority.certificate}, ClientAuth: tls.RequireAnyClientCert,
		ClientCAs: x509.NewCertPool(), // names no authority that the agent could have
	})))
	agentv1.RegisterAgentCallbackServer(p.server, p)
	tb.Cleanup(p.server.Stop)
	return p
}

func (p *plane) Heartbeat(ctx context.Context, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
	caller, _ := peer.FromContext(ctx)
	key, _ := caller.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call{HeartbeatRequest: proto.CloneOf(request), at: time.Now(), key: key})
	if p.answer == nil {
		return &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}, nil
	}
	return p.answer(len(p.calls)-1, request)
}

// seen returns the heartbeats so far.
func (p *plane) seen() []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]call(nil), p.calls...)
}

func refuse() (*agentv1.HeartbeatResponse, error) {
	return nil, status.Error(codes.PermissionDenied, "agent not admitted")
}

// host is a machine made of files.
type host struct {
	root string
}

func newHost(tb testing.TB) *host {
	tb.Helper()
	h := &host{root: tb.TempDir()}
	h.write(tb, "proc/sys/kernel/random/boot_id", "boot-1\n")
	h.write(tb, "proc/cpuinfo", "processor : 0\nvendor_id : Test\n")
	h.write(tb, "sys/class/block/vda/size", "16384\n") // 8 MiB
	h.write(tb, "sys/class/block/vda/device/x", "")
	h.write(tb, "dev/vda", "")
	h.write(tb, "proc/sysrq-trigger", "")
	return h
}

func (h *host) write(tb testing.TB, path, content string) {
	tb.Helper()
	full := filepath.Join(h.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
}

func initMessage(generation int64, authority authority) *agentv1.TakeoverInit {
	return &agentv1.TakeoverInit{
		MachineId: machineID, TakeoverGeneration: generation, Endpoint: "127.0.0.1:1", CaCertificate: authority.pem,
		HeartbeatIntervalMs: 30_000,
	}
}

// prepare takes the host over without starting anything, and returns the agent's key.
func (h *host) prepare(tb testing.TB, init *agentv1.TakeoverInit) ed25519.PublicKey {
	tb.Helper()
	data, err := proto.Marshal(init)
	if err != nil {
		tb.Fatal(err)
	}
	response := takeover.Run(tb.Context(), readerOf(data), takeover.Options{
		Root: h.root, Start: func(context.Context) error { return nil },
	})
	if response.GetSuccess() == nil {
		tb.Fatal(response.GetFailure().GetMessage())
	}
	return response.GetSuccess().GetPublicKey()
}

// state returns what the host remembers.
func (h *host) state(tb testing.TB) *agentv1.AgentState {
	tb.Helper()
	state, err := takeover.NewStore(h.root).Load()
	if err != nil {
		tb.Fatal(err)
	}
	return state
}

// change changes what the host remembers.
func (h *host) change(tb testing.TB, change func(*agentv1.AgentState)) {
	tb.Helper()
	_, err := takeover.NewStore(h.root).Update(h.state(tb).GetInit(), func(state *agentv1.AgentState) error {
		change(state)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// fixture runs an agent on the host against the plane over memory, and ends both with stop.
type fixture struct {
	t *testing.T
	*plane
	host    *host
	options Options
	stop    context.CancelFunc
	done    chan error
}

func (f *fixture) start(tb testing.TB) {
	tb.Helper()
	listener := bufconn.Listen(64 << 10)
	go func() { _ = f.server.Serve(listener) }()
	if f.options.Dial == nil {
		f.options.Dial = func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
	}
	f.options.Root, f.options.Version, f.options.Logger = f.host.root, "v1", slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(tb.Context())
	f.stop, f.done = stop, make(chan error, 1)
	go func() { f.done <- Run(ctx, f.options) }()
}

// end stops the agent and the plane.
func (f *fixture) end(tb testing.TB) {
	tb.Helper()
	f.stop()
	if err := <-f.done; err != nil {
		tb.Error(err)
	}
	f.server.Stop()
}
