package install

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"unicode/utf16"
)

// Layout of a GUID partition table, by the UEFI specification, section 5.3.
const (
	gptSector     = 512
	gptSignature  = "EFI PART"
	gptMinHeader  = 92
	gptEntryMin   = 128
	gptMaxEntries = 1024
)

// What an install calls the partitions that it makes, in ASCII.
const areaName, seedName = "ironherd first boot", "cidata"

var errNoTable = errors.New("the image has no GUID partition table in its first MiB, for sectors of 512 bytes")

// table is the partition table of an image, as it lies in the image's first MiB.
type table struct {
	// head is the first MiB. The table is changed in it.
	head    []byte
	header  []byte
	entries []byte
	// entrySize is the size of one entry.
	entrySize int
}

// partition is an entry in use.
type partition struct {
	number      int // from 1
	first, last uint64
	id          [16]byte
	kind        [16]byte
	// mbr: it is in an MBR, whose signature is at the beginning of id, and has no kind.
	mbr bool
}

// typeESP is the type of an EFI system partition, typeData that of a file system that anybody may
// mount, and typeReserved that of a part of the disk that Linux leaves alone (UAPI.2, Discoverable
// Partitions), in the byte order of a table.
var (
	typeESP      = [16]byte{0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b}
	typeData     = [16]byte{0xa2, 0xa0, 0xd0, 0xeb, 0xe5, 0xb9, 0x33, 0x44, 0x87, 0xc0, 0x68, 0xb6, 0xb7, 0x26, 0x99, 0xc7}
	typeReserved = [16]byte{0x39, 0x33, 0xa6, 0x8d, 0x07, 0x00, 0xc0, 0x60, 0xc4, 0x36, 0x08, 0x3a, 0xc8, 0x23, 0x09, 0x08}
)

// readTable finds the table in the first MiB of an image, for sectors of that size, and checks it
// as firmware does.
func readTable(head []byte, sector int) (*table, error) {
	if !has(head, int64(sector), gptSignature) || len(head) < 2*sector {
		return nil, errNoTable
	}
	size := binary.LittleEndian.Uint32(head[sector+12:])
	if size < gptMinHeader || size > gptSector {
		return nil, fmt.Errorf("the header of the image's partition table has %d bytes, which makes no sense", size)
	}
	t := &table{head: head, header: head[sector : sector+int(size)]}
	if want := binary.LittleEndian.Uint32(t.header[16:]); headerSum(t.header) != want {
		return nil, errors.New("the image's partition table is damaged: the checksum of its header is wrong")
	}
	at := binary.LittleEndian.Uint64(t.header[72:])
	count, entrySize := binary.LittleEndian.Uint32(t.header[80:]), binary.LittleEndian.Uint32(t.header[84:])
	if entrySize < gptEntryMin || entrySize%8 != 0 || entrySize > gptSector || count == 0 || count > gptMaxEntries ||
		at < 2 || at > mebibyte/gptSector || at*uint64(sector)+uint64(count)*uint64(entrySize) > uint64(len(head)) {
		return nil, errors.New("the image's partition table is not within its first MiB")
	}
	t.entrySize = int(entrySize)
	t.entries = head[at*uint64(sector) : at*uint64(sector)+uint64(count)*uint64(entrySize)]
	if crc32.ChecksumIEEE(t.entries) != binary.LittleEndian.Uint32(t.header[88:]) {
		return nil, errors.New("the image's partition table is damaged: the checksum of its entries is wrong")
	}
	return t, nil
}

// sectorsOf returns the size of the sectors that an image's partition table counts in, as its first
// MiB shows. 0: there is no table. An MBR does not say it; tools make one for 512 in a file.
func sectorsOf(head []byte) int {
	for _, size := range []int{gptSector, maxSector} {
		if has(head, int64(size), gptSignature) {
			return size
		}
	}
	if hasMBR(head) {
		return gptSector
	}
	return 0
}

// headerSum is the checksum of a header, in which the checksum itself counts as zeros.
func headerSum(header []byte) uint32 {
	sum := crc32.ChecksumIEEE(header[:16])
	sum = crc32.Update(sum, crc32.IEEETable, []byte{0, 0, 0, 0})
	return crc32.Update(sum, crc32.IEEETable, header[20:])
}

func (t *table) entry(number int) []byte {
	return t.entries[(number-1)*t.entrySize : number*t.entrySize]
}

// partitions returns the entries in use.
func (t *table) partitions() []partition {
	var used []partition
	for n := 1; n <= len(t.entries)/t.entrySize; n++ {
		e := t.entry(n)
		if p := (partition{
			number: n, kind: [16]byte(e), id: [16]byte(e[16:]),
			first: binary.LittleEndian.Uint64(e[32:]), last: binary.LittleEndian.Uint64(e[40:]),
		}); p.kind != [16]byte{} {
			used = append(used, p)
		}
	}
	return used
}

