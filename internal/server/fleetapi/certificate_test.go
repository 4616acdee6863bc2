package fleetapi

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

// TestAnAuthorityThatExpiresIsAConcern: agents refuse a certificate of a year once the authority
// has ended that they were given, and no renewal of the certificate helps.
func TestAnAuthorityThatExpiresIsAConcern(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		dir := t.TempDir()
		sign := func(name string, left time.Duration, issuer *x509.Certificate, issuerKey crypto.Signer) (*x509.Certificate, crypto.Signer) {
			t.Helper()
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			template := &x509.Certificate{
				SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-300 * day), NotAfter: time.Now().Add(left),
				BasicConstraintsValid: true, IsCA: issuer == nil, DNSNames: []string{"localhost"},
			}
			if issuer == nil {
				issuer, issuerKey = template, key
			}
			der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), issuerKey)
			if err != nil {
				t.Fatal(err)
			}
			private, err := x509.MarshalPKCS8PrivateKey(key)
			if err != nil {
				t.Fatal(err)
			}
			content := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
			certificate, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			return certificate, key
		}
		root, rootKey := sign("Lab CA", 10*day, nil, nil)
		sign("leaf", 300*day, root, rootKey)
		pair := filepath.Join(dir, "leaf")
		c, err := server.LoadCertificates(server.ForAgents, pair, pair, filepath.Join(dir, "Lab CA"), discardLog)
		if err != nil {
			t.Fatal(err)
		}
		s := New(nil, Options{Certificates: []*server.Certificates{c}})
		all := s.certificates(time.Now())
		const want = `the authority "CN=Lab CA", which the certificate of the agent API leads to, expires in 10 days (2000-01-11 00:00:00 UTC), and nobody has renewed it`
		if len(all) != 1 || all[0].GetKind() != string(fleet.ConcernCertificate) || all[0].GetText() != want {
			t.Errorf("concerns: %v", all)
		}
		const check = `its certificate: the authority "CN=Lab CA", which it leads to, expires at 2000-01-11 00:00:00 UTC`
		if told := s.suspects(fleet.Environment{}, time.Now()); !slices.Contains(told, check) {
			t.Errorf("what to check: %q", told)
		}
	})
}
