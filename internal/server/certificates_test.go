package server_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

var discard = slog.New(slog.DiscardHandler)

func open(t *testing.T, dir string, hosts ...string) *server.Certificates {
	t.Helper()
	c, err := server.OpenCertificates(server.ForAgents, dir, hosts, discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func leaf(t *testing.T, c *server.Certificates) *x509.Certificate {
	t.Helper()
	pair, err := c.TLS().GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// verify says whether a client that was given this authority accepts the certificate for the host.
func verify(t *testing.T, c *server.Certificates, authority []byte, host string) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	_, err := leaf(t, c).Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: time.Now()})
	return err
}

func TestCertificatesSurviveRestarts(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tls")
	first := open(t, dir, "127.0.0.1", "herd.example")
	for _, host := range []string{"127.0.0.1", "herd.example"} {
		if err := verify(t, first, first.Authority(), host); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if err := verify(t, first, first.Authority(), "other.example"); err == nil {
		t.Error("the certificate is good for a host that nobody asked for")
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("files: %v", entries)
	}
	for _, e := range entries {
		if info, _ := e.Info(); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	second := open(t, dir, "127.0.0.1")
	if !bytes.Equal(first.Authority(), second.Authority()) || !leaf(t, first).Equal(leaf(t, second)) {
		t.Error("a restart made new certificates")
	}
	moved := open(t, dir, "::1")
	if !bytes.Equal(first.Authority(), moved.Authority()) {
		t.Error("another endpoint made another authority: agents that are out there would not know it")
	}
	if err := verify(t, moved, first.Authority(), "::1"); err != nil {
		t.Errorf("the new endpoint: %v", err)
	}
}

// TestCertificatesKeepEarlierEndpoints: agents go on to call the endpoint that they were started
// with. Nobody keeps a name of the operator API that the configuration does not have any more, and
// what another authority has signed counts for nothing.
func TestCertificatesKeepEarlierEndpoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := open(t, dir, "herd.example")
	open(t, dir, "192.0.2.1")
	last := open(t, dir, "2001:db8::1")
	for _, host := range []string{"herd.example", "192.0.2.1", "2001:db8::1"} {
		if err := verify(t, last, first.Authority(), host); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	for i := range 50 {
		last = open(t, dir, fmt.Sprintf("herd-%d.example", i))
	}
	if n := len(leaf(t, last).DNSNames) + len(leaf(t, last).IPAddresses); n != 20 {
		t.Errorf("the certificate has %d hosts", n)
	}
	if err := verify(t, last, first.Authority(), "herd-40.example"); err != nil {
		t.Errorf("one of the newest is gone: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "agent-ca.pem")); err != nil {
		t.Fatal(err)
	}
	if names := leaf(t, open(t, dir, "herd.example")).DNSNames; len(names) != 1 {
		t.Errorf("under another authority: %v", names)
	}
	for _, host := range []string{"old.example", "new.example"} {
		c, err := server.OpenCertificates(server.ForOperators, dir, []string{host}, discard)
		if err != nil {
			t.Fatal(err)
		}
		if names := leaf(t, c).DNSNames; len(names) != 1 || names[0] != host {
			t.Errorf("the operator API at %s: %v", host, names)
		}
	}
}

func TestCertificateIsRenewedInTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := open(t, dir, "127.0.0.1")
		authority, before := c.Authority(), leaf(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Serve(ctx) }()
		for range 3 * 365 {
			time.Sleep(24 * time.Hour) // fake time
			if left := time.Until(c.Expires()); left < 100*24*time.Hour {
				t.Fatalf("%s left", left)
			}
			if err := verify(t, c, authority, "127.0.0.1"); err != nil {
				t.Fatal(err)
			}
		}
		if leaf(t, c).Equal(before) {
			t.Error("never renewed")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestCertificatesOutliveAWrongClock: what was made while the clock was wrong, in either direction,
// serves when it is right again, and for clients that keep the authority.
func TestCertificatesOutliveAWrongClock(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	for name, test := range map[string]struct {
		wrong, right time.Duration // of the clock, from its start in 2000
	}{
		"ten years ahead": {10 * year, 0},
		"behind":          {0, 40 * year},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var authority []byte
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(test.wrong) // fake time
				authority = open(t, dir, "127.0.0.1").Authority()
			})
			synctest.Test(t, func(t *testing.T) { // begins in 2000 again
				time.Sleep(test.right)
				c := open(t, dir, "127.0.0.1")
				if err := verify(t, c, authority, "127.0.0.1"); err != nil {
					t.Error(err)
				}
				if left := time.Until(c.Expires()); left > year || left < year/2 {
					t.Errorf("%s left", left)
				}
			})
		})
	}
}

