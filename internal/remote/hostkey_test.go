package remote

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

func pemOf(t *testing.T, private any) []byte {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(private, "a comment")
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block)
}

// TestDerivedHostKeys: the same key and label give the same host key, whatever file the key is read
// from; anything else gives another.
func TestDerivedHostKeys(t *testing.T) {
	t.Parallel()
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	factors, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := NewKey("someone")
	if err != nil {
		t.Fatal(err)
	}
	rfc8017 := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(factors)})
	seen := map[string]string{}
	for name, files := range map[string][2][]byte{
		"ed25519": {edwards, edwards}, "ecdsa": {pemOf(t, curve), pemOf(t, curve)}, "rsa": {pemOf(t, factors), rfc8017},
	} {
		for _, label := range []string{"machine-1", "machine-2"} {
			var publics []string
			for _, file := range files {
				key, err := parseKey(file)
				if err != nil {
					t.Fatal(err)
				}
				public, private, err := key.DeriveHostKey(label)
				if err != nil {
					t.Fatal(err)
				}
				again, err := parseKey([]byte(private))
				if err != nil || again.Public() != public || !strings.HasPrefix(public, "ssh-ed25519 ") {
					t.Errorf("%s: the halves do not fit: %v", name, err)
				}
				publics = append(publics, public)
				if text := fmt.Sprintf("%v %+v %s %#v", key, key, key, key); strings.Contains(text, "secret") || len(text) > 300 {
					t.Errorf("%s: printing a key shows %.80s…", name, text)
				}
			}
			if publics[0] != publics[1] {
				t.Errorf("%s, %s: two host keys of one key: %q", name, label, publics)
			}
			if other, twice := seen[publics[0]]; twice {
				t.Errorf("%s %s has the host key of %s", name, label, other)
			}
			seen[publics[0]] = name + " " + label
		}
	}
}

// TestDerivedHostKeysStay: machines exist that were given these.
func TestDerivedHostKeysStay(t *testing.T) {
	t.Parallel()
	const file = `-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
`
	key, err := parseKey([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := key.DeriveHostKey("ironherd-0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
	if err != nil || public != "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIENT+86uu7qu9YGfwdZq+K++ezZzbAUbStk/3NGvW1Ws" {
		t.Errorf("%s, %v", public, err)
	}
}
