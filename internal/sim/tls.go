package sim

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The world's certificate authority, in its directory. Clients trust the certificate.
const (
	caName    = "ca.pem"
	caKeyName = "ca.key"
)

// authorityFor is how long the world's certificate authority is valid. A server's certificate is
// made anew each time that the world is opened.
const authorityFor = 10 * 365 * 24 * time.Hour

// serverTLS returns what the API serves with, for clients that reach it at host and trust the
// authority in dir. The first call for a directory makes the authority.
func serverTLS(dir, host string) (*tls.Config, error) {
	ca, err := openAuthority(dir)
	if err != nil {
		return nil, fmt.Errorf("certificate authority of the world: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: host}, NotBefore: ca.Leaf.NotBefore, NotAfter: ca.Leaf.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		BasicConstraintsValid: true,
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = append(template.IPAddresses, ip)
	} else if host != "" {
		template.DNSNames = append(template.DNSNames, host)
	}
	leaf, err := issue(template, &ca)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{leaf}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}, nil
}

// openAuthority reads the authority of a directory, or makes it.
func openAuthority(dir string) (tls.Certificate, error) {
	certificate, key := filepath.Join(dir, caName), filepath.Join(dir, caKeyName)
	ca, err := tls.LoadX509KeyPair(certificate, key)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return ca, err
	}
	now := time.Now()
	ca, err = issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "Ironherd simulated world"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(authorityFor),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, IsCA: true, BasicConstraintsValid: true,
	}, nil)
	if err != nil {
		return tls.Certificate{}, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(ca.PrivateKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	// The key comes first: a certificate that is there has its key.
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600); err != nil {
		return tls.Certificate{}, err
	}
	return ca, os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate[0]}), 0o644)
}

// issue makes a certificate with a key of its own. An authority signs it or, without one, it signs
// itself.
func issue(template *x509.Certificate, ca *tls.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return tls.Certificate{}, err
	}
	parent, signer := template, crypto.PrivateKey(key)
	if ca != nil {
		parent, signer = ca.Leaf, ca.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
