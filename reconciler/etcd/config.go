package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// Config is how to reach etcd.
type Config struct {
	// Endpoints are the members' client URLs (http, https, or unix); at least one.
	Endpoints []string `json:"endpoints"`
	// CAFile is a PEM file with the CA certificates for the members; empty: the system's.
	CAFile string `json:"caFile,omitempty"`
	// CertFile and KeyFile are the client's certificate and its key; both or none.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

// Validate reports every fault, as failure.Invalid.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fleet.Errorf(fleet.KindInvalid, format, args...))
	}
	if len(c.Endpoints) == 0 {
		fault("etcd endpoints must be set")
	}
	secure := false
	for _, endpoint := range c.Endpoints {
		u, err := url.Parse(endpoint)
		if err != nil || u.Host == "" && u.Path == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" {
			fault("etcd endpoint %q must be a URL like https://192.0.2.1:2379", endpoint)
			continue
		}
		secure = secure || u.Scheme == "https"
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		fault("the etcd client's certificate and key must be set together")
	}
	if !secure && len(c.Endpoints) > 0 && (c.CAFile != "" || c.CertFile != "") {
		fault("etcd certificates are given, but no endpoint is https")
	}
	return errors.Join(errs...)
}

// How long one request may take, and how soon a silently dead connection is noticed.
const (
	requestTimeout = 5 * time.Second
	dialTimeout    = 3 * time.Second
	keepAliveTime  = 10 * time.Second
	keepAliveLimit = 3 * time.Second
)

// Dial returns a client. It does not wait for a connection; if etcd is down, the first request
// fails. Errors are failure.Invalid: the configuration is wrong, or a file cannot be used. The
// client does not end with ctx.
func Dial(ctx context.Context, config Config) (*clientv3.Client, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	security, err := config.tls()
	if err != nil {
		return nil, err
	}
	var options []grpc.DialOption
	// So the client itself decides whether it uses TLS.
	if security != nil && !strings.HasPrefix(config.Endpoints[0], "http://") {
		options = append(options, grpc.WithTransportCredentials(anew{credentials.NewTLS(security), config}))
	}
	client, err := clientv3.New(clientv3.Config{
		Context:              context.WithValue(context.WithoutCancel(ctx), configured{}, config),
		Endpoints:            config.Endpoints,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveLimit,
		TLS:                  security,
		DialOptions:          options,
		Logger:               zap.NewNop(), // what matters comes back as an error
	})
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "connect to etcd at %s: %w", strings.Join(config.Endpoints, ", "), err)
	}
	return client, nil
}

// anew reads every file at each handshake: certificates are renewed while we run, those of the
// authority, too.
type anew struct {
	credentials.TransportCredentials
	config Config
}

// ClientHandshake implements credentials.TransportCredentials.
func (a anew) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	security, err := a.config.tls()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(security).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (a anew) Clone() credentials.TransportCredentials {
	return anew{a.TransportCredentials.Clone(), a.config}
}

// Open opens the files that the configuration names, and reports each that cannot be used, as
// failure.Invalid.
func (c Config) Open() error {
	_, err := c.tls()
	return err
}

func (c Config) tls() (*tls.Config, error) {
	if c.CAFile == "" && c.CertFile == "" {
		return nil, nil //nolint:nilnil // no TLS of our own: the scheme of an endpoint decides
	}
	security := &tls.Config{MinVersion: tls.VersionTLS12}
	var wrong []error
	if c.CAFile != "" {
		security.RootCAs = x509.NewCertPool()
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			wrong = append(wrong, fleet.Errorf(fleet.KindInvalid, "read etcd's CA certificate: %w", err))
		} else if !security.RootCAs.AppendCertsFromPEM(text) {
			wrong = append(wrong, fleet.Errorf(fleet.KindInvalid, "etcd's CA certificate %s holds no PEM certificate", c.CAFile))
		}
	}
	if c.CertFile != "" && c.KeyFile != "" {
		pair, err := secret.ReadKeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			wrong = append(wrong, fleet.Errorf(fleet.KindInvalid, "read the etcd client's certificate: %w", err))
		}
		// Whatever authorities the member names: why it does not accept the certificate is its word.
		security.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	return security, nil
}
