package agentapi_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// deserted is a listener that nobody connects to.
type deserted struct{ closed chan struct{} }

func (l deserted) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

func (l deserted) Close() error {
	close(l.closed)
	return nil
}

func (deserted) Addr() net.Addr { return &net.TCPAddr{} }

// writeCertificate writes a certificate with its key, which is valid from now on for that time.
func writeCertificate(t *testing.T, file string, life time.Duration) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(life), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	content := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})...)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNoSilenceCountsUnderAnExpiredCertificate: agents refuse it. A process that knows that its
// certificate has expired is no listener, until somebody has renewed it.
func TestNoSilenceCountsUnderAnExpiredCertificate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		db := openBMDB(t)
		file := filepath.Join(t.TempDir(), "pair.pem")
		writeCertificate(t, file, time.Hour)
		certificates, err := server.LoadCertificates(server.ForAgents, file, file, "", discard)
		must(err)
		api := agentapi.New(db, agentapi.DefaultConfig(), agentapi.Options{Logger: discard, Certificates: certificates})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- api.Serve(ctx, deserted{make(chan struct{})}) }()
		go func() { ended <- certificates.Serve(ctx) }()
		defer func() {
			cancel()
			must(errors.Join(<-ended, <-ended))
		}()
		listens := func(when string, want bool) {
			t.Helper()
			env, err := db.Environment(t.Context())
			must(err)
			if got := !env.ListenerUpSince.IsZero(); got != want {
				t.Errorf("%s: that a listener is up is %t, since %s", when, got, env.ListenerUpSince)
			}
		}
		time.Sleep(59 * time.Minute)
		listens("a minute before its end", true)
		time.Sleep(2 * time.Minute)
		listens("a minute after its end", false)
		writeCertificate(t, file, 24*time.Hour)
		time.Sleep(11 * time.Minute) // it is read again every ten minutes
		listens("when it was renewed", true)
	})
}

// TestNoSilenceCountsUnderAnExpiredCertificateOfSeveral: that another process listens does not help
// agents that reach only the one whose certificate they refuse.
func TestNoSilenceCountsUnderAnExpiredCertificateOfSeveral(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newIdleFixture(t, sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}), nil)
		file := filepath.Join(t.TempDir(), "pair.pem")
		writeCertificate(t, file, time.Hour)
		certificates, err := server.LoadCertificates(server.ForAgents, file, file, "", discard)
		h.must(err)
		expires := agentapi.New(h.db, h.config, agentapi.Options{Logger: discard, Certificates: certificates})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 3)
		for _, api := range []*agentapi.Server{h.api, expires} {
			go func() { ended <- api.Serve(ctx, deserted{make(chan struct{})}) }()
		}
		go func() { ended <- certificates.Serve(ctx) }()
		defer func() {
			cancel()
			h.must(errors.Join(<-ended, <-ended, <-ended))
		}()
		m := h.machines(1, nil)[0]
		silent := func(when string, want int) {
			t.Helper()
			s := h.session()
			if got := len(h.claim(s, fleet.ProcessAgentStart)); got != want {
				t.Errorf("%s: %d machines are silent, want %d", when, got, want)
			}
			h.must(s.Close(t.Context(), "done"))
			env, err := h.db.Environment(t.Context())
			h.must(err)
			if env.ListenerUpSince.IsZero() {
				t.Errorf("%s: no listener is up", when)
			}
		}
		time.Sleep(59 * time.Minute)
		h.must(h.db.RecordSpoken(t.Context(), bmdb.AgentIdentity{
			Machine: m.id, TakeoverGeneration: m.generation, PublicKey: m.key.Public().(ed25519.PublicKey),
		}, "boot-1"))
		time.Sleep(time.Hour)
		silent("while one has expired", 0)
		writeCertificate(t, file, 24*time.Hour)
		time.Sleep(15 * time.Minute) // it is read again every ten minutes, and agents call again in four
		silent("when it was renewed", 1)
	})
}
