package image

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// authorized returns the line of a public key.
func authorized(t *testing.T, key any) string {
	t.Helper()
	public, err := ssh.NewPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public)))
}

// ofToken returns the line of a key that lies in a security token.
func ofToken(kind string, fields ...string) string {
	blob := ssh.Marshal(struct{ Kind string }{kind})
	for _, field := range fields {
		blob = append(blob, ssh.Marshal(struct{ Field string }{field})...)
	}
	return kind + " " + base64.StdEncoding.EncodeToString(blob)
}

func TestCheckKeys(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key := authorized(t, public)
	good := map[string]string{
		"ed25519": key, "rsa": authorized(t, long.Public()), "a comment": key + " somebody@some.host with spaces", "lines of Windows": key + "\r\n",
		"more than one": "# those of ours\n\n" + key + "\n\t" + key + "\n", "an option": "restrict " + key,
		"options":            `from="10.0.0.0/8,*.example.com",command="echo \"a b\"",no-pty ` + key,
		"ed25519 of a token": ofToken("sk-ssh-ed25519@openssh.com", string(public), "ssh:"),
		"ecdsa of a token":   ofToken("sk-ecdsa-sha2-nistp256@openssh.com", "nistp256", "point", "ssh:"),
	}
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		pair, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		good[curve.Params().Name] = authorized(t, pair.Public())
	}
	for name, text := range good {
		if err := CheckKeys([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate := &ssh.Certificate{Key: signer.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"root"}}
	if err := certificate.SignCert(rand.Reader, signer); err != nil {
		t.Fatal(err)
	}
	encoded := strings.Fields(key)[1]
	const none, first = "there is no key in it", "line 1 is not a public key as in authorized_keys"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                {"", none},
		"comments":               {"# to come\n\n", none},
		"PuTTY's private key":    {"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPublic-Lines: 2\n" + encoded + "\nPrivate-Lines: 1\nAAAAIA==\n", first},
		"a page":                 {"<!DOCTYPE html>\n<title>Not found</title>\n", first},
		"a certificate":          {string(ssh.MarshalAuthorizedKey(certificate)), first},
		"known_hosts":            {"herd.example.com " + key, first},
		"known_hosts, hashed":    {"|1|AAAAAAAAAAAAAAAAAAAAAAAAAAA=|AAAAAAAAAAAAAAAAAAAAAAAAAAA= " + key, first},
		"known_hosts of a port":  {"[10.0.0.1]:2222 " + key, first},
		"one that is cut short":  {"ssh-ed25519 " + encoded[:len(encoded)-8], first},
		"its beginning":          {"ssh-ed25519 " + encoded[:20], first},
		"one under another type": {"ssh-rsa " + encoded, first},
		"one without its type":   {encoded, first},
		"DSA, which is refused":  {ofToken("ssh-dss", "p", "q", "g", "y"), first},
		"a second that is wrong": {key + "\n\nssh-ed25519 AAAA\n", "line 3 is not a public key as in authorized_keys"},
	} {
		if err := CheckKeys([]byte(c.text)); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
