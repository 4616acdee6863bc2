package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

const (
	certificateLife = 365 * 24 * time.Hour
	renewBefore     = certificateLife / 3
	renewalCheck    = 10 * time.Minute
	organization    = "Ironherd"
)

// Purpose is which server certificates are for. Each has an authority of its own, so that nobody
// who trusts one server trusts the other.
type Purpose string

// The purposes. Files are named after them.
const (
	ForAgents    Purpose = "agent"
	ForOperators Purpose = "operator"
)

// KeyFiles returns the files under dir with the keys that OpenCertificates makes there.
func (p Purpose) KeyFiles(dir string) []string {
	return []string{filepath.Join(dir, p.authorityFile()), filepath.Join(dir, p.certificateFile())}
}

func (p Purpose) authorityFile() string   { return string(p) + "-ca.pem" }
func (p Purpose) certificateFile() string { return string(p) + "-server.pem" }

// Certificates holds the certificate that a server proves itself with, and those that its clients
// verify it by.
type Certificates struct {
	purpose Purpose
	logger  *slog.Logger
	// authority is PEM, without the key.
	authority []byte
	// given is what agents are given in its place, PEM; nil: they are given authority.
	given []byte
	// renewal replaces the certificate in use when it is due.
	renewal func() error
	// told is the host that clients are told to call; "": what is not known, or carried anyway.
	told string
	// installed is the same of installed systems.
	installed string

	// The rest is set for certificates that are made here.
	dir    string
	hosts  []string
	signer *keyPair

	mu      sync.RWMutex
	current *tls.Certificate
	// unrenewed is why the newest renewal has failed; nil: it has not.
	unrenewed error
}

// OpenCertificates reads the authority and the server certificate that were made under dir before,
// and makes what is missing: an authority of our own (ECDSA P-256), and a certificate signed by it
// for the hosts (names and IP addresses). The files have mode 0600 and are complete or absent at
// every moment; of two processes that start at once, both end up with the same authority. A
// certificate that does not name every host, or is due for renewal, is replaced; that for agents
// keeps the hosts that it had. One that is good is used on while its successor cannot be made, as
// on a full disk. The authority never is replaced, because agents keep it. A file that cannot be
// read is KindInvalid and is left as it is.
func OpenCertificates(purpose Purpose, dir string, hosts []string, logger *slog.Logger) (*Certificates, error) {
	if len(hosts) == 0 {
		return nil, fleet.Errorf(fleet.KindInvalid, "make certificates: no host to make them for")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory for certificates: %w", err)
	}
	signer, err := openAuthority(purpose, dir)
	if err != nil {
		return nil, err
	}
	c := &Certificates{purpose: purpose, dir: dir, hosts: slices.Clone(hosts), logger: logger, signer: signer, authority: signer.certificatePEM()}
	c.renewal = c.renew
	if err := c.renew(); err != nil {
		if old, _ := c.get(nil); old == nil {
			return nil, err
		}
		c.renewed(err)
	}
	return c, nil
}

// LoadCertificates reads a configured certificate chain with its key, and the certificates that
// clients shall verify it by (file names; authority may be empty: the public roots). Serve reads
// certificate and key again every ten minutes, and goes on with those in use where clients would
// refuse the new ones alone.
func LoadCertificates(purpose Purpose, certificate, key, authority string, logger *slog.Logger) (*Certificates, error) {
	c := &Certificates{purpose: purpose, logger: logger}
	c.renewal = func() error {
		pair, err := secret.ReadKeyPair(certificate, key)
		if err != nil {
			return fleet.Errorf(fleet.KindInvalid, "read certificate %s with key %s: %w", certificate, key, err)
		}
		return c.replace(&pair, time.Now())
	}
	if err := c.renewal(); err != nil {
		return nil, err
	}
	if authority != "" {
		var err error
		if c.authority, err = secret.ReadAuthority(authority); err != nil {
			return nil, fmt.Errorf("read CA certificate: %w", err)
		}
	}
	return c, nil
}

// replace takes a certificate into use, unless clients refuse it and accept the one in use.
func (c *Certificates) replace(pair *tls.Certificate, now time.Time) error {
	if old, _ := c.get(nil); old != nil && c.fault(old, now) == "" {
		if fault := c.fault(pair, now); fault != "" {
			return fleet.Errorf(fleet.KindInvalid, "what is to replace it is not used, because clients would refuse it: %s", fault)
		}
	}
	c.use(pair)
	return nil
}

