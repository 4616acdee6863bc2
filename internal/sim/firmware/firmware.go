// Package firmware is what a simulated machine does between power-on and a running operating
// system: it looks for a system that was installed on one of its disks, makes sure that what is on
// the disk is the image that it is said to be, and, playing that system's first boot, tells the
// control plane that it is up.
//
// It knows the first-boot area by its published format (see FirstBoot in
// api/agent/v1/callback.proto), not by the code that writes it.
package firmware

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	mebibyte   = 1 << 20
	magic      = "IRONHERD-BOOT-1\n"
	maxPayload = 128 << 10
	header     = len(magic) + 4 + sha256.Size
)

// ErrNoSystem says that a disk holds no installed system: it has no first-boot area.
var ErrNoSystem = errors.New("no installed system")

// Offset is where the first-boot area of a disk of that size begins; negative for a disk that is
// too small for one.
func Offset(size int64) int64 {
	if size < 3*mebibyte {
		return -1
	}
	return (size - 2*mebibyte) / mebibyte * mebibyte
}

// Find reads the first-boot area of the disk that is kept in the file. ErrNoSystem when it has
// none; any other error says what is wrong with the one that it has.
func Find(path string) (*agentv1.FirstBoot, error) {
	disk, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = disk.Close() }()
	info, err := disk.Stat()
	if err != nil {
		return nil, err
	}
	offset := Offset(info.Size())
	if offset < 0 {
		return nil, ErrNoSystem
	}
	area := make([]byte, header)
	if _, err := disk.ReadAt(area, offset); err != nil {
		return nil, fmt.Errorf("read first-boot area: %w", err)
	}
	length, err := payloadLength(area)
	if err != nil {
		return nil, err
	}
	area = append(area, make([]byte, length)...)
	if _, err := disk.ReadAt(area, offset); err != nil {
		return nil, fmt.Errorf("read first-boot area: %w", err)
	}
	return Parse(area)
}

func payloadLength(area []byte) (int, error) {
	if len(area) < header || !bytes.HasPrefix(area, []byte(magic)) {
		return 0, ErrNoSystem
	}
	length := binary.BigEndian.Uint32(area[len(magic):])
	if length > maxPayload {
		return 0, fmt.Errorf("first-boot area says that it has %d bytes", length)
	}
	return int(length), nil
}

// Parse reads a first-boot area from its first byte on.
func Parse(area []byte) (*agentv1.FirstBoot, error) {
	length, err := payloadLength(area)
	if err != nil {
		return nil, err
	}
	if len(area)-header < length {
		return nil, errors.New("first-boot area is cut short")
	}
	payload := area[header : header+length]
	if sum := sha256.Sum256(payload); !bytes.Equal(sum[:], area[len(magic)+4:header]) {
		return nil, errors.New("first-boot area has the wrong checksum")
	}
	first := new(agentv1.FirstBoot)
	if err := proto.Unmarshal(payload, first); err != nil {
		return nil, fmt.Errorf("first-boot area: %w", err)
	}
	switch {
	case first.GetToken().GetMachineId() == "" || len(first.GetToken().GetSecret()) == 0:
		return nil, errors.New("first-boot area has no boot token")
	case first.GetImage().GetDigest() == "" || first.GetImage().GetSize() <= 0:
		return nil, errors.New("first-boot area does not say what was installed")
	}
	return first, nil
}

var readBuffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// ReadBack hashes the first size bytes of the disk that is kept in the file: "sha256:" and 64
// hexadecimal digits. It stops when ctx ends. Head stands for as much at the beginning of the disk.
func ReadBack(ctx context.Context, path string, size int64, head []byte) (string, error) {
	disk, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = disk.Close() }()
	buffer := readBuffers.Get().(*[256 << 10]byte)
	defer readBuffers.Put(buffer)
	hash := sha256.New()
	hash.Write(head)
	var data extent
	for at := int64(len(head)); at < size; {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if at >= data.to {
			data = nextData(disk, at, size)
		}
		if at < data.from {
			n := min(data.from-at, int64(len(zeros)))
			hash.Write(zeros[:n])
			at += n
			continue
		}
		n, err := disk.ReadAt(buffer[:min(int64(len(buffer)), data.to-at)], at)
		if err != nil {
			return "", fmt.Errorf("read disk back at %d: %w", at, err)
		}
		hash.Write(buffer[:n])
		at += int64(n)
	}
	return "sha256:" + hex.EncodeToString(hash.Sum(nil)), nil
}

var zeros [64 << 10]byte

// extent is a stretch of a file that holds data.
type extent struct{ from, to int64 }

// nextData returns the next stretch with data at or after an offset. What is before it is a hole,
// and reads as zeros; asking the file system for it costs nothing, while reading it fills the page
// cache. Where it cannot be asked, everything is data.
func nextData(disk *os.File, at, size int64) extent {
	info, err := disk.Stat()
	if err != nil || info.Size() < size {
		return extent{at, size} // reading says what is wrong
	}
	from, err := unix.Seek(int(disk.Fd()), at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return extent{size, size}
	}
	to, holeErr := unix.Seek(int(disk.Fd()), max(from, at), unix.SEEK_HOLE)
	if err != nil || holeErr != nil {
		return extent{at, size}
	}
	return extent{min(from, size), min(to, size)}
}