func TestTwoProcessesEndUpWithOneAuthority(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := make([]*server.Certificates, 8)
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() { all[i], _ = server.OpenCertificates(server.ForAgents, dir, []string{"localhost"}, discard) })
	}
	group.Wait()
	for _, c := range all {
		if c == nil || !bytes.Equal(c.Authority(), all[0].Authority()) {
			t.Fatal("they have different authorities")
		}
		if err := verify(t, c, all[0].Authority(), "localhost"); err != nil {
			t.Error(err)
		}
	}
}

func TestUnreadableCertificatesAreLeftAlone(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "garbage", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		dir := t.TempDir()
		path := filepath.Join(dir, "agent-ca.pem")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := server.OpenCertificates(server.ForAgents, dir, []string{"localhost"}, discard); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%q: got %v", content, err)
		}
		if now, _ := os.ReadFile(path); string(now) != content {
			t.Errorf("%q was overwritten", content)
		}
	}
}

func TestLoadedCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open(t, dir, "localhost")
	file, ca := filepath.Join(dir, "agent-server.pem"), filepath.Join(dir, "agent-ca.pem")
	config := server.CertificateConfig{Certificate: file, Key: file, CACertificate: ca}
	c, err := config.Open("", nil, "", discard)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(c.Authority(), []byte("PRIVATE")) {
		t.Error("agents would be given a private key")
	}
	if err := verify(t, c, c.Authority(), "localhost"); err != nil {
		t.Error(err)
	}
	for hosts, want := range map[string]string{
		"": "", "localhost": "", "old.example localhost": "",
		"localhost fleet.example": "the certificate of the agent API is not for fleet.example, which agents are told to call",
		"192.0.2.1":               "the certificate of the agent API is not for 192.0.2.1, which agents are told to call",
	} {
		c, err := config.Open("", strings.Fields(hosts), "", discard)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Fault(time.Now()); got != want {
			t.Errorf("told %q: %q, want %q", hosts, got, want)
		}
	}
	for hosts, want := range map[string]string{
		"": "", "localhost": "", "localhost fleet.example": "",
		"old.example localhost": "the certificate of the agent API is not for old.example, which installed systems are told to call",
		"192.0.2.1 localhost":   "the certificate of the agent API is not for 192.0.2.1, which installed systems are told to call",
	} {
		c, err := config.Open("", strings.Fields(hosts), "", discard)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Warning(time.Now()); got != want {
			t.Errorf("told %q: it warns %q, want %q", hosts, got, want)
		}
	}
	for _, bad := range []server.CertificateConfig{{Certificate: "a"}, {Key: "a"}, {CACertificate: "a"}} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	config.Key = ca
	if _, err := config.Open("", nil, "", discard); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("a key that is not the certificate's: %v", err)
	}
}

func FuzzCertificateFile(f *testing.F) {
	dir := f.TempDir()
	if _, err := server.OpenCertificates(server.ForAgents, dir, []string{"localhost"}, discard); err != nil {
		f.Fatal(err)
	}
	good, _ := os.ReadFile(filepath.Join(dir, "agent-ca.pem"))
	f.Add(good)
	f.Add([]byte("-----BEGIN CERTIFICATE-----"))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "agent-ca.pem"), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := server.OpenCertificates(server.ForAgents, dir, []string{"localhost"}, discard); err != nil && fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("got %v", err)
		}
	})
}

// TestACertificateTellsItsEnd: a word about one that nobody has renewed comes when a tenth of its
// life is left, at most two weeks before the end. One of a single day is not late all its life.
func TestACertificateTellsItsEnd(t *testing.T) {
	t.Parallel()
	for life, soon := range map[time.Duration]time.Duration{
		24 * time.Hour: 144 * time.Minute, 90 * 24 * time.Hour: 9 * 24 * time.Hour, 365 * 24 * time.Hour: 14 * 24 * time.Hour,
	} {
		from := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
		c := load(t, from, from.Add(life))
		end := c.Expires()
		if !end.Equal(from.Add(life)) {
			t.Errorf("%s: it ends at %s", life, end)
		}
		for at, want := range map[time.Time]bool{end.Add(-soon - time.Second): false, end.Add(-soon + time.Second): true, end.Add(time.Hour): true} {
			if got := c.ExpiresSoon(at); got != want {
				t.Errorf("%s: that it expires soon is %t %s before its end", life, got, end.Sub(at))
			}
		}
		if got := c.Fault(end); got != "" {
			t.Errorf("%s: %s", life, got)
		}
		if got := c.Fault(end.Add(time.Second)); !strings.HasPrefix(got, "the certificate of the agent API has expired at 20") {
			t.Errorf("%s: %q", life, got)
		}
		if got := c.Fault(from.Add(-time.Second)); !strings.Contains(got, "is not valid before 2026-11-22 10:00:00 UTC: is the clock of this host right?") {
			t.Errorf("%s: %q", life, got)
		}
	}
}

// load returns a configured certificate with that life.
func load(t *testing.T, from, until time.Time) *server.Certificates {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: until, DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pair.pem")
	content := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := server.LoadCertificates(server.ForAgents, file, file, file, discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
