package agent

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/clock"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

const (
	// callTimeout bounds one call, the connection that it may need included.
	callTimeout = 15 * time.Second
	// bufferSize is that of a connection's buffers: a heartbeat is a few hundred bytes, a hardware
	// report a few KiB.
	bufferSize = 4 << 10
	// windowSize is fixed, which keeps gRPC from measuring the connection to find a better one.
	windowSize = 64 << 10
	// maxAnswer bounds an answer: an install request with its first-boot data and certificates.
	maxAnswer = 1 << 20
)

// link is the agent's connection to the control plane. The first call connects, and so does the
// first one after drop. Only one goroutine uses it.
type link struct {
	endpoint string
	options  []grpc.DialOption
	conn     *grpc.ClientConn
	client   agentv1.AgentCallbackClient
	// now is the time by which certificates are judged.
	now func() time.Time
}

// newLink prepares the connection that the state describes; dial may be nil.
func newLink(
	state *agentv1.AgentState, version string, dial func(ctx context.Context, address string) (net.Conn, error),
) (*link, error) {
	config, err := tlsConfig(state)
	if err != nil {
		return nil, err
	}
	if dial == nil {
		dialer := &net.Dialer{Timeout: callTimeout, KeepAlive: -1}
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}
	}
	return &link{endpoint: state.GetInit().GetEndpoint(), now: config.Time, options: []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(dial),
		grpc.WithUserAgent("ironherd-agent/" + version),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy(), grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: callTimeout}),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
		grpc.WithStaticStreamWindowSize(windowSize), grpc.WithStaticConnWindowSize(windowSize),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	}}, nil
}

// tlsConfig makes a self-signed certificate of the agent's key and trusts the certificates of the
// takeover message. The certificate says nothing but the key: the control plane compares that with
// what it recorded at the takeover.
func tlsConfig(state *agentv1.AgentState) (*tls.Config, error) {
	key, err := takeover.PrivateKey(state)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: state.GetInit().GetMachineId()},
		NotBefore:    time.Unix(0, 0),
		// RFC 5280, section 4.1.2.5: no expiry
		NotAfter:    time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the agent's certificate: %w", err)
	}
	host, _, err := net.SplitHostPort(state.GetInit().GetEndpoint())
	if err != nil {
		return nil, fmt.Errorf("the endpoint is not host:port: %w", err)
	}
	certificate := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		Time:       clock.NotBefore(state.GetInit().GetSentAt()),
		// Not Certificates: those would be held back from a server that names the authorities it likes.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil },
	}
	if ca := state.GetInit().GetCaCertificate(); len(ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("the CA certificate of the takeover message cannot be read")
		}
	}
	return config, nil
}

// heartbeat makes one call.
func (l *link) heartbeat(ctx context.Context, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
	if l.conn == nil {
		conn, err := grpc.NewClient("passthrough:///"+l.endpoint, l.options...)
		if err != nil {
			return nil, fmt.Errorf("prepare the connection: %w", err)
		}
		l.conn, l.client = conn, agentv1.NewAgentCallbackClient(conn)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return l.client.Heartbeat(ctx, request)
}

// drop closes the connection; the next call makes a new one.
func (l *link) drop() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn, l.client = nil, nil
	}
}
