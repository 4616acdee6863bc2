package server_test

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/server"
)

// TestACertificateOfAnotherAuthority: a certificate that does not lead to those which agents verify
// it by is told as one that they refuse, so that no silence counts. At a renewal it does not
// replace one that they accept.
func TestACertificateOfAnotherAuthority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := t.TempDir(), t.TempDir()
		open(t, ours, "localhost")
		open(t, theirs, "localhost")
		authority := filepath.Join(ours, "agent-ca.pem")
		file := filepath.Join(t.TempDir(), "pair.pem")
		put := func(dir string) {
			t.Helper()
			pair, err := os.ReadFile(filepath.Join(dir, "agent-server.pem"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, pair, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		load := func() *server.Certificates {
			t.Helper()
			c, err := server.CertificateConfig{Certificate: file, Key: file, CACertificate: authority}.Open("", []string{"localhost"}, "", discard)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		told := func(c *server.Certificates) bool {
			return strings.HasPrefix(c.Fault(time.Now()), "the certificate of the agent API does not lead to those that agents are given (")
		}

		put(theirs)
		c := load()
		if err := verify(t, c, c.Authority(), "localhost"); err == nil || !told(c) {
			t.Errorf("an agent says %v, and the fault is %q", err, c.Fault(time.Now()))
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = c.Serve(ctx) }()
		put(ours)
		time.Sleep(11 * time.Minute)
		if err := verify(t, c, c.Authority(), "localhost"); err != nil || c.Fault(time.Now()) != "" {
			t.Errorf("with ours, an agent says %v, and the fault is %q", err, c.Fault(time.Now()))
		}
		put(theirs)
		time.Sleep(11 * time.Minute)
		if err := verify(t, c, c.Authority(), "localhost"); err != nil || c.Fault(time.Now()) != "" {
			t.Errorf("after a wrong renewal, an agent says %v, and the fault is %q", err, c.Fault(time.Now()))
		}
		const refused = "the certificate of the agent API cannot be renewed: what is to replace it is not used, because clients would refuse it: "
		if got := c.Warning(time.Now()); !strings.HasPrefix(got, refused) {
			t.Errorf("after a wrong renewal, it warns %q", got)
		}
		put(ours)
		time.Sleep(11 * time.Minute)
		if got := c.Warning(time.Now()); got != "" {
			t.Errorf("with ours again, it warns %q", got)
		}
		put(theirs)
		time.Sleep(time.Until(c.Expires()) + 11*time.Minute)
		if !strings.Contains(c.Fault(time.Now()), "expired") {
			t.Errorf("when both have expired, the fault is %q", c.Fault(time.Now()))
		}
	})
}

// TestAChainIsWhole: a certificate that an intermediate authority has signed is accepted with that
// authority's own in the file, and told as refused without.
func TestAChainIsWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sign := func(name string, issuer *x509.Certificate, issuerKey crypto.Signer) (*x509.Certificate, crypto.Signer) {
		t.Helper()
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			BasicConstraintsValid: true, IsCA: name != "leaf", DNSNames: []string{"localhost"},
		}
		if issuer == nil {
			issuer, issuerKey = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), issuerKey)
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return certificate, key
	}
	write := func(name string, key crypto.Signer, certificates ...*x509.Certificate) string {
		t.Helper()
		var content []byte
		for _, c := range certificates {
			content = append(content, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
		if key != nil {
			private, err := x509.MarshalPKCS8PrivateKey(key)
			if err != nil {
				t.Fatal(err)
			}
			content = append(content, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	root, rootKey := sign("root", nil, nil)
	between, betweenKey := sign("between", root, rootKey)
	end, key := sign("leaf", between, betweenKey)
	authority := write("ca.pem", nil, root)
	for file, whole := range map[string]bool{write("whole.pem", key, end, between): true, write("leaf.pem", key, end): false} {
		c, err := server.LoadCertificates(server.ForAgents, file, file, authority, discard)
		if err != nil {
			t.Fatal(err)
		}
		if fault := c.Fault(time.Now()); (fault == "") != whole || !whole && !strings.Contains(fault, "is it the whole chain?") {
			t.Errorf("%s: %q", file, fault)
		}
	}
}

// TestAgentsAndInstalledSystems may be given certificates of their own. Silence counts where the
// agents accept ours, and what the installed systems refuse is told.
func TestAgentsAndInstalledSystems(t *testing.T) {
	t.Parallel()
	ours, theirs := t.TempDir(), t.TempDir()
	open(t, ours, "localhost")
	open(t, theirs, "localhost")
	pair := filepath.Join(ours, "agent-server.pem")
	right, wrong := filepath.Join(ours, "agent-ca.pem"), filepath.Join(theirs, "agent-ca.pem")
	for _, test := range []struct {
		agents, installed string
		fault, warning    bool
	}{
		{right, right, false, false},
		{"", right, false, false},
		{"", "", false, false},
		{right, "", false, false},
		{wrong, "", true, false},
		{wrong, right, true, false},
		{right, wrong, false, true},
	} {
		c, err := server.CertificateConfig{Certificate: pair, Key: pair, CACertificate: test.installed}.Open("", []string{"localhost"}, test.agents, discard)
		if err != nil {
			t.Fatal(err)
		}
		fault, warning := c.Fault(time.Now()), c.Warning(time.Now())
		if (fault != "") != test.fault || (warning != "") != test.warning || test.warning && !strings.Contains(warning, "which installed systems are given") {
			t.Errorf("%+v: fault %q, warning %q", test, fault, warning)
		}
	}
}