// Authority returns the PEM certificates that clients verify the server by; nil: the public roots.
func (c *Certificates) Authority() []byte { return slices.Clone(c.authority) }

// Expires returns when clients cease to accept the certificate in use, as Ends tells it now.
func (c *Certificates) Expires() time.Time { return c.Ends(time.Now()).At }

// Listener names the server whose certificates they are, as its role is named.
func (c *Certificates) Listener() string { return string(c.purpose) + "-api" }

// Fault says why clients do not accept the certificate at that time, as far as its time, the host
// that agents are told and the certificates tell that agents are given; "" when these do not.
func (c *Certificates) Fault(now time.Time) string {
	pair, _ := c.get(nil)
	return c.fault(pair, now)
}

// refusedHere is the fault of a certificate that is made here, where agents are given another
// authority than signs it.
const refusedHere = "the certificate of the agent API, which is made here, does not lead to those of initializer.endpoint_ca, " +
	"which agents are given: remove that key, or name a certificate with agent_api.tls"

func (c *Certificates) fault(pair *tls.Certificate, now time.Time) string {
	switch leaf := pair.Leaf; {
	case now.After(leaf.NotAfter):
		return fmt.Sprintf("the certificate of the %s API has expired at %s", c.purpose, fleet.Instant(leaf.NotAfter))
	case now.Before(leaf.NotBefore):
		return fmt.Sprintf("the certificate of the %s API is not valid before %s: is the clock of this host right?", c.purpose,
			fleet.Instant(leaf.NotBefore))
	case c.told != "" && leaf.VerifyHostname(bracketed(c.told)) != nil:
		return fmt.Sprintf("the certificate of the %s API is not for %s, which agents are told to call", c.purpose, c.told)
	}
	authority := c.given
	if authority == nil {
		authority = c.authority
	}
	switch err := verify(pair, authority, now); {
	case err != nil && c.signer != nil:
		return refusedHere
	case err != nil:
		return fmt.Sprintf("the certificate of the %s API does not lead to those that agents are given (%s): is it the whole chain?", c.purpose, err)
	}
	return ""
}

// Warning says what else is wrong at that time than that agents do not accept the certificate: that
// it cannot be renewed, or that installed systems do not accept it; "" when nothing is.
func (c *Certificates) Warning(now time.Time) string {
	c.mu.RLock()
	pair, unrenewed := c.current, c.unrenewed
	c.mu.RUnlock()
	if unrenewed != nil {
		return fmt.Sprintf("the certificate of the %s API cannot be renewed: %s", c.purpose, unrenewed)
	}
	if c.installed != "" && pair.Leaf.VerifyHostname(bracketed(c.installed)) != nil {
		return fmt.Sprintf("the certificate of the %s API is not for %s, which installed systems are told to call", c.purpose, c.installed)
	}
	if err := verify(pair, c.authority, now); err != nil {
		return fmt.Sprintf("the certificate of the %s API does not lead to those of its ca_certificate, which installed systems are given (%s)", c.purpose, err)
	}
	return ""
}

// Trouble is Fault, and where there is none Warning.
func (c *Certificates) Trouble(now time.Time) string { return cmp.Or(c.Fault(now), c.Warning(now)) }

// verify does what clients do with the certificates that they verify by, PEM. Of the public roots,
// which others have, nothing is known here.
func verify(pair *tls.Certificate, authority []byte, now time.Time) error {
	if len(authority) == 0 {
		return nil
	}
	_, err := chains(pair, authority, now)
	return err
}

// chains returns all ways from the certificate to one of the authority, PEM, or to one of the
// public roots of this host where that is empty.
func chains(pair *tls.Certificate, authority []byte, now time.Time) ([][]*x509.Certificate, error) {
	var roots *x509.CertPool
	if len(authority) > 0 {
		roots = x509.NewCertPool()
		roots.AppendCertsFromPEM(authority)
	}
	chain := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		chain.AddCert(certificate)
	}
	return pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: chain, CurrentTime: now})
}

