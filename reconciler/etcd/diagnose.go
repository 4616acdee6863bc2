package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

// diagnosis is how long Diagnose may take.
const diagnosis = 2 * time.Second

// Diagnose asks each endpoint on its own and says in one clause for each why etcd cannot be used by
// way of it. The client of etcd tries all of them until the time is up, and then says only that. It
// returns the empty text if every endpoint answers and says that it is healthy.
func Diagnose(ctx context.Context, config Config) string {
	ctx, cancel := context.WithTimeout(ctx, diagnosis)
	defer cancel()
	security, err := config.tls()
	if err != nil {
		return err.Error()
	}
	faults := make([]string, len(config.Endpoints))
	var asking sync.WaitGroup
	for i, endpoint := range config.Endpoints {
		asking.Go(func() { faults[i] = diagnose(ctx, endpoint, security) })
	}
	asking.Wait()
	var all []string
	for i, fault := range faults {
		if fault != "" {
			all = append(all, config.Endpoints[i]+": "+fault)
		}
	}
	return strings.Join(all, "; ")
}

// diagnose asks one endpoint for its health.
func diagnose(ctx context.Context, endpoint string, security *tls.Config) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err.Error()
	}
	if u.Scheme == "unix" {
		return diagnoseSocket(ctx, u)
	}
	transport := &http.Transport{TLSClientConfig: security, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/health", nil)
	if err != nil {
		return err.Error()
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return explain(err)
	}
	defer func() { _ = answer.Body.Close() }()
	const most = 4 << 10
	text, _ := io.ReadAll(io.LimitReader(answer.Body, most)) // what is missing is no health
	var health struct{ Health, Reason string }
	switch {
	case strings.Contains(string(text), "HTTP request to an HTTPS server"):
		return "it speaks TLS, and the endpoint says http"
	case json.Unmarshal(text, &health) != nil || health.Health == "":
		return fmt.Sprintf("what answers there is not etcd's API for clients (%s to /health); is that the port for peers?", answer.Status)
	case health.Health == "true":
		return ""
	case strings.Contains(health.Reason, "NO LEADER"):
		return "etcd has no leader: most of its members are down or cannot reach each other"
	}
	return "etcd says that it is not healthy: " + health.Reason
}

func diagnoseSocket(ctx context.Context, u *url.URL) string {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", u.Host+u.Path)
	if err != nil {
		return explain(err)
	}
	_ = conn.Close()
	return ""
}

// explain says what a failed connection means. For some of that net/http has no type, only a text.
func explain(err error) string {
	var (
		hostname  x509.HostnameError
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		operation *net.OpError
		dns       *net.DNSError
		network   net.Error
	)
	switch {
	case errors.As(err, &authority):
		return "its certificate is not signed by an authority that we know; is the CA certificate the one of etcd?"
	case errors.As(err, &hostname):
		return "its certificate is not for this address: " + hostname.Error()
	case errors.As(err, &invalid):
		return "its certificate is not valid: " + invalid.Error()
	case errors.As(err, &operation) && operation.Op == "remote error": // an alert of TLS
		return "it does not accept our client certificate, or that we have none (" + operation.Err.Error() + ")"
	case errors.As(err, &record):
		return "it does not speak TLS, and the endpoint says https"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "it does not speak TLS, and the endpoint says https"
	case errors.As(err, &dns):
		return "its name cannot be resolved: " + dns.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens there (connection refused)"
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		return "there is no way to it: " + err.Error()
	case strings.Contains(err.Error(), "malformed HTTP response"):
		return "it speaks TLS, and the endpoint says http"
	case errors.As(err, &network) && network.Timeout() || errors.Is(err, context.DeadlineExceeded):
		return "it does not answer"
	case errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF):
		return "it ends the connection: perhaps it does not speak TLS where the endpoint says https, or the reverse"
	}
	return err.Error()
}
