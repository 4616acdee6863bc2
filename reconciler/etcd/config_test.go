package etcd_test

import (
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
	"time"

	"github.com/ironherd/ironherd/reconciler/etcd"
)

// TestKeyThatOthersCanReadIsRefused, because nobody knows who has read it.
func TestKeyThatOthersCanReadIsRefused(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := etcd.Config{
		Endpoints: []string{"https://127.0.0.1:2379"}, CertFile: filepath.Join(dir, "client.crt"), KeyFile: filepath.Join(dir, "client.key"),
	}
	for path, block := range map[string]*pem.Block{c.CertFile: {Type: "CERTIFICATE", Bytes: der}, c.KeyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Open(); err != nil {
		t.Errorf("a key of mode 0600: %v", err)
	}
	if err := os.Chmod(c.KeyFile, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Open(); err == nil || !strings.Contains(err.Error(), "is open to others (mode 0644)") || strings.Contains(err.Error(), "PRIVATE") {
		t.Errorf("a key that everybody can read: %v", err)
	}
}