// ExpiresSoon reports whether the certificate, or one that it leads to, expires soon, or has
// expired.
func (c *Certificates) ExpiresSoon(now time.Time) bool { return c.Ends(now).soon(now) }

// TLS returns a server configuration of TLS 1.3 that always presents the newest certificate.
// It asks clients for a certificate and takes any: the handshake proves that they hold its key, and
// the caller decides whether to admit them.
func (c *Certificates) TLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert, GetCertificate: c.get}
}

// ServerTLS is TLS for a server that does not ask clients for a certificate, as browsers would ask
// people for one.
func (c *Certificates) ServerTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: c.get}
}

// Serve renews the certificate in time until ctx ends; it returns nil. It logs a renewal that fails
// and tries again, with the certificate in use until then. It does not touch open connections.
func (c *Certificates) Serve(ctx context.Context) error {
	ticker := time.NewTicker(renewalCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			c.renewed(c.renewal())
		}
	}
}

// renewed keeps for Warning how a renewal ended.
func (c *Certificates) renewed(err error) {
	c.mu.Lock()
	c.unrenewed = err
	pair := c.current
	c.mu.Unlock()
	if err != nil {
		c.logger.Error("cannot renew the certificate", slog.String("api", string(c.purpose)), slog.Any("err", err), slog.Time("expires", pair.Leaf.NotAfter))
	}
}

func (c *Certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.current, nil
}

// renew makes sure that the certificate in use is one of our authority, for all hosts, and not due
// for renewal. Where it cannot make another one, that which is stored is in use if it serves.
func (c *Certificates) renew() error {
	if pair, _ := c.get(nil); pair != nil && !due(pair.Leaf) {
		return nil
	}
	path := filepath.Join(c.dir, c.purpose.certificateFile())
	pair, err := readPair(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case errors.Is(err, errNotMadeHere):
		return fleet.Errorf(fleet.KindInvalid, "%w: remove it, and another one is made", err)
	case err != nil:
		return err
	case c.serves(pair.certificate):
		c.use(pair.tls())
		if !due(pair.certificate) {
			return nil
		}
	}
	hosts := slices.Clone(c.hosts)
	if pair != nil {
		hosts = c.carried(pair.certificate)
	}
	if pair, err = newCertificate(c.purpose, c.signer, hosts); err != nil {
		return err
	}
	if err := secret.Write(path, pair.pem(), true); err != nil {
		return fmt.Errorf("store certificate: %w", err)
	}
	c.logger.Info("made a certificate", slog.String("api", string(c.purpose)), slog.Any("hosts", hosts), slog.Time("expires", pair.certificate.NotAfter))
	c.use(pair.tls())
	return nil
}

// mostHosts bounds the hosts of a certificate that have gathered.
const mostHosts = 20

// carried returns the hosts of the certificate that replaces this one. That of the agent API keeps
// those that it had, as far as there is room: an agent calls the endpoint that it was started with
// for as long as it runs, and that may lead here still.
func (c *Certificates) carried(leaf *x509.Certificate) []string {
	hosts := slices.Clone(c.hosts)
	if c.purpose != ForAgents || leaf.CheckSignatureFrom(c.signer.certificate) != nil {
		return hosts
	}
	earlier := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		earlier = append(earlier, ip.String())
	}
	for _, host := range earlier {
		if len(hosts) < mostHosts && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// due reports whether a certificate is to be replaced: in time before it ends, and also when it was
// made by a clock that was ahead of today's.
func due(leaf *x509.Certificate) bool {
	left := time.Until(leaf.NotAfter)
	return left < renewBefore || left > certificateLife+24*time.Hour
}

// serves says whether a stored certificate can be used, be it that its renewal is due.
func (c *Certificates) serves(leaf *x509.Certificate) bool {
	if time.Now().After(leaf.NotAfter) || leaf.CheckSignatureFrom(c.signer.certificate) != nil {
		return false
	}
	return !slices.ContainsFunc(c.hosts, func(host string) bool { return leaf.VerifyHostname(bracketed(host)) != nil })
}

func (c *Certificates) use(certificate *tls.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = certificate
}

// bracketed returns the host in the form that VerifyHostname needs for IP addresses.
func bracketed(host string) string {
	if net.ParseIP(host) != nil {
		return "[" + host + "]"
	}
	return host
}
