package postgres_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
)

// authority signs certificates.
type authority struct {
	t           *testing.T
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	pem         []byte
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	a.certificate = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = newKey(t)
	a.pem = a.sign(a.certificate, a.key)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(c *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// pair makes a certificate, of 127.0.0.1 and with that serial number, and its key.
func (a *authority) pair(serial int64) (certificate, key []byte) {
	a.t.Helper()
	private := newKey(a.t)
	certificate = a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "herd"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, private)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// guarded is a server that wants a password and is verified, and the files by which one does that.
type guarded struct {
	t      *testing.T
	server *pgserver.Server
	dir    string
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	server, err := pgserver.Start(context.WithoutCancel(t.Context()), pgserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	g := &guarded{t: t, server: server, dir: t.TempDir()}
	g.exec("CREATE ROLE herd LOGIN PASSWORD 'first'", "CREATE DATABASE herd OWNER herd")
	g.keep("pg_hba.conf", []byte("host all herd 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"))
	return g
}

func (g *guarded) path(name string) string { return filepath.Join(g.dir, name) }

func (g *guarded) url() string {
	u, err := url.Parse(g.server.URL("herd"))
	if err != nil {
		g.t.Fatal(err)
	}
	u.User = url.User("herd")
	u.RawQuery = fmt.Sprintf("sslmode=verify-full&sslrootcert=%s&sslcert=%s&sslkey=%s&passfile=%s", g.path("ca"), g.path("cert"), g.path("key"), g.path("pass"))
	return u.String()
}

func (g *guarded) exec(statements ...string) {
	g.t.Helper()
	if err := g.server.Exec(context.WithoutCancel(g.t.Context()), "postgres", statements...); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guarded) keep(name string, content []byte) {
	g.t.Helper()
	if err := g.server.Keep(name, content); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guarded) write(name string, content []byte) {
	g.t.Helper()
	if err := os.WriteFile(g.path(name), content, 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// serve has the server known by a certificate of an authority, and ask for one of clients by it.
func (g *guarded) serve(by *authority) {
	g.t.Helper()
	certificate, key := by.pair(1)
	g.keep("server.crt", certificate)
	g.keep("server.key", key)
	g.keep("root.crt", by.pem)
	g.exec("ALTER SYSTEM SET ssl_ca_file = 'root.crt'", "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
	g.write("server-ca", by.pem)
	await(g.t, "the server is known by the authority", func() bool {
		conn, err := pgx.Connect(g.t.Context(), strings.Replace(g.server.URL("postgres"), "sslmode=disable", "sslmode=verify-full&sslrootcert="+url.QueryEscape(g.path("server-ca")), 1))
		if err != nil {
			return false
		}
		return conn.Close(g.t.Context()) == nil
	})
}

// believe writes the files of a client.
func (g *guarded) believe(authorities []byte, by *authority, serial int64, password string) {
	g.t.Helper()
	certificate, key := by.pair(serial)
	g.write("ca", authorities)
	g.write("cert", certificate)
	g.write("key", key)
	g.write("pass", []byte("*:*:*:*:"+password+"\n"))
}

// cut ends all connections of the role, and waits until they are gone.
func (g *guarded) cut() {
	g.t.Helper()
	g.exec("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'herd'")
}

// serial is the serial number of the certificate that a connection of the engine has shown, which
// is none of those that were cut.
func serial(t *testing.T, e *postgres.Engine) (n string, err error) {
	t.Helper()
	for cut := true; cut; cut = err != nil && strings.Contains(err.Error(), "(SQLSTATE 57P01)") {
		err = e.Peek(t.Context(), func(ctx context.Context, tx bmdb.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT CAST(client_serial AS TEXT) FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&n)
		})
	}
	return n, err
}

// TestFilesAreReadForEachConnection: the authorities, the client's certificate and key, and the
// password are other ones now; an engine that runs goes on with these, and so do its notifications.
func TestFilesAreReadForEachConnection(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	g.serve(first)
	g.believe(first.pem, first, 11, "first")
	e := open(t, g.url(), postgres.Options{})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	listens := func() bool {
		return query[int](t, g.server.URL("postgres"), "SELECT count(*) FROM pg_stat_activity WHERE usename = 'herd' AND query LIKE 'LISTEN%'") == 1
	}
	await(t, "it listens", listens)
	if n, err := serial(t, e); n != "11" || err != nil {
		t.Fatalf("the first certificate: %s, %v", n, err)
	}
	g.serve(second)
	g.exec("ALTER ROLE herd PASSWORD 'second'")
	g.believe(append(first.pem, second.pem...), second, 22, "second")
	g.cut()
	if n, err := serial(t, e); n != "22" || err != nil {
		t.Errorf("the second certificate: %s, %v", n, err)
	}
	await(t, "it listens again", listens)
}

// TestFilesThatCannotBeUsedFailOneConnection: it is told in one sentence, without a secret, and is
// over once they can be.
func TestFilesThatCannotBeUsedFailOneConnection(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	a := newAuthority(t, "first")
	g.serve(a)
	g.believe(a.pem, a, 11, "first")
	e := open(t, g.url(), postgres.Options{Silent: true})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	_, foreign := a.pair(33)
	for name, c := range map[string]struct {
		damage func() error
		want   string
	}{
		"ca":   {func() error { return os.Remove(g.path("ca")) }, "the file " + g.path("ca") + " cannot be read: no such file or directory"},
		"cert": {func() error { return os.WriteFile(g.path("cert"), []byte("first"), 0o600) }, "cannot be understood: unable to load cert: tls: failed to find any PEM data in certificate input (its files are " + g.path("ca")},
		"key":  {func() error { return os.WriteFile(g.path("key"), foreign, 0o600) }, "cannot be understood: unable to load cert: tls: private key does not match public key (its files are " + g.path("ca")},
		"open": {func() error { return os.Chmod(g.path("key"), 0o644) }, g.path("key") + " is open to others (mode 0644)"},
		"pass": {func() error { return os.Chmod(g.path("pass"), 0o644) }, g.path("pass") + " is open to others (mode 0644)"},
	} {
		g.cut()
		if err := c.damage(); err != nil {
			t.Fatal(err)
		}
		_, err := serial(t, e)
		if fleet.KindOf(err) != fleet.KindTemporary || !errors.Is(err, bmdb.ErrUnavailable) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if _, err := postgres.Open(t.Context(), g.url(), postgres.Options{Silent: true}); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, at the start: %v, want %s", name, err, c.want)
		}
		for _, private := range []string{"key", "pass"} {
			if err := os.Chmod(g.path(private), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		g.believe(a.pem, a, 44, "first")
		if n, err := serial(t, e); n != "44" || err != nil {
			t.Errorf("%s, mended: %s, %v", name, n, err)
		}
	}
}

// TestFilesOfAnAddress are named as the driver reads the address.
func TestFilesOfAnAddress(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"a+b.pem": "a+b.pem", "a%2Bb.pem": "a+b.pem", "a;b.pem": "a;b.pem", "a%20b.pem": "a b.pem"} {
		if got := postgres.Files("postgres://h/d?sslkey=/old.pem&sslkey=/run/" + name); !slices.Contains(got, "/run/"+want) || slices.Contains(got, "/old.pem") {
			t.Errorf("%s: %q", name, got)
		}
	}
}
