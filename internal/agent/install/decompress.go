package install

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"

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
		buffered := bufio.NewReaderSize(compressed, 64<<10)
		if err := checkXZ(buffered); err != nil {
			return nil, nothing, err
		}
		reader, err := xz.NewReader(buffered)
		return reader, nothing, err
	}
	return nil, nothing, errors.New("the image's compression is not known")
}

// checkXZ refuses a stream whose first block wants a larger dictionary than maxWindow; the decoder
// would allocate up to 4 GiB. The format is that of the XZ file format specification, sections
// 2.1.1 and 3.1.
func checkXZ(stream *bufio.Reader) error {
	const streamHeader, maxBlockHeader = 12, 1024
	head, err := stream.Peek(streamHeader + maxBlockHeader)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if len(head) < streamHeader+2 {
		return io.ErrUnexpectedEOF
	}
	block := head[streamHeader:]
	if block[0] == 0 { // no block: an empty image
		return nil
	}
	size := (int(block[0]) + 1) * 4
	if size > len(block) {
		return io.ErrUnexpectedEOF
	}
	flags, fields := block[1], block[2:size]
	numbers := 0
	for _, flag := range []byte{0x40, 0x80} {
		if flags&flag != 0 {
			numbers++
		}
	}
	for range numbers {
		if _, fields, err = cutVarint(fields); err != nil {
			return err
		}
	}
	for range int(flags&3) + 1 {
		var id, length uint64
		if id, fields, err = cutVarint(fields); err != nil {
			return err
		}
		if length, fields, err = cutVarint(fields); err != nil {
			return err
		}
		if length > uint64(len(fields)) {
			return io.ErrUnexpectedEOF
		}
		if id == 0x21 && length == 1 { // LZMA2
			if window, err := lzma.DecodeDictCap(fields[0]); err != nil || window > maxWindow {
				return fmt.Errorf("the image wants a dictionary of more than %d MiB to be decompressed", maxWindow>>20)
			}
		}
		fields = fields[length:]
	}
	return nil
}

func cutVarint(data []byte) (uint64, []byte, error) {
	value, n := binary.Uvarint(data)
	if n <= 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return value, data[n:], nil
}
