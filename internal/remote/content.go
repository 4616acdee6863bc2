package remote

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Content is a file to be uploaded to many hosts. It is kept in memory and compressed only once. It
// is safe for concurrent use.
type Content struct {
	data   []byte
	digest string

	compress   sync.Once
	compressed []byte
}

// NewContent returns content with this data, which the caller must not change afterwards.
func NewContent(data []byte) *Content {
	sum := sha256.Sum256(data)
	return &Content{data: data, digest: hex.EncodeToString(sum[:])}
}

// ReadContent reads a file, and refuses an empty one. Errors are of kind Invalid.
func ReadContent(path string) (*Content, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "read content to upload: %w", err)
	}
	if len(data) == 0 {
		return nil, fleet.Errorf(fleet.KindInvalid, "%s is empty", path)
	}
	return NewContent(data), nil
}

// Digest returns the SHA-256 in hexadecimal.
func (c *Content) Digest() string { return c.digest }

// Size returns the size in bytes.
func (c *Content) Size() int64 { return int64(len(c.data)) }

// Path returns where this content is kept on a host: base with the digest appended.
func (c *Content) Path(base string) string { return base + "-" + c.digest }

// gzipped returns the compressed form.
func (c *Content) gzipped() []byte {
	c.compress.Do(func() {
		var buffer bytes.Buffer
		writer, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
		if err != nil {
			panic(err) // the level is a constant
		}
		_, _ = writer.Write(c.data) // a bytes.Buffer takes everything
		_ = writer.Close()
		c.compressed = buffer.Bytes()
	})
	return c.compressed
}
