package install

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// xzStream compresses data into one stream, in blocks of that size; 0: one block.
func xzStream(tb testing.TB, data []byte, dictionary int, block int64, check byte) []byte {
	tb.Helper()
	var out bytes.Buffer
	w, err := xz.WriterConfig{DictCap: dictionary, BlockSize: block, CheckSum: check, NoCheckSum: check == xz.None}.NewWriter(&out)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// enlarge makes the last block of a stream, which begins at from or later, ask for a dictionary of
// 1 GiB.
func enlarge(t *testing.T, stream []byte, from int) []byte {
	t.Helper()
	stream = bytes.Clone(stream)
	at := bytes.LastIndex(stream, []byte{2, 0, 0x21, 1, stream[16], 0, 0, 0})
	if at < from {
		t.Fatalf("the last block begins at %d, want %d or later", at, from)
	}
	stream[at+4] = 36
	binary.LittleEndian.PutUint32(stream[at+8:], crc32.ChecksumIEEE(stream[at:at+8]))
	return stream
}

func unxz(data []byte) ([]byte, error) {
	raw, release, err := decompress(bytes.NewReader(data), agentv1.Compression_COMPRESSION_XZ)
	defer release()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(raw)
}

func TestXZWithHugeDictionaryIsRefused(t *testing.T) {
	t.Parallel()
	const first = 12 // after the stream's header
	small := xzStream(t, []byte("some data"), 1<<20, 0, xz.CRC64)
	huge := enlarge(t, small, first)
	blocks := xzStream(t, bytes.Repeat([]byte("0123456789"), 20_000), 1<<20, 100_000, xz.CRC64)
	for name, data := range map[string][]byte{
		"first block":                          huge,
		"second stream":                        append(bytes.Clone(small), huge...),
		"second stream after padding":          append(append(bytes.Clone(small), 0, 0, 0, 0, 0, 0, 0, 0), huge...),
		"second block":                         enlarge(t, blocks, first+1),
		"first block of a third, empty second": append(append(bytes.Clone(small), xzStream(t, nil, 1<<20, 0, xz.CRC32)...), huge...),
	} {
		if _, err := unxz(data); err == nil || !strings.Contains(err.Error(), "dictionary of more than 128 MiB") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Whatever shape a stream has, what comes out is what went in.
func TestXZShapes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var all, image []byte
	for round := range 12 {
		data := make([]byte, random.IntN(200_000))
		for i := range data { // half of it does not compress, so that LZMA2 stores it as it is
			if data[i] = byte(i / 1000); i > len(data)/2 {
				data[i] = byte(random.Uint32())
			}
		}
		checks := []byte{xz.None, xz.CRC32, xz.CRC64, xz.SHA256}
		stream := xzStream(t, data, 1<<16, int64(random.IntN(3))*50_000, checks[round%len(checks)])
		got, err := unxz(stream)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("round %d: %d of %d bytes, %v", round, len(got), len(data), err)
		}
		all, image = append(append(all, stream...), make([]byte, 4*random.IntN(4))...), append(image, data...)
	}
	if got, err := unxz(all); err != nil || !bytes.Equal(got, image) {
		t.Errorf("streams in a row: %d of %d bytes, %v", len(got), len(image), err)
	}
}

// What xz --x86 makes, the filter for machine code.
func TestXZFilters(t *testing.T) {
	t.Parallel()
	stream, err := hex.DecodeString("fd377a585a0000016922de360201040021010c00d67c18af01001e736f6d65206461746120666f722078" +
		"3836e81702030020616e64206d6f726500002fb7ec770001331feedde5599042990d010000000001595a")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unxz(stream); err != nil || string(got) != "some data for x86\xe8\x01\x02\x03\x00 and more" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestXZCutShort(t *testing.T) {
	t.Parallel()
	stream := xzStream(t, bytes.Repeat([]byte("0123456789"), 50), 1<<20, 200, xz.SHA256)
	for length := range stream {
		if _, err := unxz(stream[:length]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut to %d of %d bytes: %v", length, len(stream), err)
		}
	}
}

func FuzzXZ(f *testing.F) {
	f.Add(xzStream(f, []byte("some data"), 1<<20, 0, xz.CRC64))
	f.Add(append(xzStream(f, bytes.Repeat([]byte("0123456789"), 20), 1<<20, 100, xz.SHA256), xzStream(f, nil, 1<<20, 0, xz.None)...))
	f.Fuzz(func(_ *testing.T, data []byte) {
		raw, release, err := decompress(bytes.NewReader(data), agentv1.Compression_COMPRESSION_XZ)
		defer release()
		if err == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(raw, 1<<20))
		}
	})
}
