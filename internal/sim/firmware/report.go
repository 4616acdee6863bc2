package firmware

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	reportTimeout  = 10 * time.Second
	firstRetry     = 200 * time.Millisecond
	slowestRetry   = 5 * time.Second
	connectTimeout = 5 * time.Second
)

// ReportUp tells the control plane, with the token of the first boot, that the installed system is
// up. It tries until it is acknowledged, whatever the answer is, and calls failed (unless nil) with
// each failure. Then it calls acknowledged, and goes on as long as the answers ask for that. It
// returns an error only when ctx ends or the token cannot be used at all.
func ReportUp(ctx context.Context, token *agentv1.BootToken, bootID, hostKey string, acknowledged func(watched bool), failed func(error)) error {
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	if ca := token.GetCaCertificate(); len(ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return errors.New("boot token: its CA certificate cannot be read")
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+token.GetEndpoint(),
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstRetry, Multiplier: 2, Jitter: 0.2, MaxDelay: slowestRetry},
			MinConnectTimeout: connectTimeout,
		}))
	if err != nil {
		return fmt.Errorf("boot token: %w", err)
	}
	defer func() { _ = conn.Close() }()
	client := agentv1.NewAgentCallbackClient(conn)
	request := &agentv1.ReportUpRequest{
		MachineId: token.GetMachineId(), InstallGeneration: token.GetInstallGeneration(), Attempt: token.GetAttempt(),
		Secret: token.GetSecret(), BootId: bootID, HostKeys: []string{hostKey},
	}
	for wait := firstRetry; ; {
		response, err := report(ctx, client, request)
		next := time.Duration(response.GetCallAgainMs()) * time.Millisecond
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			acknowledged(next > 0)
			if next == 0 {
				return nil
			}
			wait = firstRetry
		default:
			if failed != nil {
				failed(err)
			}
			next = wait + rand.N(wait/4)
			wait = min(2*wait, slowestRetry)
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

func report(ctx context.Context, client agentv1.AgentCallbackClient, request *agentv1.ReportUpRequest) (*agentv1.ReportUpResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	return client.ReportUp(ctx, request)
}
