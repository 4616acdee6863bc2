package prober_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// certificates makes an authority and a server's certificate by it, each valid in 1998 and until
// the time that is given.
func certificates(t *testing.T, authorityEnds, serverEnds time.Time) (ca string, server tls.Certificate) {
	t.Helper()
	begin := time.Date(1998, 1, 1, 0, 0, 0, 0, time.UTC)
	sign := func(template, parent *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) []byte {
		template.NotBefore, template.BasicConstraintsValid = begin, true
		raw, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
		check(t, err)
		return raw
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the authority"}, NotAfter: authorityEnds,
		IsCA: true, KeyUsage: x509.KeyUsageCertSign,
	}
	root := sign(authority, authority, &authorityKey.PublicKey, authorityKey)
	leaf := sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "the server"}, NotAfter: serverEnds, DNSNames: []string{"web.example"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, authority, &serverKey.PublicKey, authorityKey)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root})),
		tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: serverKey}
}

// TestAnExpiredCertificateIsOneFinding, however often the system is asked: what is found names the
// end of the certificate, and no time of day. Another text would be another row of history.
func TestAnExpiredCertificateIsOneFinding(t *testing.T) {
	t.Parallel()
	// A bubble begins at midnight of 2000-01-01 in UTC.
	past, future := time.Date(1999, 6, 1, 12, 30, 0, 0, time.UTC), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		authority, server time.Time
		whose             string
	}{
		"of the server": {future, past, "CN=the server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca, certificate := certificates(t, test.authority, test.server)
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, fleet.SeenUp{By: fleet.SeenByHTTP, URL: "https://web.example/", CA: ca})
				s.answers(web(func(http.ResponseWriter, *http.Request) {}, &tls.Config{Certificates: []tls.Certificate{certificate}}))
				s.run(30 * time.Second)
				first, rows := s.herd.Record(s.machine).Probe.Detail, s.count(fleet.EventFinished)
				for _, words := range []string{
					"GET: tls: failed to verify certificate: ", "expired", "from 1998-01-01 00:00:00 UTC to 1999-06-01 12:30:00 UTC", test.whose,
				} {
					if !strings.Contains(first, words) {
						t.Errorf("found: %s; it does not say %q", first, words)
					}
				}
				s.run(10 * time.Minute)
				if again := s.herd.Record(s.machine).Probe.Detail; again != first {
					t.Errorf("found: %s\nten minutes before: %s", again, first)
				}
				if more := s.count(fleet.EventFinished) - rows; more != 0 {
					t.Errorf("history has %d more rows of one thing that was found", more)
				}
				s.wantState(fleet.StateBooting, "1999-06-01 12:30:00 UTC")
			})
		})
	}
}

// TestAnAuthorityThatHasExpiredIsNoFaultOfTheSystem: whoever was given it cannot ask any more,
// which is told once, and no machine is restarted for that.
func TestAnAuthorityThatHasExpiredIsNoFaultOfTheSystem(t *testing.T) {
	t.Parallel()
	past, future := time.Date(1999, 6, 1, 12, 30, 0, 0, time.UTC), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	ca, certificate := certificates(t, past, future)
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, fleet.SeenUp{By: fleet.SeenByHTTP, URL: "https://web.example/", CA: ca})
		s.answers(web(func(http.ResponseWriter, *http.Request) {}, &tls.Config{Certificates: []tls.Certificate{certificate}}))
		for range 8 {
			s.run(12 * time.Minute)
			if p := s.herd.Record(s.machine).Probe; p != nil {
				t.Fatalf("found: %s", p.Detail)
			}
		}
		s.wantState(fleet.StateBooting, "the probe could not be made: GET: tls: failed to verify certificate: ")
		s.wantState(fleet.StateBooting, "from 1998-01-01 00:00:00 UTC to 1999-06-01 12:30:00 UTC (CN=the authority)")
		summary, err := s.herd.DB.Summary(t.Context())
		check(t, err)
		if summary.Unasked.N != 1 {
			t.Errorf("%d systems cannot be asked", summary.Unasked.N)
		}
	})
}
