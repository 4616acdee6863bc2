package remote

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"os"
	"strings"
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
	// form tells the compressed form from those of other versions of the compressor.
	form string
}

// newContent returns content with this data, which the caller must not change afterwards.
func newContent(data []byte) *Content {
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
	return newContent(data), nil
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
		sum := sha256.Sum256(c.compressed)
		c.form = hex.EncodeToString(sum[:6])
	})
	return c.compressed
}

// partial returns where this content is kept on a host while it arrives: as it is, or packed.
func (c *Content) partial(base string, packed bool) string {
	if !packed {
		return c.Path(base) + partSuffix
	}
	c.gzipped()
	return c.Path(base) + "." + c.form + partSuffix
}

// Architecture returns what the content is a program for, in the notation of ELF, such as "x86_64";
// empty where it is none.
func (c *Content) Architecture() string {
	program, err := elf.NewFile(bytes.NewReader(c.data))
	if err != nil {
		return ""
	}
	defer func() { _ = program.Close() }()
	if program.Machine == elf.EM_386 {
		return "i386"
	}
	return strings.ToLower(strings.TrimPrefix(program.Machine.String(), "EM_"))
}
