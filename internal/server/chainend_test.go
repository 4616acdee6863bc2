package server_test

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
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/server"
)

const (
	oneDay  = 24 * time.Hour
	oneYear = 365 * oneDay
)

// link is a certificate of a chain, with its key.
type link struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func (l link) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.certificate.Raw})
}

// sign makes a certificate that has that much of its life left. Without an issuer it signs itself,
// and without a key of its own it gets one. That of "leaf" is for a server.
func sign(t *testing.T, name string, issuer *link, key crypto.Signer, left, life time.Duration) *link {
	t.Helper()
	if key == nil {
		var err error
		if _, key, err = ed25519.GenerateKey(rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(left)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: until.Add(-life), NotAfter: until,
		BasicConstraintsValid: true, IsCA: name != "leaf", DNSNames: []string{"localhost"},
	}
	if issuer == nil {
		issuer = &link{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer.certificate, key.Public(), issuer.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &link{certificate, key}
}

// written puts certificates into a file, after the key of the first where that is wanted.
func written(t *testing.T, withKey bool, chain ...*link) string {
	t.Helper()
	var content []byte
	if withKey {
		private, err := x509.MarshalPKCS8PrivateKey(chain[0].key)
		if err != nil {
			t.Fatal(err)
		}
		content = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	}
	for _, l := range chain {
		content = append(content, l.pem()...)
	}
	file := filepath.Join(t.TempDir(), "file.pem")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestAChainTellsItsEnd: clients refuse a certificate from when the first of those ends that it
// leads to, and that is foretold as its own end is. They take the chain that lasts longest.
func TestAChainTellsItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root := func(name string, left time.Duration) *link { return sign(t, name, nil, nil, left, 10*oneYear) }
		long := root("long", 5*oneYear)
		short := root("short", 10*oneDay)
		renewed := sign(t, "short", nil, short.key, 5*oneYear, 10*oneYear)
		between := sign(t, "between", long, nil, 10*oneDay, 2*oneYear)
		ended := root("ended", -time.Hour)
		brief := sign(t, "brief", nil, nil, 10*oneDay, 20*oneDay)
		leafOf := func(issuer *link) *link { return sign(t, "leaf", issuer, nil, oneYear/2, oneYear) }
		for name, test := range map[string]struct {
			chain         []*link
			agents, extra []*link // what agents and installed systems are given
			in            time.Duration
			of            string
			soon          bool
		}{
			"nothing is near":                   {[]*link{leafOf(long)}, []*link{long}, nil, oneYear / 2, "", false},
			"the leaf":                          {[]*link{sign(t, "leaf", long, nil, 10*oneDay, oneYear)}, []*link{long}, nil, 10 * oneDay, "", true},
			"the authority":                     {[]*link{leafOf(short)}, []*link{short}, nil, 10 * oneDay, `the authority "CN=short"`, true},
			"an intermediate":                   {[]*link{leafOf(between), between}, []*link{long}, nil, 10 * oneDay, `the intermediate "CN=between"`, true},
			"an authority after the rotation":   {[]*link{leafOf(long)}, []*link{short, long}, nil, oneYear / 2, "", false},
			"an authority before the rotation":  {[]*link{leafOf(short)}, []*link{short, long}, nil, 10 * oneDay, `the authority "CN=short"`, true},
			"an authority that was renewed":     {[]*link{leafOf(short)}, []*link{short, renewed}, nil, oneYear / 2, "", false},
			"the authority of a daily leaf":     {[]*link{sign(t, "leaf", short, nil, 20*time.Hour, oneDay)}, []*link{short}, nil, 10 * oneDay, `the authority "CN=short"`, true},
			"the renewed one of a daily leaf":   {[]*link{sign(t, "leaf", short, nil, 20*time.Hour, oneDay)}, []*link{short, renewed}, nil, 20 * time.Hour, "", false},
			"a daily leaf":                      {[]*link{sign(t, "leaf", short, nil, time.Hour, oneDay)}, []*link{short}, nil, time.Hour, "", true},
			"an authority of three weeks":       {[]*link{leafOf(brief)}, []*link{brief}, nil, 10 * oneDay, `the authority "CN=brief"`, false},
			"an authority that has ended":       {[]*link{leafOf(ended)}, []*link{ended}, nil, -time.Hour, `the authority "CN=ended"`, true},
			"that of installed systems":         {[]*link{leafOf(between), between}, []*link{between}, []*link{long}, 10 * oneDay, `the intermediate "CN=between"`, true},
			"one that agents know as authority": {[]*link{leafOf(between), between}, []*link{between}, nil, 10 * oneDay, `the authority "CN=between"`, true},
			"another authority":                 {[]*link{leafOf(short)}, []*link{long}, nil, oneYear / 2, "", false},
			"public roots":                      {[]*link{leafOf(between), between}, nil, nil, oneYear / 2, "", false},
		} {
			pair := written(t, true, test.chain...)
			config := server.CertificateConfig{Certificate: pair, Key: pair}
			given := ""
			switch {
			case test.extra != nil:
				config.CACertificate, given = written(t, false, test.extra...), written(t, false, test.agents...)
			case test.agents != nil:
				config.CACertificate = written(t, false, test.agents...)
			}
			c, err := config.Open("", []string{"localhost"}, given, discard)
			if err != nil {
				t.Fatal(name, err)
			}
			now := time.Now()
			if end := c.Ends(now); !end.At.Equal(now.Add(test.in)) || end.Of != test.of || !c.Expires().Equal(end.At) {
				t.Errorf("%s: ends in %s: %q; expires in %s", name, end.At.Sub(now), end.Of, c.Expires().Sub(now))
			}
			if soon := c.ExpiresSoon(now); soon != test.soon {
				t.Errorf("%s: soon is %t", name, soon)
			}
		}
	})
}
