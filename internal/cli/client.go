package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// fleetClient is how commands reach the fleet.
type fleetClient = fleetv1connect.FleetServiceClient

const maximumToken = 4096

// client finds the control plane and returns a client for it. It sends nothing yet.
func (a *app) client() (fleetClient, error) {
	address, err := a.findServer()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, badServer(address)
	}
	switch u.Scheme {
	case "unix":
		path := u.Path
		if path == "" {
			path = u.Opaque
		}
		if path == "" || u.Host != "" {
			return nil, badServer(address)
		}
		return a.socketClient(path), nil
	case "http", "https":
		if u.Host == "" || u.User != nil {
			return nil, badServer(address)
		}
		return a.tcpClient(u)
	}
	return nil, badServer(address)
}

// badServer never quotes what may hold a password.
func badServer(address string) error {
	if strings.Contains(address, "@") {
		return fleet.Errorf(fleet.KindInvalid,
			"--server must not have a user or password in it: put your token into a file and name it with --token-file")
	}
	return fleet.Errorf(fleet.KindInvalid,
		"%q does not name a control plane: use unix:///PATH, http://HOST:PORT or https://HOST:PORT", address)
}

func (a *app) socketClient(path string) fleetClient {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", path)
	}
	return a.clientThrough(&http.Transport{DialContext: dial}, "http://ironherd", "unix://"+path, "")
}

func (a *app) tcpClient(u *url.URL) (fleetClient, error) {
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	if token != "" && u.Scheme == "http" && !secret.StaysHere(u.Hostname()) {
		return nil, fleet.Errorf(fleet.KindInvalid, "the token would be sent to %s in the clear: use https://%s", u.Host, u.Host)
	}
	roots, err := a.roots()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
	base := strings.TrimSuffix(u.String(), "/")
	return a.clientThrough(transport, base, base, token), nil
}

// clientThrough returns a client over a transport. Errors call the control plane what shown says.
func (a *app) clientThrough(transport http.RoundTripper, base, shown, token string) fleetClient {
	authorize := func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			if token != "" {
				request.Header().Set("Authorization", "Bearer "+token)
			}
			response, err := next(ctx, request)
			return response, a.askedError(explainUnreachable(ctx, shown, err))
		}
	}
	// A redirect could lead the token to where it does not belong.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return fleetv1connect.NewFleetServiceClient(&http.Client{Transport: transport, CheckRedirect: stay}, base,
		connect.WithInterceptors(connect.UnaryInterceptorFunc(authorize)))
}

// askedError is an error, in which commands that the control plane tells get the flags that they
// need here.
func (a *app) askedError(err error) error {
	if remote, ok := errors.AsType[*connect.Error](err); ok && connect.IsWireError(err) {
		return connect.NewWireError(remote.Code(), errors.New(a.asked(remote.Message())))
	}
	return err
}

// noAnswer is the failure of a question that was not answered in time.
type noAnswer struct{ server string }

func (e noAnswer) Error() string {
	return "the control plane at " + e.server + " did not answer in time"
}

// explainUnreachable returns a sentence for a failure to get any answer. An answer of the control
// plane stays as it is, errors included.
func explainUnreachable(ctx context.Context, server string, err error) error {
	if err == nil || connect.IsWireError(err) || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	if connect.CodeOf(err) == connect.CodeDeadlineExceeded {
		return fleet.Errorf(fleet.KindTimeout, "%w: try again, or give it longer with --timeout", noAnswer{server})
	}
	if refused, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return explainCertificate(server, refused)
	}
	cause := err
	if op, ok := errors.AsType[*net.OpError](err); ok {
		cause = op.Err
		if call, ok := errors.AsType[*os.SyscallError](op.Err); ok {
			cause = call.Err
		}
	} else if remote, ok := errors.AsType[*connect.Error](err); ok {
		cause = errors.New(remote.Message())
		if rest, plain := strings.CutPrefix(server, "http://"); plain && remote.Code() != connect.CodeUnavailable {
			return fleet.Errorf(fleet.KindTemporary, "what answers at %s is no control plane, or wants TLS (%w): try https://%s", server, cause, rest)
		}
	}
	if errors.Is(cause, fs.ErrPermission) {
		return fleet.Errorf(fleet.KindForbidden, "the control plane at %s may not be asked by this user (%w): be root, or use --server with a token",
			server, cause)
	}
	return fleet.Errorf(fleet.KindTemporary, "no control plane answers at %s (%w): is `ironherd serve` running there?", server, cause)
}

// explainCertificate returns a sentence for a server that does not prove to be the control plane.
func explainCertificate(server string, refused *tls.CertificateVerificationError) error {
	if wrong, ok := errors.AsType[x509.HostnameError](refused); ok {
		return fleet.Errorf(fleet.KindUnauthenticated, "the certificate of the control plane at %s is not for %s: use a name that it has, "+
			"or add this one to operator_api.names", server, wrong.Host)
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](refused); ok && invalid.Reason == x509.Expired {
		now, valid := time.Now(), "has expired at "+fleet.Instant(invalid.Cert.NotAfter)
		if now.Before(invalid.Cert.NotBefore) {
			valid = "is not valid before " + fleet.Instant(invalid.Cert.NotBefore)
		}
		return fleet.Errorf(fleet.KindUnauthenticated, "the certificate of the control plane at %s %s, and the clock of this host says %s: "+
			"set the clock that is wrong, this one or that of the control plane, else renew the certificate (operator_api.tls, where that is set)", server, valid, fleet.Instant(now))
	}
	return fleet.Errorf(fleet.KindUnauthenticated, "the control plane at %s has no certificate of an authority that is trusted here: "+
		"name its operator-ca.crt with --ca-file (%w)", server, refused.Err)
}

// roots returns the certificates that the control plane is verified by; nil: those of the system.
// With a file, nothing else counts, so that no other authority can speak for the control plane.
func (a *app) roots() (*x509.CertPool, error) {
	file := cmp.Or(a.caFile, a.getenv("IRONHERD_CA_FILE"))
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "CA file %s cannot be read: %w", file, pathCause(err))
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(content) {
		return nil, fleet.Errorf(fleet.KindInvalid, "CA file %s holds no PEM certificate", file)
	}
	return roots, nil
}

// token reads the caller's token; empty when no file was named. It is never shown.
func (a *app) token() (string, error) {
	file := cmp.Or(a.tokenFile, a.getenv("IRONHERD_TOKEN_FILE"))
	if file == "" {
		return "", nil
	}
	content, err := secret.Read(file, maximumToken)
	if err != nil {
		return "", fleet.Errorf(fleet.KindInvalid, "token file: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" || strings.ContainsAny(token, "\r\n\t ") {
		return "", fleet.Errorf(fleet.KindInvalid, "token file %s does not hold a token and nothing else", file)
	}
	return token, nil
}

// withTimeout bounds ctx; zero: no bound. Its deadline counts as a timeout, not as an interruption.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// pathCause returns the error without the path, which the sentence around it names already.
func pathCause(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}
