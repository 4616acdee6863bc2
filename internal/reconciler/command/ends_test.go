package command

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
)

// TestEndsOfCertificatesAreLogged once a day, from two weeks before on.
func TestEndsOfCertificatesAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		made := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-349 * day), NotAfter: time.Now().Add(16 * day)}
		der, err := x509.CreateCertificate(rand.Reader, made, made, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		var c config
		c.etcd.CertFile = filepath.Join(t.TempDir(), "etcd.crt")
		if err := os.WriteFile(c.etcd.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 20*day+time.Hour)
		defer cancel()
		if err := c.tellEnds(ctx, resources.Certificate{}, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Error(err)
		}
		// On days 3 to 20: on day 2, exactly two weeks are left.
		if n := strings.Count(log.String(), "level=WARN msg=\"a client certificate expires soon, or has expired"); n != 18 || !strings.Contains(log.String(), "file="+c.etcd.CertFile) {
			t.Errorf("told %d times: %s", n, &log)
		}
	})
}
