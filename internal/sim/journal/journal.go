// Package journal keeps a map of named values in an append-only file, so that whoever is killed
// between two instructions finds everything that it has acknowledged.
//
// A batch of changes is one frame: length, CRC-32C, payload. It is written in one call before
// Append returns, which is what surviving the death of the process takes; the death of the whole
// computer may cost the newest batches, never an older one. A frame that the end of the file cuts
// short was never acknowledged and is dropped. Any other damage is an error: it is never silently
// skipped. Opening a journal compacts it.
package journal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

const (
	magic = "IHSIMJ01"
	// headerSize is a frame's length and checksum.
	headerSize = 8
	// maxFrame bounds what one frame may hold, so that a damaged length is recognised.
	maxFrame = 64 << 20
	// compactFrame is about how much of a compacted journal goes into one frame.
	compactFrame = 1 << 20

	opPut    = 1
	opDelete = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged is in the chain of every error that says that a journal holds what no journal writes.
var ErrDamaged = errors.New("journal is damaged")

// Change sets one value, or removes it when Value is nil.
type Change struct {
	Key   string
	Value []byte
}

// Journal is an open journal. Its methods may be called concurrently.
type Journal struct {
	mu   sync.Mutex
	file *os.File
	// size is the end of the last whole frame.
	size int64
	buf  []byte
	err  error
}

// Open opens the journal at path, made if it does not exist, and returns what it holds.
func Open(path string) (*Journal, map[string][]byte, error) {
	values := map[string][]byte{}
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, nil, fmt.Errorf("read journal: %w", err)
	default:
		if values, err = Read(old); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	j, err := compact(path, values)
	if err != nil {
		return nil, nil, fmt.Errorf("compact journal: %w", err)
	}
	return j, values, nil
}

// Read returns the values that the contents of a journal amount to. A frame that the end cuts short
// is left out; other damage is ErrDamaged.
func Read(data []byte) (map[string][]byte, error) {
	values := map[string][]byte{}
	if len(data) < len(magic) {
		if string(data) != magic[:len(data)] {
			return nil, fmt.Errorf("%w: it does not begin like one", ErrDamaged)
		}
		return values, nil
	}
	if string(data[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: it does not begin like one", ErrDamaged)
	}
	offset := len(magic)
	for rest := data[offset:]; len(rest) > 0; rest = data[offset:] {
		payload, whole, err := frame(rest)
		if err != nil {
			return nil, fmt.Errorf("%w at offset %d: %w", ErrDamaged, offset, err)
		}
		if !whole {
			break
		}
		if err := apply(values, payload); err != nil {
			return nil, fmt.Errorf("%w at offset %d: %w", ErrDamaged, offset, err)
		}
		offset += headerSize + len(payload)
	}
	return values, nil
}

// frame returns the payload of the frame that data begins with; whole is false when the end of data
// cuts it short.
func frame(data []byte) (payload []byte, whole bool, err error) {
	if len(data) < headerSize {
		return nil, false, nil
	}
	length := binary.BigEndian.Uint32(data)
	if length == 0 || length > maxFrame {
		if allZero(data) {
			return nil, false, nil // space that was allocated and never written
		}
		return nil, false, fmt.Errorf("a frame of %d bytes", length)
	}
	rest := data[headerSize:]
	if uint64(len(rest)) < uint64(length) {
		return nil, false, nil
	}
	payload = rest[:length]
	if crc32.Checksum(payload, castagnoli) != binary.BigEndian.Uint32(data[4:]) {
		if allZero(rest) {
			return nil, false, nil
		}
		return nil, false, errors.New("a checksum does not match")
	}
	return payload, true, nil
}

func allZero(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}

func apply(values map[string][]byte, payload []byte) error {
	for len(payload) > 0 {
		op := payload[0]
		key, rest, err := field(payload[1:])
		if err != nil {
			return err
		}
		switch op {
		case opPut:
			var value []byte
			if value, rest, err = field(rest); err != nil {
				return err
			}
			values[string(key)] = append([]byte{}, value...)
		case opDelete:
			delete(values, string(key))
		default:
			return fmt.Errorf("an operation %d", op)
		}
		payload = rest
	}
	return nil
}

func field(data []byte) (value, rest []byte, err error) {
	length, n := binary.Uvarint(data)
	if n <= 0 || length > uint64(len(data)-n) {
		return nil, nil, errors.New("a field that is longer than its frame")
	}
	data = data[n:]
	return data[:length], data[length:], nil
}

func appendFrame(buf []byte, changes []Change) []byte {
	start := len(buf)
	buf = append(buf, make([]byte, headerSize)...)
	for _, c := range changes {
		op := byte(opPut)
		if c.Value == nil {
			op = opDelete
		}
		buf = append(buf, op)
		buf = binary.AppendUvarint(buf, uint64(len(c.Key)))
		buf = append(buf, c.Key...)
		if op == opPut {
			buf = binary.AppendUvarint(buf, uint64(len(c.Value)))
			buf = append(buf, c.Value...)
		}
	}
	payload := buf[start+headerSize:]
	binary.BigEndian.PutUint32(buf[start:], uint32(len(payload)))
	binary.BigEndian.PutUint32(buf[start+4:], crc32.Checksum(payload, castagnoli))
	return buf
}

// Append writes the changes as one batch: after a kill either all of them are there or none. When
// it fails nothing of the batch is there, and the journal takes nothing more unless it could be put
// right.
func (j *Journal) Append(changes ...Change) error {
	if len(changes) == 0 {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return j.err
	}
	j.buf = appendFrame(j.buf[:0], changes)
	if len(j.buf)-headerSize > maxFrame {
		return fmt.Errorf("journal: a batch of %d bytes is too large", len(j.buf))
	}
	if _, err := j.file.WriteAt(j.buf, j.size); err != nil {
		if undo := j.file.Truncate(j.size); undo != nil {
			j.err = fmt.Errorf("journal: closed after a failed write: %w", errors.Join(err, undo))
		}
		return fmt.Errorf("write journal: %w", err)
	}
	j.size += int64(len(j.buf))
	return nil
}

// Close writes everything through to the disk and closes the journal. It may be called more than
// once.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return nil
	}
	err := errors.Join(j.file.Sync(), j.file.Close())
	j.file, j.err = nil, fmt.Errorf("journal: %w", os.ErrClosed)
	return err
}

// compact replaces the journal at path by one that holds just values.
func compact(path string, values map[string][]byte) (_ *Journal, err error) {
	next := path + ".new"
	file, err := os.OpenFile(next, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()
	out := bufio.NewWriterSize(file, 256<<10)
	if _, err = out.WriteString(magic); err != nil {
		return nil, err
	}
	var batch []Change
	pending := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		_, err := out.Write(appendFrame(nil, batch))
		batch, pending = batch[:0], 0
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		batch = append(batch, Change{key, values[key]})
		if pending += len(values[key]); pending >= compactFrame {
			if err = flush(); err != nil {
				return nil, err
			}
		}
	}
	if err = errors.Join(flush(), out.Flush()); err != nil {
		return nil, err
	}
	if err = errors.Join(file.Sync(), os.Rename(next, path), syncDir(filepath.Dir(path))); err != nil {
		return nil, err
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	return &Journal{file: file, size: size}, nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
