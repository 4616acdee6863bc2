package fleetapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/token"
)

// TestInstallsAreNotVerifiedByWhatHasExpired: one certificate that counts is enough.
func TestInstallsAreNotVerifiedByWhatHasExpired(t *testing.T) {
	t.Parallel()
	until := func(end time.Time) string {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.AddDate(-1, 0, 0), NotAfter: end, IsCA: true, BasicConstraintsValid: true}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	old, next := until(time.Now().Add(-time.Hour)), until(time.Now().Add(time.Hour))
	o := newFixture(t)
	o.machines(1)
	request := wanted("host-0")
	request.SeenUp, request.SeenUpCa = "https://web.example/", old
	const fault = "seen_up_ca must hold a certificate that has not expired"
	if _, err := o.client(token.Operator).InstallMachine(t.Context(), request); err == nil || !strings.Contains(err.Error(), fault) {
		t.Errorf("with an expired one: %v", err)
	}
	request.SeenUpCa = old + next
	_, err := o.client(token.Operator).InstallMachine(t.Context(), request)
	o.must(err)
}
