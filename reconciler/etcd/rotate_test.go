package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/ironherd/ironherd/reconciler/etcd"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{t, cert, key}
}

// issue returns a certificate for a member at an address.
func (a authority) issue(ip string) *tls.Certificate {
	a.t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(ip)}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// TestAuthorityIsReadAnew: a client follows a rotation of etcd's authority while it runs, and
// refuses what an authority that is not in the file has signed, and what is for another address.
func TestAuthorityIsReadAnew(t *testing.T) {
	t.Parallel()
	before, after := newAuthority(t, "before"), newAuthority(t, "after")
	file := filepath.Join(t.TempDir(), "ca.crt")
	trust := func(all ...authority) {
		t.Helper()
		var text []byte
		for _, a := range all {
			text = append(text, a.pem()...)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	trust(before)
	var current atomic.Pointer[tls.Certificate]
	current.Store(before.issue("127.0.0.1"))
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// It knows no call of etcd: what comes to it is answered so.
	serve := func(ln net.Listener) *grpc.Server {
		server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil },
		})))
		go func() { _ = server.Serve(ln) }()
		return server
	}
	server := serve(ln)
	client, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: []string{"https://" + ln.Addr().String()}, CAFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// comes reports whether a call comes to the server within a time.
	comes := func(client *clientv3.Client, within time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		for ctx.Err() == nil {
			if _, err := client.Get(ctx, "x"); status.Code(err) == codes.Unimplemented {
				return true
			}
		}
		return false
	}
	// restart ends the connections, and has the server show another certificate.
	restart := func(cert *tls.Certificate) {
		t.Helper()
		server.Stop()
		current.Store(cert)
		address := ln.Addr().String()
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		// Somebody's connection may have the port.
		for errors.Is(err, syscall.EADDRINUSE) && t.Context().Err() == nil {
			<-time.After(5 * time.Millisecond)
			ln, err = new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		}
		if err != nil {
			t.Fatal(err)
		}
		server = serve(ln)
	}
	defer func() { server.Stop() }()
	const long, moment = time.Minute, time.Second
	if !comes(client, long) {
		t.Fatal("nothing comes by way of the first authority")
	}
	restart(after.issue("127.0.0.1"))
	if comes(client, moment) {
		t.Error("an authority that is not in the file is accepted")
	}
	trust(before, after)
	if !comes(client, long) {
		t.Error("an authority that has come into the file is not accepted")
	}
	restart(after.issue("192.0.2.1"))
	if comes(client, moment) {
		t.Error("a certificate for another address is accepted")
	}
	trust(after)
	restart(before.issue("127.0.0.1"))
	if comes(client, moment) {
		t.Error("an authority that has gone from the file is accepted")
	}
}
