package secret_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/secret"
)

// authority returns a certificate and its private key, both in PEM form.
func authority(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"Name": "ours"}, Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// TestReadAuthority: a file's certificates alone are given away, and no more than agents take.
func TestReadAuthority(t *testing.T) {
	t.Parallel()
	one, key := authority(t)
	odd := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("odd")})
	for name, test := range map[string]struct {
		content      []byte
		certificates int
		fault        string
	}{
		"one":         {one, 1, ""},
		"with a key":  {bytes.Join([][]byte{key, []byte("# a comment\n"), one, key, one}, nil), 2, ""},
		"a key alone": {key, 0, "holds no certificate in PEM form"},
		"nothing":     {nil, 0, "holds no certificate in PEM form"},
		"an odd one":  {bytes.Join([][]byte{one, odd}, nil), 0, "a certificate of"},
		"a bundle":    {bytes.Repeat(one, secret.MaxAuthority/len(one)+10), 0, "not a bundle of many"},
	} {
		path := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(path, test.content, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := secret.ReadAuthority(path)
		if (err == nil) != (test.fault == "") || err != nil && (!strings.Contains(err.Error(), test.fault) || !strings.Contains(err.Error(), path)) {
			t.Errorf("%s: %v", name, err)
		}
		if bytes.Contains(got, []byte("PRIVATE")) || bytes.Count(got, []byte("-----BEGIN CERTIFICATE")) != test.certificates {
			t.Errorf("%s: given away are\n%s", name, got)
		}
	}
	if err := secret.CheckAuthority(filepath.Join(t.TempDir(), "none")); err == nil || !secret.Passes(err) {
		t.Errorf("no file: %v", err)
	}
}
