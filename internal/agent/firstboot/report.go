package firstboot

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/clock"
)

const (
	callTimeout  = 15 * time.Second
	firstRetry   = 500 * time.Millisecond
	slowestRetry = time.Minute
	// slowestCall bounds the interval that a control plane asks for.
	slowestCall = 24 * time.Hour
)

// report tells the control plane that the system is up, until that is acknowledged or ctx ends, and
// returns when it wants to hear that again; 0: never. Each try has a connection of its own: between
// two of them the network may have become another one.
func report(ctx context.Context, options Options, token *agentv1.BootToken) (again time.Duration, err error) {
	request, err := upRequest(options.Root, token)
	if err != nil {
		return 0, err
	}
	config, err := tlsConfig(token)
	if err != nil {
		return 0, err
	}
	for wait := firstRetry; ; wait = min(2*wait, slowestRetry) {
		response, err := call(ctx, options.Version, token.GetEndpoint(), config, request)
		if err == nil {
			return intervalOf(response), nil
		}
		options.Logger.Warn("the control plane has not acknowledged that this system is up", slog.String("endpoint", token.GetEndpoint()), slog.Any("err", err))
		if err := sleep(ctx, wait/2+rand.N(wait/2)); err != nil {
			return 0, err
		}
	}
}

// intervalOf is after how long the system is to call again; 0: never.
func intervalOf(response *agentv1.ReportUpResponse) time.Duration {
	return time.Duration(min(max(response.GetCallAgainMs(), 0), slowestCall.Milliseconds())) * time.Millisecond
}

func tlsConfig(token *agentv1.BootToken) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(token.GetEndpoint())
	if err != nil {
		return nil, fmt.Errorf("the endpoint of the boot token is not host:port: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: host, Time: clock.NotBefore(token.GetMadeAt())}
	if ca := token.GetCaCertificate(); len(ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("the CA certificate of the boot token cannot be read")
		}
	}
	return config, nil
}

func call(ctx context.Context, version, endpoint string, config *tls.Config, request *agentv1.ReportUpRequest) (*agentv1.ReportUpResponse, error) {
	conn, err := grpc.NewClient("passthrough:///"+endpoint, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithUserAgent("ironherd-agent/"+version), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("prepare the connection: %w", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return agentv1.NewAgentCallbackClient(conn).ReportUp(ctx, request)
}
