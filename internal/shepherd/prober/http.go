package prober

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
)

// headerLimit is how large the head of an answer may be, in bytes.
const headerLimit = 64 << 10

// ports are those of URLs that name none.
var ports = map[string]string{"http": "80", "https": "443"}

// get asks for the URL, at the machine's own address.
func (p *Prober) get(ctx context.Context, q question) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, urlAt(q.seenUp.URL, q.target.Address.Addr()), nil)
	if err != nil {
		return fleet.Errorf(fleet.KindInvalid, "the URL of the probe cannot be used")
	}
	port, err := strconv.ParseUint(cmp.Or(request.URL.Port(), ports[request.URL.Scheme]), 10, 16)
	if err != nil {
		return fleet.Errorf(fleet.KindInvalid, "the URL of the probe cannot be used: it has no port from 1 to 65535")
	}
	q.target.Address = netip.AddrPortFrom(q.target.Address.Addr(), uint16(port))
	// First, and with limits of its own: the way to the machine says nothing of the machine.
	connection, err := p.dialer.Reach(ctx, q.target)
	if err != nil {
		return fmt.Errorf("GET: %w", err)
	}
	defer func() { _ = connection.Close() }()
	ctx, cancel := context.WithTimeoutCause(ctx, p.config.Timeout, fleet.Errorf(fleet.KindTimeout, "there was no answer within %s", p.config.Timeout))
	defer cancel()
	transport := &http.Transport{
		// No proxy: the question is whether the machine answers, not whether somebody does for it.
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return &keptOpen{Conn: connection}, nil },
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: headerLimit,
	}
	defer transport.CloseIdleConnections()
	if q.seenUp.CA != "" {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		transport.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(q.seenUp.CA))
	}
	request = request.WithContext(ctx)
	request.Header.Set("User-Agent", "Ironherd")
	client := &http.Client{
		Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		if fault := remote.JumpFault(connection); fault != nil {
			return fmt.Errorf("GET: %w", fault)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // it repeats the URL
		}
		return fmt.Errorf("GET: %w", err)
	}
	_ = response.Body.Close() // what it holds is nobody's question
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fleet.Errorf(fleet.KindTemporary, "it answers with status %d, not with one from 200 to 399", response.StatusCode)
	}
	return nil
}

// keptOpen is a connection that is closed to its user alone. It stays open until somebody has asked
// whether the way to the host is at fault.
type keptOpen struct {
	net.Conn
	over atomic.Bool
}

// Read implements net.Conn.
func (k *keptOpen) Read(p []byte) (int, error) {
	n, err := k.Conn.Read(p)
	if k.over.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

// Close implements net.Conn.
func (k *keptOpen) Close() error {
	k.over.Store(true)
	return nil
}

// urlAt puts the address into the URL where its placeholder stands.
func urlAt(text string, address netip.Addr) string {
	host := address.Unmap().String()
	if address.Is6() && !address.Is4In6() {
		host = "[" + host + "]"
	}
	return strings.Replace(text, "//"+fleet.AddressPlaceholder, "//"+host, 1)
}
