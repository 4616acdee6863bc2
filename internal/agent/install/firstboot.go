package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	mebibyte = 1 << 20
	// firstBootMagic starts the first-boot area.
	firstBootMagic = "IRONHERD-BOOT-1\n"
	// firstBootHeader is the size of magic, length and checksum.
	firstBootHeader = len(firstBootMagic) + 4 + sha256.Size
	// maxFirstBoot is the largest payload, in bytes.
	maxFirstBoot = 128 << 10
	// firstBootLater is the part of it that is kept for what only the end of an install knows: the
	// size and digest of the image, and what is on the disk then.
	firstBootLater = 8 << 10
	// MaxFirstBootArea is how much of the area may be used, in bytes.
	MaxFirstBootArea = firstBootHeader + maxFirstBoot
	// begunMagic starts the record of an install that has begun.
	begunMagic = "IRONHERD-BEGUN1\n"
	// takenOffset is how far behind the beginning of the first-boot area its head is repeated, once a
	// system has taken it over. No record of an install reaches there, and each one that ends well
	// leaves zeros.
	takenOffset = mebibyte / 16 * 15
)

// begunSlots are where such a record may be, behind the beginning of the first-boot area.
var begunSlots = [...]int64{mebibyte / 2, mebibyte * 3 / 4}

// FirstBootOffset returns where an install begins the first-boot area of a disk of that size: at
// the last whole MiB that leaves the area and one MiB behind it. It is negative for a disk below 2
// MiB.
func FirstBootOffset(size int64) int64 {
	if size < 2*mebibyte {
		return -1
	}
	return (size - 2*mebibyte) / mebibyte * mebibyte
}

// areasOf returns where the first-boot area of a disk of that size may begin: where an install
// writes it, and, where that was when the disk was smaller, at the partition that was made of it.
// That is reserved; 0: there is none. It is the last one of its kind: an image of an installed disk
// may have brought others.
func areasOf(disk io.ReaderAt, size int64) (areas []int64, reserved int64, err error) {
	area := FirstBootOffset(size)
	if area < 0 {
		return nil, 0, nil
	}
	head := make([]byte, mebibyte)
	n, err := disk.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	}
	last := uint64(0)
	if t, err := readTable(head[:n], gptSector); err == nil {
		for _, p := range t.partitions() {
			if p.kind == typeReserved && p.last-p.first == mebibyte/gptSector-1 {
				last = max(last, p.first)
			}
		}
	}
	areas = []int64{area}
	if last <= uint64(area/gptSector) {
		reserved = int64(last) * gptSector
	}
	if reserved != 0 && reserved != area {
		areas = append(areas, reserved)
	}
	return areas, reserved, nil
}

// FirstBootArea is the first-boot area of a disk.
type FirstBootArea struct {
	First *agentv1.FirstBoot
	// Replaced: the disk has none any more of the partitions that the install has recorded which wrote
	// the area, because the disk was given to another use. One of them is enough: an installed system
	// may make others anew on its first boot, before anybody asks, as KIWI's initrd does to let the
	// last one grow. Of an install that recorded no partitions nothing is known.
	Replaced bool
	// Taken: a system has begun its first boot with the area.
	Taken bool

	// head begins the area, which is at offset. It is a partition of its own where it is reserved.
	head             [firstBootHeader]byte
	offset, reserved int64
}

// Look finds out whether the area is replaced or taken.
func (a *FirstBootArea) Look(disk io.ReaderAt, size int64) error {
	held, err := heldOf(disk, size, a.First)
	if err != nil {
		return err
	}
	var mark [firstBootHeader]byte
	_, err = disk.ReadAt(mark[:], a.offset+takenOffset)
	a.Replaced, a.Taken = held == 0 && len(a.First.GetContent().GetPartitions()) > 0, mark == a.head
	return err
}

// Take records on the disk, which is that device, that a system begins its first boot with the
// area, and waits until that is on stable storage. It leaves a disk alone where the area is no
// partition of its own: a file system may have grown over what is behind the head.
func (a *FirstBootArea) Take(path string) error {
	if a.Taken || a.offset != a.reserved {
		return nil
	}
	disk, err := os.OpenFile(path, os.O_WRONLY|os.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = disk.Close() }()
	_, err = disk.WriteAt(a.head[:], a.offset+takenOffset)
	return err
}

