package install

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// maxWindow bounds the memory that a compressed image may ask for: what zstd --ultra -22 and twice
// what xz -9 uses.
const maxWindow = 128 << 20

// zstdDecoders are reused: a decoder is the largest thing that an install allocates. With a
// concurrency of 1 they own no goroutines, so that the collector may drop them.
var zstdDecoders = sync.Pool{New: func() any {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		panic(err) // the options are constants
	}
	return decoder
}}

var gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}

// decompress returns the raw image and what gives its buffers back; the latter is never nil.
func decompress(compressed io.Reader, compression agentv1.Compression) (raw io.Reader, release func(), err error) {
	nothing := func() {}
	switch compression {
	case agentv1.Compression_COMPRESSION_NONE:
		return compressed, nothing, nil
	case agentv1.Compression_COMPRESSION_ZSTD:
		decoder := zstdDecoders.Get().(*zstd.Decoder)
		release := func() {
			if decoder.Reset(nil) == nil {
				zstdDecoders.Put(decoder)
			}
		}
		rest := &ending{Reader: compressed}
		return &frames{decoder: decoder, rest: rest}, release, decoder.Reset(rest)
	case agentv1.Compression_COMPRESSION_GZIP:
		reader := gzipReaders.Get().(*gzip.Reader)
		release := func() { gzipReaders.Put(reader) }
		m := members{member: reader, rest: bufio.NewReader(compressed)}
		return m, release, m.begin()
	case agentv1.Compression_COMPRESSION_XZ:
		reader, err := xz.NewReader(compressed, maxWindow)
		return xzReader{reader}, nothing, xzError(err)
	}
	return nil, nothing, errors.New("the image's compression is not known")
}

// What copies an image block by block leaves zeros behind its compressed form, and each tool takes
// them. errFollows is for anything else.
var errFollows = errors.New("something follows the compressed image")

// members decodes the members of a gzip image, one after the other.
type members struct {
	member *gzip.Reader
	rest   *bufio.Reader // the decoder reads no further than it has to
}

// next goes on to the next member. io.EOF: there is none.
func (m members) next() error {
	head, err := m.rest.Peek(1)
	if err != nil {
		return err
	}
	if head[0] == 0 {
		return zerosOnly(m.rest)
	}
	if err = m.begin(); head[0] != 0x1f || errors.Is(err, gzip.ErrHeader) {
		return errFollows
	}
	return err
}

func (m members) begin() error {
	err := m.member.Reset(m.rest)
	m.member.Multistream(false)
	return err
}

// Read implements io.Reader.
func (m members) Read(buffer []byte) (int, error) {
	n, err := m.member.Read(buffer)
	if errors.Is(err, io.EOF) {
		err = m.next()
	}
	return n, err
}

// frames decodes the frames of a zstd image. It takes zeros behind them from four on, which is what
// the decoder has to read to know a frame.
type frames struct {
	decoder *zstd.Decoder
	rest    *ending // the decoder reads no further than it has to
	some    bool    // a part of the image was there
}

// Read implements io.Reader.
func (f *frames) Read(buffer []byte) (int, error) {
	n, err := f.decoder.Read(buffer)
	f.some = f.some || n > 0
	if f.some && errors.Is(err, zstd.ErrMagicMismatch) {
		if f.rest.last == [4]byte{} {
			return n, zerosOnly(f.rest)
		}
		err = errFollows
	}
	return n, err
}

// ending remembers the last bytes that were read.
type ending struct {
	io.Reader
	last [4]byte
}

// Read implements io.Reader.
func (e *ending) Read(buffer []byte) (int, error) {
	n, err := e.Reader.Read(buffer)
	if n >= len(e.last) {
		copy(e.last[:], buffer[n-len(e.last):n])
	} else {
		copy(e.last[:], e.last[n:])
		copy(e.last[len(e.last)-n:], buffer[:n])
	}
	return n, err
}

// zerosOnly reads to the end of what has only zeros, and returns how that has ended.
func zerosOnly(r io.Reader) error {
	buffer := make([]byte, zeroBlock)
	for {
		n, err := r.Read(buffer)
		if !bytes.Equal(buffer[:n], zeros[:n]) {
			return errFollows
		}
		if err != nil {
			return err
		}
	}
}

// xzReader says what is wrong with an image in words that people understand.
type xzReader struct{ *xz.Reader }

func (r xzReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	return n, xzError(err)
}

// xzError translates what any block of any stream of an image may be refused for.
func xzError(err error) error {
	switch {
	case errors.Is(err, xz.ErrMemlimit):
		return fmt.Errorf("the image wants a dictionary of more than %d MiB to be decompressed", maxWindow>>20)
	case errors.Is(err, xz.ErrBuf):
		return io.ErrUnexpectedEOF
	}
	return err
}
