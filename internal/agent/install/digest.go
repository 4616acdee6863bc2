package install

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// digest is what the bytes of an image, or of its file, must have.
type digest struct {
	algorithm string
	newHash   func() hash.Hash
	sum       []byte
}

// String returns the digest as it is asked for.
func (d *digest) String() string { return fmt.Sprintf("%s:%x", d.algorithm, d.sum) }

// hash returns what takes the bytes; nil where no digest is wanted.
func (d *digest) hash() hash.Hash {
	if d == nil {
		return nil
	}
	return d.newHash()
}

// check compares with what was hashed. what had the bytes. Nothing is wrong where no digest is
// wanted.
func (d *digest) check(what string, hashed hash.Hash) error {
	if d == nil {
		return nil
	}
	if sum := hashed.Sum(nil); !bytes.Equal(sum, d.sum) {
		return fmt.Errorf("%s has the digest %s:%x, not %s", what, d.algorithm, sum, d)
	}
	return nil
}

// parseDigest reads "sha256:" and 64 hexadecimal digits, or "sha512:" and 128.
func parseDigest(text string) (*digest, error) {
	algorithm, digits, _ := strings.Cut(text, ":")
	d := &digest{algorithm: algorithm}
	switch algorithm {
	case "sha256":
		d.newHash = sha256.New
	case "sha512":
		d.newHash = sha512.New
	default:
		return nil, errDigest
	}
	var err error
	if d.sum, err = hex.DecodeString(digits); err != nil || len(d.sum) != d.newHash().Size() {
		return nil, errDigest
	}
	return d, nil
}

var errDigest = errors.New("it is neither sha256: and 64 hexadecimal digits nor sha512: and 128")

// digestsOf returns the digests of an image that a request gives, nil for one that it does not. One
// of them it must, unless the manifest in a registry has one.
func digestsOf(image *agentv1.Image) (raw, file *digest, err error) {
	inRegistry := strings.HasPrefix(image.GetUrl(), "oci://")
	if image.GetDigest() != "" || image.GetFileDigest() == "" && !inRegistry {
		raw, err = parseDigest(image.GetDigest())
		if err != nil || raw.algorithm != "sha256" {
			return nil, nil, errors.New(`the image's digest is not "sha256:" and 64 hexadecimal digits`)
		}
	}
	if image.GetFileDigest() != "" {
		if file, err = parseDigest(image.GetFileDigest()); err != nil {
			return nil, nil, fmt.Errorf("the digest of the image's file cannot be read: %w", err)
		}
	}
	return raw, file, nil
}

// formats are what a file begins with that is no raw image, so that writing it as one is a mistake:
// of whoever said how the image is compressed, or of whoever took the wrong file. A digest of the
// file would not notice.
var formats = []struct {
	offset      int
	magic, name string
}{
	{0, "\x28\xb5\x2f\xfd", "is compressed by zstd"},
	{0, "\x1f\x8b\x08", "is compressed by gzip"},
	{0, "\xfd7zXZ\x00", "is compressed by xz"},
	{0, "BZh", "is compressed by bzip2"},
	{0, "QFI\xfb", "is a qcow2 file"},
	{0, "KDMV", "is a VMDK file"},
	{0, "vhdxfile", "is a VHDX file"},
	{257, "ustar", "is a tar archive"},
}

// refuseFormat fails for the beginning of what is no raw image.
func refuseFormat(head []byte) error {
	for _, f := range formats {
		if len(head) > f.offset && bytes.HasPrefix(head[f.offset:], []byte(f.magic)) {
			return fmt.Errorf("what would be written to the disk %s, and a raw image is wanted", f.name)
		}
	}
	return nil
}
