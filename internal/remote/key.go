package remote

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// Key is the private key that a Dialer proves to hosts. It is safe for concurrent use, and printing
// it shows its fingerprint alone.
type Key struct {
	signer ssh.Signer
	// secret is the private half in PKCS #8, which is the same whatever file the key was read from.
	secret []byte
}

// maximumKey is more than any private key takes, in bytes.
const maximumKey = 64 << 10

// OpenKey reads a private key in OpenSSH or PEM form. It refuses a key with a passphrase, because
// nobody is there to type it, and a key that others can read. Errors are of kind Invalid and never
// quote the file.
func OpenKey(path string) (*Key, error) {
	data, err := secret.Read(path, maximumKey)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "read SSH key: %w", err)
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "SSH key %s: %w", path, err)
	}
	return key, nil
}

// parseKey is OpenKey for a key in memory.
func parseKey(data []byte) (*Key, error) {
	private, err := ssh.ParseRawPrivateKey(data)
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked {
		return nil, fleet.Errorf(fleet.KindInvalid, "the private key has a passphrase: use one without")
	}
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "not a private key in OpenSSH or PEM form: make one with `ssh-keygen -t ed25519`, without a passphrase")
	}
	return newKey(private)
}

// newKey returns the key with that private half, as package ssh or a crypto package gives it.
func newKey(private any) (*Key, error) {
	if pointer, ok := private.(*ed25519.PrivateKey); ok {
		private = *pointer
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "the private key is of a kind that is not supported: use an Ed25519, ECDSA or RSA key")
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "the private key cannot be used: %w", err)
	}
	return &Key{signer: signer, secret: secret}, nil
}

// NewKey returns a fresh Ed25519 key and its private half in OpenSSH form, for a file that only its
// owner can read.
func NewKey(comment string) (*Key, []byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate SSH key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, nil, fmt.Errorf("encode SSH key: %w", err)
	}
	key, err := newKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("use SSH key: %w", err)
	}
	return key, pem.EncodeToMemory(block), nil
}

// DeriveHostKey makes the Ed25519 host key of one machine: the same for the same key and label,
// so that nobody needs to store it, and another for any other label. Who knows some of them learns
// nothing of the others, nor of the key. It returns the public half in authorized_keys form, and
// the private one in OpenSSH form.
func (k *Key) DeriveHostKey(label string) (public, private string, err error) {
	seed, err := hkdf.Key(sha256.New, k.secret, nil, "ironherd host key 1 "+label, ed25519.SeedSize)
	if err != nil {
		return "", "", fmt.Errorf("derive host key: %w", err)
	}
	made := ed25519.NewKeyFromSeed(seed)
	encoded, err := EncodeHostKey(made)
	if err != nil {
		return "", "", err
	}
	return HostKeyOf(made.Public().(ed25519.PublicKey)), string(encoded), nil
}

// HostKeyOf returns the public half of an Ed25519 host key in authorized_keys form; empty where it
// is none.
func HostKeyOf(public ed25519.PublicKey) string {
	if len(public) != ed25519.PublicKeySize {
		return ""
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return ""
	}
	return authorized(key)
}

// EncodeHostKey returns the private half of a host key in OpenSSH form, as sshd reads it.
func EncodeHostKey(private ed25519.PrivateKey) ([]byte, error) {
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, fmt.Errorf("encode host key: %w", err)
	}
	return pem.EncodeToMemory(block), nil
}

// Public returns the public half in authorized_keys form, without a comment.
func (k *Key) Public() string { return authorized(k.signer.PublicKey()) }

// Fingerprint returns the fingerprint of the public half, such as "SHA256:…".
func (k *Key) Fingerprint() string { return ssh.FingerprintSHA256(k.signer.PublicKey()) }

// String names the key by its fingerprint, so that printing one gives nothing away.
func (k *Key) String() string { return k.Fingerprint() }

// GoString does so, too.
func (k *Key) GoString() string { return k.Fingerprint() }

func parsePublic(text string) (ssh.PublicKey, error) {
	key, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, fleet.Errorf(fleet.KindInvalid, "%.100q is not one public key in authorized_keys form", text)
	}
	return key, nil
}

// maxHostKeys is how many keys a host may have.
const maxHostKeys = 16

// ParseHostKeys returns those of the texts that are public keys, at most 16, as this package writes
// them: in authorized_keys form, without comments. It returns how many it has left out.
func ParseHostKeys(texts []string) (keys []string, leftOut int) {
	for _, text := range texts {
		if key, err := parsePublic(text); err == nil && len(keys) < maxHostKeys {
			keys = append(keys, authorized(key))
		}
	}
	return keys, len(texts) - len(keys)
}

// Fingerprint returns the fingerprint of a public key in authorized_keys form, as ssh-keygen shows
// it; "" when it is no key.
func Fingerprint(key string) string {
	parsed, err := parsePublic(key)
	if err != nil {
		return ""
	}
	return ssh.FingerprintSHA256(parsed)
}

func authorized(key ssh.PublicKey) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}
