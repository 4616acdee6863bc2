package etcd_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

// TestNobodyAnswers: whoever reads the error learns where etcd was looked for.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	const nobody = "http://127.0.0.1:1"
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{nobody}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = etcd.Read(ctx, client, etcd.Range{Key: "/x"})
	if fleet.KindOf(err) != fleet.KindTimeout || !strings.Contains(err.Error(), nobody) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

// TestMistakesAreTold: a mistake in an address or a certificate is told as what it is.
func TestMistakesAreTold(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	secure.StartTLS()
	defer secure.Close()
	demanding := httptest.NewUnstartedServer(http.NotFoundHandler())
	demanding.Config.ErrorLog = secure.Config.ErrorLog
	demanding.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	demanding.StartTLS()
	defer demanding.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	member := shared.Endpoints()[0]
	ca := filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	wrongHost := strings.Replace(secure.URL, "127.0.0.1", "localhost", 1)
	const slow = "it does not answer" // nobody does in time on a host that is busy enough
	diagnose := func(endpoint, ca string, mayBeSlow bool) (got string) {
		for late := time.Now().Add(time.Minute); ; {
			got = etcd.Diagnose(t.Context(), etcd.Config{Endpoints: []string{endpoint}, CAFile: ca})
			if mayBeSlow || !strings.HasSuffix(got, slow) || time.Now().After(late) {
				return got
			}
		}
	}
	for _, c := range []struct{ endpoint, ca, says string }{
		{"http://127.0.0.1:1", "", "nobody listens there"},
		{"https://" + strings.TrimPrefix(member, "http://"), "", "does not speak TLS"},
		{secure.URL, "", "not signed by an authority"},
		{wrongHost, ca, "not for this address"},
		{demanding.URL, ca, "does not accept our client certificate"},
		{strings.Replace(secure.URL, "https", "http", 1), "", "it speaks TLS, and the endpoint says http"},
		{other.URL, "", "not etcd's API for clients"},
		{"http://" + silent.Addr().String(), "", slow},
		{"http://no-such-host.invalid:2379", "", "cannot be resolved"},
	} {
		if got := diagnose(c.endpoint, c.ca, c.says == slow); !strings.Contains(got, c.endpoint+": ") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", c.endpoint, got, c.says)
		}
	}
	if got := diagnose(member, "", false); got != "" {
		t.Errorf("a healthy member: %s", got)
	}
}

// TestNoQuorumIsTold: two of three members are down.
func TestNoQuorumIsTold(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.New(t, 3)
	client := cluster.Client(t)
	cluster.Down(0)
	cluster.Down(1)
	for late := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := etcd.Read(ctx, client, etcd.Range{Key: "/x"})
		cancel()
		if fleet.KindOf(err) == fleet.KindTimeout && strings.Count(err.Error(), "nobody listens there") == 2 &&
			strings.Contains(err.Error(), "etcd has no leader") {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("got %v", err)
		}
	}
}