// ReadFirstBoot returns the first-boot area of a disk of that size; nil where it has none that is
// whole. Of two it is the one of what the disk holds: a disk that another one was copied on may
// still have its own at its end. A disk that ends before the area is a regular file that was never
// written: real ones have the size that the kernel says.
func ReadFirstBoot(disk io.ReaderAt, size int64) (best *FirstBootArea, err error) {
	areas, reserved, err := areasOf(disk, size)
	if err != nil {
		return nil, err
	}
	data, most := make([]byte, MaxFirstBootArea), -1
	for _, area := range areas {
		n, err := disk.ReadAt(data, area)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		first, err := DecodeFirstBoot(data[:n])
		if err != nil {
			continue
		}
		held := 0
		if len(areas) > 1 {
			if held, err = heldOf(disk, size, first); err != nil {
				return nil, err
			}
		}
		if held > most {
			best, most = &FirstBootArea{First: first, head: [firstBootHeader]byte(data), offset: area, reserved: reserved}, held
		}
	}
	return best, nil
}

// firstBootOf returns what a request says of the first-boot area. The image's URL is no part of it:
// it may hold a credential, and the disk may get into other hands.
func firstBootOf(request *agentv1.InstallRequest) *agentv1.FirstBoot {
	image := new(agentv1.Image)
	proto.Merge(image, request.GetImage())
	image.Url = ""
	return &agentv1.FirstBoot{Token: request.GetBootToken(), Data: request.GetFirstBootData(), Image: image, SshHostKey: request.GetSshHostKey()}
}

// checkFirstBoot fails when that will not fit.
func checkFirstBoot(request *agentv1.InstallRequest) error {
	if size := len(request.GetFirstBootData()); size > maxFirstBootData {
		return fmt.Errorf("the first-boot data has %d bytes, and at most %d are allowed", size, maxFirstBootData)
	}
	const most = maxFirstBoot - firstBootLater
	if size := proto.Size(firstBootOf(request)); size > most {
		return fmt.Errorf("the first-boot area would take %d bytes with the token and what is known of the image, and at most %d fit", size, most)
	}
	return nil
}

// EncodeFirstBoot returns the used beginning of a first-boot area.
func EncodeFirstBoot(first *agentv1.FirstBoot) ([]byte, error) {
	area, err := encodeArea(firstBootMagic, first)
	if err != nil {
		return nil, fmt.Errorf("encode the first-boot data: %w", err)
	}
	return area, nil
}

// DecodeFirstBoot reads what EncodeFirstBoot has written, from the beginning of an area.
func DecodeFirstBoot(area []byte) (*agentv1.FirstBoot, error) {
	first := new(agentv1.FirstBoot)
	if err := decodeArea(area, firstBootMagic, first); err != nil {
		return nil, err
	}
	return first, nil
}

// encodeArea returns magic, length, checksum and message.
func encodeArea(magic string, message proto.Message) ([]byte, error) {
	payload, err := proto.Marshal(message)
	if err != nil {
		return nil, err
	}
	if len(payload) > maxFirstBoot {
		return nil, fmt.Errorf("it takes %d bytes, and at most %d fit", len(payload), maxFirstBoot)
	}
	area := make([]byte, 0, firstBootHeader+len(payload))
	area = append(area, magic...)
	area = binary.BigEndian.AppendUint32(area, uint32(len(payload)))
	sum := sha256.Sum256(payload)
	area = append(area, sum[:]...)
	return append(area, payload...), nil
}

// decodeArea reads what encodeArea has written.
func decodeArea(area []byte, magic string, message proto.Message) error {
	if len(area) < firstBootHeader || !bytes.HasPrefix(area, []byte(magic)) {
		return errors.New("there is no first-boot area")
	}
	rest := area[len(magic):]
	length := binary.BigEndian.Uint32(rest)
	if length > maxFirstBoot || int(length) > len(area)-firstBootHeader {
		return errors.New("the first-boot area is cut short")
	}
	payload := area[firstBootHeader : firstBootHeader+int(length)]
	if sum := sha256.Sum256(payload); !bytes.Equal(sum[:], rest[4:4+sha256.Size]) {
		return errors.New("the first-boot area is damaged")
	}
	if err := proto.Unmarshal(payload, message); err != nil {
		return errors.New("the first-boot area holds no first-boot data")
	}
	return nil
}
