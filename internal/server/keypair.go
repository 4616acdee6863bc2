package server

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// keyPair is a certificate and its key. One file holds both, so that they always belong together.
type keyPair struct {
	certificate *x509.Certificate
	key         crypto.Signer
	keyDER      []byte // PKCS #8
}

func (p *keyPair) fingerprint() string {
	sum := sha256.Sum256(p.certificate.Raw)
	return strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":")
}

func (p *keyPair) certificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.certificate.Raw})
}

func (p *keyPair) pem() []byte {
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: p.keyDER}), p.certificatePEM()...)
}

func (p *keyPair) tls() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{p.certificate.Raw}, PrivateKey: p.key, Leaf: p.certificate}
}

// MakeAuthority makes the authority of a purpose under dir, unless it is there, and returns its
// fingerprint: SHA-256, as `openssl x509 -fingerprint -sha256` prints it.
func MakeAuthority(purpose Purpose, dir string) (fingerprint string, err error) {
	pair, err := openAuthority(purpose, dir)
	if err != nil {
		return "", err
	}
	return pair.fingerprint(), nil
}

// openAuthority reads the authority, or makes it. Of two processes that make one at the same time,
// the first to link its file wins, and the other reads that file.
func openAuthority(purpose Purpose, dir string) (*keyPair, error) {
	path := filepath.Join(dir, purpose.authorityFile())
	pair, err := readPair(path)
	if !errors.Is(err, os.ErrNotExist) {
		return pair, err
	}
	pair, err = newPair(&x509.Certificate{
		Subject:  pkix.Name{Organization: []string{organization}, CommonName: organization + " " + string(purpose) + " CA"},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}, endless, nil)
	if err != nil {
		return nil, err
	}
	err = secret.Write(path, pair.pem(), false)
	if errors.Is(err, os.ErrExist) {
		return readPair(path)
	}
	if err != nil {
		return nil, fmt.Errorf("store the %s CA: %w", purpose, err)
	}
	return pair, nil
}

func newCertificate(purpose Purpose, authority *keyPair, hosts []string) (*keyPair, error) {
	template := &x509.Certificate{
		Subject:  pkix.Name{Organization: []string{organization}, CommonName: organization + " " + string(purpose) + " API"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return newPair(template, time.Now().Add(certificateLife), authority)
}

// endless is the end of a certificate that has none (RFC 5280, section 4.1.2.5). That of an
// authority has none: agents keep it, and the clock that it was made by may have been wrong.
var endless = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// newPair makes a key and a certificate that the authority signs; without one it signs itself. It
// is valid from 1970 on: a machine whose clock is behind (a flat battery, no time server yet) must
// find it valid, and so must everybody after our own clock was ahead. The authority signs for
// nobody but us, so an early start gives nothing away.
func newPair(template *x509.Certificate, until time.Time, authority *keyPair) (*keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template.NotBefore, template.NotAfter = time.Unix(0, 0), until
	parent, signer := template, crypto.Signer(key)
	if authority != nil {
		parent, signer = authority.certificate, authority.key
		if template.NotAfter.After(parent.NotAfter) {
			template.NotAfter = parent.NotAfter
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return &keyPair{certificate: certificate, key: key, keyDER: keyDER}, nil
}

// maximumPEM is more than any chain of certificates and its key take, in bytes.
const maximumPEM = 1 << 20

// errNotMadeHere is what is wrong with a file that holds something else.
var errNotMadeHere = errors.New("is not a certificate and key that were made here")

// readPair returns os.ErrNotExist as it is, and a file that others can read, or that holds
// something else, as KindInvalid.
func readPair(path string) (*keyPair, error) {
	data, err := secret.Read(path, maximumPEM)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	pair, err := parsePair(data)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "%s %w: %w", path, errNotMadeHere, err)
	}
	return pair, nil
}

func parsePair(data []byte) (*keyPair, error) {
	keyBlock, rest := pem.Decode(data)
	certificateBlock, _ := pem.Decode(rest)
	if keyBlock == nil || certificateBlock == nil || keyBlock.Type != "PRIVATE KEY" || certificateBlock.Type != "CERTIFICATE" {
		return nil, errors.New("a private key and a certificate are expected, in this order")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key is not an ECDSA key")
	}
	certificate, err := x509.ParseCertificate(certificateBlock.Bytes)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(certificate.PublicKey) {
		return nil, errors.New("the key is not the certificate's")
	}
	return &keyPair{certificate: certificate, key: key, keyDER: bytes.Clone(keyBlock.Bytes)}, nil
}
