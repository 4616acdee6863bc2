// Package image makes the disk images that a simulated world offers.
//
// An image is a function of seed, name and size: a partition table, stretches that do not compress,
// stretches that do, and holes. It is made once, streamed to a sparse file, and kept beside its
// description; making it again finds it there.
package image

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	mebibyte = 1 << 20
	// generator numbers the way that contents are made: a description of another one is not used.
	generator = 2
)

// Spec asks for an image.
type Spec struct {
	Name string
	// Size in bytes, a multiple of 1 MiB and at least 4 MiB.
	Size int64
	// Compression is "none" or "zstd".
	Compression string
	Seed        uint64
}

// Image is an image that is ready to be served.
type Image struct {
	Spec
	// Path of the file that is transferred, and its size.
	Path         string
	TransferSize int64
	// Digest of the raw image: "sha256:" and 64 hexadecimal digits.
	Digest    string
	Generator int
}

// Validate says what is wrong with a specification.
func (s Spec) Validate() error {
	var errs []error
	if s.Name == "" || strings.Trim(s.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") != "" || s.Name[0] == '.' {
		errs = append(errs, fmt.Errorf("image name %q: want letters, digits, dots and dashes", s.Name))
	}
	if s.Size < 4*mebibyte || s.Size%mebibyte != 0 {
		errs = append(errs, fmt.Errorf("image %q: size %d is not a multiple of 1 MiB of at least 4 MiB", s.Name, s.Size))
	}
	if s.Compression != "none" && s.Compression != "zstd" {
		errs = append(errs, fmt.Errorf("image %q: compression %q is not \"none\" or \"zstd\"", s.Name, s.Compression))
	}
	return errors.Join(errs...)
}

// Make returns the image in the directory, making it if it is not there.
func Make(dir string, spec Spec) (Image, error) {
	if err := spec.Validate(); err != nil {
		return Image{}, err
	}
	description := filepath.Join(dir, spec.Name+".json")
	if text, err := os.ReadFile(description); err == nil {
		var image Image
		if json.Unmarshal(text, &image) == nil && image.Spec == spec && image.Generator == generator {
			image.Path = filepath.Join(dir, filepath.Base(image.Path)) // the directory may have moved
			if info, err := os.Stat(image.Path); err == nil && info.Size() == image.TransferSize {
				return image, nil
			}
		}
	}
	image, err := write(dir, spec)
	if err != nil {
		return Image{}, fmt.Errorf("make image %s: %w", spec.Name, err)
	}
	text, err := json.Marshal(image)
	if err == nil {
		err = errors.Join(os.WriteFile(description+".new", text, 0o600), os.Rename(description+".new", description))
	}
	if err != nil {
		return Image{}, fmt.Errorf("make image %s: %w", spec.Name, err)
	}
	return image, nil
}

// Head returns the first n bytes of the raw image, of at most 1 MiB.
func (i Image) Head(n int64) ([]byte, error) {
	file, err := os.Open(i.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	head := make([]byte, min(n, mebibyte))
	var raw io.Reader = file
	if i.Compression == "zstd" {
		decoder, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer decoder.Close()
		raw = decoder
	}
	_, err = io.ReadFull(raw, head)
	return head, err
}

func write(dir string, spec Spec) (_ Image, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Image{}, err
	}
	path := filepath.Join(dir, spec.Name+".raw")
	if spec.Compression == "zstd" {
		path += ".zst"
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return Image{}, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	target, finish, err := encoder(file, spec.Compression)
	if err != nil {
		return Image{}, err
	}
	sum := sha256.New()
	if err := generate(spec, target, sum); err != nil {
		return Image{}, err
	}
	if err := finish(); err != nil {
		return Image{}, err
	}
	info, err := file.Stat()
	if err != nil {
		return Image{}, err
	}
	return Image{
		Spec: spec, Path: path, TransferSize: info.Size(), Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Generator: generator,
	}, nil
}

// encoder returns where blocks are to be written, and what is to be called at the end.
func encoder(file *os.File, compression string) (io.Writer, func() error, error) {
	if compression == "none" {
		s := &sparse{file: file}
		return s, func() error { return file.Truncate(s.offset) }, nil
	}
	buffered := bufio.NewWriterSize(file, mebibyte)
	z, err := zstd.NewWriter(buffered, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
	if err != nil {
		return nil, nil, err
	}
	return z, func() error { return errors.Join(z.Close(), buffered.Flush()) }, nil
}

// sparse writes a file and leaves holes for blocks of zeros.
type sparse struct {
	file   *os.File
	offset int64
}

var zeros = make([]byte, mebibyte)

// Write writes a block.
func (s *sparse) Write(block []byte) (int, error) {
	if !bytes.Equal(block, zeros[:len(block)]) {
		if n, err := s.file.WriteAt(block, s.offset); err != nil {
			return n, err
		}
	}
	s.offset += int64(len(block))
	return len(block), nil
}

// generate writes the image by blocks of 1 MiB.
func generate(spec Spec, target io.Writer, sum hash.Hash) error {
	key := sha256.Sum256(fmt.Appendf(nil, "image %d %d %s %d", generator, spec.Seed, spec.Name, spec.Size))
	random := rand.NewChaCha8(key)
	text := words(random)
	block := make([]byte, mebibyte)
	blocks := spec.Size / mebibyte
	primary, backup := partitionTable(spec.Size, random)
	for i := range blocks {
		switch {
		case i == 0:
			clear(block)
			copy(block, primary)
		case i == blocks-1:
			clear(block)
			copy(block[mebibyte-len(backup):], backup)
		case i%8 == 1: // what does not compress
			_, _ = random.Read(block)
		case i%8 == 2: // what does
			shift := int(random.Uint64() % uint64(len(text)))
			for n := 0; n < len(block); {
				n += copy(block[n:], text[shift:])
				shift = 0
			}
		default:
			clear(block)
		}
		sum.Write(block)
		if _, err := target.Write(block); err != nil {
			return err
		}
	}
	return nil
}

// words is a text that compresses about as well as programs do.
func words(random *rand.ChaCha8) []byte {
	vocabulary := make([][]byte, 4096)
	for i := range vocabulary {
		word := make([]byte, 3+random.Uint64()%9)
		_, _ = random.Read(word)
		vocabulary[i] = word
	}
	text := make([]byte, 0, mebibyte+16)
	for len(text) < mebibyte {
		text = append(text, vocabulary[random.Uint64()%uint64(len(vocabulary))]...)
	}
	return text
}
