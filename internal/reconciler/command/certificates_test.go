package command_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pair returns a client certificate that is good for a time from now on, and its key, in PEM. It
// was made ninety days ago.
func pair(t *testing.T, left time.Duration) (certificate, key []byte) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-90 * 24 * time.Hour), NotAfter: now.Add(left)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, secret.Public(), secret)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

// embedding is a kubeconfig that has a certificate and its key within it.
func embedding(certificate, key []byte) string {
	is := fmt.Sprintf("user: {client-certificate-data: %s, client-key-data: %s}",
		base64.StdEncoding.EncodeToString(certificate), base64.StdEncoding.EncodeToString(key))
	return strings.Replace(strings.Replace(kubeconfig, "user: {}", is, 1), "http:", "https:", 1)
}

// TestCertificatesExpire: config check tells of a client certificate that has expired, and metrics
// tell of each when it will.
func TestCertificatesExpire(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	dir := t.TempDir()
	put := func(name string, text []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	user := func(name string, left time.Duration) string {
		t.Helper()
		certificate, key := pair(t, left)
		return put(name, []byte(embedding(certificate, key)))
	}
	certificate, key := pair(t, -time.Hour)
	cert, secret, expired := put("etcd.crt", certificate), put("etcd.key", key), user("expired", -time.Hour)
	_, said := p.run(2, "config", "check", "--etcd-endpoints", "https://127.0.0.1:9", "--etcd-cert", cert, "--etcd-key", secret, "--kubeconfig", expired)
	contains(t, "config check", said, "the client certificate "+cert+" has expired at", "the client certificate "+expired+" has expired at")
	certificate, key = pair(t, time.Minute)
	p.run(0, "config", "check", "--etcd-endpoints", "https://127.0.0.1:9", "--etcd-cert", put("etcd.crt", certificate), "--etcd-key", put("etcd.key", key),
		"--kubeconfig", user("good", time.Minute))
	certificate, key = pair(t, 300*24*time.Hour)
	put("user.crt", certificate)
	put("user.key", key)
	file := put("files", []byte(strings.Replace(strings.Replace(kubeconfig, "user: {}", "user: {client-certificate: user.crt, client-key: user.key}", 1), "http:", "https:", 1)))
	ctx, cancel := context.WithCancel(t.Context())
	_, stderr, code := p.start(ctx, "run", "--kubeconfig", file, "--listen", "127.0.0.1:0")
	await(t, "it listens", func() bool { return strings.Contains(stderr.String(), "listening") })
	soon := func() string {
		_, body := get(t, listens(stderr.String()), "/metrics")
		label := fmt.Sprintf(`{file=%q} `, filepath.Join(dir, "user.crt"))
		contains(t, "metrics", body, "ironherd_reconciler_certificate_expires_timestamp_seconds"+label)
		_, value, _ := strings.Cut(body, "ironherd_reconciler_certificate_expires_soon"+label)
		return value[:min(1, len(value))]
	}
	if got := soon(); got != "0" {
		t.Errorf("300 days are left, and it expires soon: %q", got)
	}
	certificate, key = pair(t, 24*time.Hour)
	put("user.crt", certificate)
	put("user.key", key)
	if got := soon(); got != "1" {
		t.Errorf("a day is left, and it does not expire soon: %q", got)
	}
	cancel()
	code()
}

// TestEmbeddedCertificateInUse: a certificate within the kubeconfig is read once, so the warning
// stays until the process that presents the old one is started again.
func TestEmbeddedCertificateInUse(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	renew := func(left time.Duration) {
		t.Helper()
		certificate, key := pair(t, left)
		if err := os.WriteFile(file, []byte(embedding(certificate, key)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	soon := fmt.Sprintf("ironherd_reconciler_certificate_expires_soon{file=%q} ", file)
	renew(24 * time.Hour)
	for _, want := range []string{"1", "0"} {
		ctx, cancel := context.WithCancel(t.Context())
		_, stderr, code := p.start(ctx, "run", "--kubeconfig", file, "--listen", "127.0.0.1:0")
		await(t, "it listens", func() bool { return strings.Contains(stderr.String(), "listening") })
		for range 2 { // before and after a renewal
			_, body := get(t, listens(stderr.String()), "/metrics")
			contains(t, "metrics", body, soon+want)
			renew(300 * 24 * time.Hour)
		}
		cancel()
		code()
	}
}
