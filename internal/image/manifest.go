package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
)

// generator numbers the way that images are made; it is part of what UUIDs are derived from.
const generator = 3

// Manifest describes an image. It lies beside it as JSON.
type Manifest struct {
	// File is the name of the image's file, without directory.
	File string `json:"file"`
	// Digest of the raw image: "sha256:" and 64 hexadecimal digits. An install asks for it.
	Digest string `json:"digest"`
	// Compression is "none" or "zstd".
	Compression string `json:"compression"`
	// Size of the raw image and of the file, in bytes.
	Size     int64 `json:"size"`
	FileSize int64 `json:"file_size"`
	// FileDigest is that of the file as it is. An install may be asked for by it, too.
	FileDigest   string    `json:"file_digest"`
	Suite        string    `json:"suite"`
	Architecture string    `json:"architecture"`
	Timestamp    time.Time `json:"timestamp"`
	// ReportsUp says that the image tells the control plane when it is up.
	ReportsUp bool      `json:"reports_up"`
	Packages  []Package `json:"packages"`
}

// Package is one that is installed in an image.
type Package struct {
	Name         string `json:"name"`
	Version      string `json:"version"`
	Architecture string `json:"architecture"`
}

// assemble makes the image of its parts, and the manifest, and puts both in their places.
func (b *builder) assemble(ctx context.Context, tree string) (Manifest, error) {
	fail := func(err error) (Manifest, error) {
		return Manifest{}, fmt.Errorf("write the image: %w", err)
	}
	raw := filepath.Join(b.work, "disk.raw")
	size, err := b.makeDisk(ctx, tree, raw)
	if err != nil {
		return fail(err)
	}
	name, compressed, err := b.names()
	if err != nil {
		return fail(err)
	}
	m := Manifest{
		File: filepath.Base(b.Output), Compression: "none", Size: size, Suite: b.Suite, Architecture: "amd64",
		Timestamp: b.Timestamp, ReportsUp: b.Agent != "", Packages: b.packages,
	}
	file := raw
	if compressed {
		m.Compression, file = "zstd", filepath.Join(b.work, "disk.raw.zst")
	}
	if err := m.digest(ctx, raw, file); err != nil {
		return fail(err)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fail(err)
	}
	manifest := filepath.Join(b.work, "manifest")
	if err := os.WriteFile(manifest, append(text, '\n'), 0o644); err != nil { //nolint:gosec // for everybody
		return fail(err)
	}
	if err := b.publish(file, manifest, name); err != nil {
		return fail(err)
	}
	return m, nil
}

// publish puts image and manifest in their places. A manifest never describes another image than
// the one beside it. Everybody may read both, whatever the umask is: a web server serves them.
func (b *builder) publish(file, manifest, name string) error {
	if err := b.manifestPlace(); err != nil { // somebody may have taken it meanwhile
		return err
	}
	for _, made := range []string{file, manifest} {
		if err := os.Chmod(made, 0o644); err != nil { //nolint:gosec // for everybody
			return err
		}
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(file, b.Output); err != nil {
		return err
	}
	return os.Rename(manifest, name)
}

// digest reads the raw image once: for its digest, and, where file is another one, to compress it.
func (m *Manifest) digest(ctx context.Context, raw, file string) (err error) {
	source, err := os.Open(raw)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	whole, stored := sha256.New(), sha256.New()
	reader := io.TeeReader(&interruptible{ctx, source}, whole)
	if file == raw {
		if _, err := io.Copy(io.Discard, reader); err != nil {
			return err
		}
		stored, m.FileSize = whole, m.Size
	} else if m.FileSize, err = compress(file, reader, stored); err != nil {
		return err
	}
	m.Digest = fmt.Sprintf("sha256:%x", whole.Sum(nil))
	m.FileDigest = fmt.Sprintf("sha256:%x", stored.Sum(nil))
	return nil
}

// compress writes the file and returns its size; stored gets a copy.
func compress(path string, raw io.Reader, stored io.Writer) (size int64, err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	buffered := bufio.NewWriterSize(io.MultiWriter(file, stored), mebibyte)
	// One encoder, one result, whatever the number of processors.
	encoder, err := zstd.NewWriter(buffered, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return 0, err
	}
	if _, err := io.Copy(encoder, raw); err != nil {
		return 0, errors.Join(err, encoder.Close())
	}
	if err := errors.Join(encoder.Close(), buffered.Flush(), file.Sync()); err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// interruptible is a reader that ends with a context.
type interruptible struct {
	ctx    context.Context //nolint:containedctx // one reader, one copy
	reader io.Reader
}

func (r *interruptible) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.reader.Read(p)
}
