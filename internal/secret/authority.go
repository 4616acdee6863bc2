package secret

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// MaxAuthority bounds the certificates that others verify an endpoint by, in bytes of PEM. An agent
// takes them in a message, and an installed system finds them in its first-boot area. A chain of an
// authority's certificates has a few KiB, and a bundle of the world's authorities 200 KiB.
const MaxAuthority = 32 << 10

// ReadAuthority returns the certificates of a PEM file by which others verify an endpoint, and
// nothing else that is in it, such as the authority's own private key: they are given away. Its
// errors are of kind Invalid.
func ReadAuthority(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, Unreadable(path, err)
	}
	var certificates []byte
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fleet.Errorf(fleet.KindInvalid, "a certificate of %s cannot be read: %w", path, err)
		}
		certificates = append(certificates, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	switch {
	case len(certificates) == 0:
		return nil, fleet.Errorf(fleet.KindInvalid, "%s holds no certificate in PEM form", path)
	case len(certificates) > MaxAuthority:
		return nil, fleet.Errorf(fleet.KindInvalid, "%s has %d bytes of certificates, and at most %d are possible: "+
			"name the certificate of the one authority, not a bundle of many", path, len(certificates), MaxAuthority)
	}
	return certificates, nil
}

// CheckAuthority returns the error of ReadAuthority.
func CheckAuthority(path string) error {
	_, err := ReadAuthority(path)
	return err
}

// soon is when the end of a certificate or of a token is worth a word: when a tenth of its life is
// left, and at most two weeks. Those who renew certificates do so well before.
const soon = 14 * 24 * time.Hour

// ExpiresSoon reports whether what counts from one time until another expires soon, or has expired.
func ExpiresSoon(from, until, now time.Time) bool {
	return until.Sub(now) < min(soon, until.Sub(from)/10)
}
