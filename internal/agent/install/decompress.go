package install

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
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
		return decoder, release, decoder.Reset(compressed)
	case agentv1.Compression_COMPRESSION_GZIP:
		reader := gzipReaders.Get().(*gzip.Reader)
		release := func() { gzipReaders.Put(reader) }
		return reader, release, reader.Reset(compressed)
	case agentv1.Compression_COMPRESSION_XZ:
		reader, err := xz.NewReader(compressed, maxWindow)
		return xzReader{reader}, nothing, xzError(err)
	}
	return nil, nothing, errors.New("the image's compression is not known")
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