// isNamed says whether a partition has that name, of ASCII.
func (t *table) isNamed(p *partition, name string) bool {
	e := t.entry(p.number)[56:]
	for i := range len(name) {
		if e[2*i] != name[i] || e[2*i+1] != 0 {
			return false
		}
	}
	return e[2*len(name)] == 0 && e[2*len(name)+1] == 0
}

// isArea says whether an install made the partition of its first-boot area: at that sector, or on a
// disk of another size.
func (t *table) isArea(p *partition, at uint64) bool {
	return p.kind == typeReserved && (p.first == at || p.last-p.first == mebibyte/gptSector-1 && t.isNamed(p, areaName))
}

// isSeed says whether an install made the one partition for its seed, before its area.
func (t *table) isSeed(p, area *partition, at uint64) bool {
	return p.kind == typeData && p.last-p.first == seedSize/gptSector-1 && p.last+1 == area.first && t.isNamed(p, seedName) && t.isArea(area, at)
}

// last returns the partition that ends last beside those that an earlier install made on the disk
// that the image was read from, and the numbers of these, wherever that disk had them. That of this
// install begins with area.
func (t *table) last(area uint64) (last partition, earlier []int, err error) {
	all := t.partitions()
	for i := range all {
		p := &all[i]
		if p.first > p.last {
			return last, nil, fmt.Errorf("partition %d of the image ends before it begins", p.number)
		}
		made := t.isArea(p, area)
		for j := range all {
			made = made || t.isSeed(p, &all[j], area)
		}
		if made {
			earlier = append(earlier, p.number)
		} else if p.last >= last.last {
			last = *p
		}
	}
	if last.number == 0 {
		return last, nil, errors.New("the image has no partitions")
	}
	return last, earlier, nil
}

// find returns the first partition of a type.
func (t *table) find(kind [16]byte) (partition, bool) {
	for _, p := range t.partitions() {
		if p.kind == kind {
			return p, true
		}
	}
	return partition{}, false
}

// behind says that a disk is too small for the partition.
func (p partition) behind() error {
	return fmt.Errorf("partition %d of the image ends behind the room that the disk has for it", p.number)
}

// grow lets a partition end with that sector.
func (t *table) grow(p partition, last uint64) error {
	if last < p.last {
		return p.behind()
	}
	binary.LittleEndian.PutUint64(t.entry(p.number)[40:], last)
	return nil
}

// add makes a partition of an entry that is free.
func (t *table) add(p partition, name string) error {
	for n := 1; n <= len(t.entries)/t.entrySize; n++ {
		e := t.entry(n)
		if [16]byte(e) != ([16]byte{}) {
			continue
		}
		clear(e)
		copy(e, p.kind[:])
		copy(e[16:], p.id[:])
		binary.LittleEndian.PutUint64(e[32:], p.first)
		binary.LittleEndian.PutUint64(e[40:], p.last)
		for i, unit := range utf16.Encode([]rune(name)) {
			binary.LittleEndian.PutUint16(e[56+2*i:], unit)
		}
		return nil
	}
	return errors.New("the image's partition table has no room for another partition")
}

// protect makes the protective MBR's only entry cover that number of sectors. A hybrid MBR, which
// has partitions of its own beside it, stays as it is: they would overlap with a longer entry.
func (t *table) protect(sectors uint32) {
	var protective []byte
	for _, e := range mbrEntries(t.head) {
		switch {
		case e[4] == 0:
		case e[4] == mbrProtective && binary.LittleEndian.Uint32(e[8:]) == 1:
			protective = e
		default:
			return
		}
	}
	if protective != nil {
		binary.LittleEndian.PutUint32(protective[12:], sectors)
	}
}

// move makes the table one of a disk of that size, whose sectors behind lastUsable belong to
// nobody, and returns the backup, which ends the disk. Checksums and the protective MBR are brought
// up to date, so it is the last thing to be done to a table.
func (t *table) move(size int64, lastUsable uint64) (backup []byte) {
	sectors := uint64(size / gptSector)
	binary.LittleEndian.PutUint64(t.header[32:], sectors-1)
	binary.LittleEndian.PutUint64(t.header[48:], lastUsable)
	binary.LittleEndian.PutUint32(t.header[88:], crc32.ChecksumIEEE(t.entries))
	binary.LittleEndian.PutUint32(t.header[16:], headerSum(t.header))

	entrySectors := (len(t.entries) + gptSector - 1) / gptSector
	backup = make([]byte, (entrySectors+1)*gptSector)
	copy(backup, t.entries)
	header := backup[entrySectors*gptSector:][:len(t.header)]
	copy(header, t.header)
	binary.LittleEndian.PutUint64(header[24:], sectors-1)
	binary.LittleEndian.PutUint64(header[32:], 1)
	binary.LittleEndian.PutUint64(header[72:], sectors-1-uint64(entrySectors))
	binary.LittleEndian.PutUint32(header[16:], headerSum(header))

	t.protect(uint32(min(sectors-1, 0xffffffff)))
	return backup
}
