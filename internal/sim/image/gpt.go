package image

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"unicode/utf16"
)

// GUID partition table, as the UEFI specification lays it out.
const (
	sector       = 512
	entries      = 128
	entrySize    = 128
	entrySectors = entries * entrySize / sector
	headerSize   = 92
)

// Partition type GUIDs, in their on-disk order.
var (
	typeESP  = [16]byte{0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b}
	typeRoot = [16]byte{0xe3, 0xbc, 0x68, 0x4f, 0xcd, 0xe8, 0xb1, 0x4d, 0x96, 0xe7, 0xfb, 0xca, 0xf9, 0x84, 0xb7, 0x09}
)

// partitionTable returns the first sectors of an image (protective MBR, header, entries) and its
// last ones (entries, header), for an EFI system partition of 1 MiB and a root file system.
func partitionTable(size int64, random *rand.ChaCha8) (primary, backup []byte) {
	sectors := uint64(size / sector)
	guid := func() (g [16]byte) {
		_, _ = random.Read(g[:])
		g[7], g[8] = g[7]&0x0f|0x40, g[8]&0x3f|0x80
		return g
	}
	disk := guid()
	table := make([]byte, entries*entrySize)
	last := sectors - entrySectors - 2
	partition(table, typeESP, guid(), 2048, 4095, "EFI")
	partition(table[entrySize:], typeRoot, guid(), 4096, last, "root")

	header := func(current, other, table64 uint64, crc uint32) []byte {
		h := make([]byte, sector)
		copy(h, "EFI PART\x00\x00\x01\x00")
		binary.LittleEndian.PutUint32(h[12:], headerSize)
		binary.LittleEndian.PutUint64(h[24:], current)
		binary.LittleEndian.PutUint64(h[32:], other)
		binary.LittleEndian.PutUint64(h[40:], 2+entrySectors)
		binary.LittleEndian.PutUint64(h[48:], last)
		copy(h[56:], disk[:])
		binary.LittleEndian.PutUint64(h[72:], table64)
		binary.LittleEndian.PutUint32(h[80:], entries)
		binary.LittleEndian.PutUint32(h[84:], entrySize)
		binary.LittleEndian.PutUint32(h[88:], crc)
		binary.LittleEndian.PutUint32(h[16:], crc32.ChecksumIEEE(h[:headerSize]))
		return h
	}
	crc := crc32.ChecksumIEEE(table)
	primary = append(protectiveMBR(sectors), header(1, sectors-1, 2, crc)...)
	primary = append(primary, table...)
	backup = append(append([]byte{}, table...), header(sectors-1, 1, sectors-1-entrySectors, crc)...)
	return primary, backup
}

func partition(entry []byte, kind, id [16]byte, first, last uint64, name string) {
	copy(entry, kind[:])
	copy(entry[16:], id[:])
	binary.LittleEndian.PutUint64(entry[32:], first)
	binary.LittleEndian.PutUint64(entry[40:], last)
	for i, unit := range utf16.Encode([]rune(name)) {
		binary.LittleEndian.PutUint16(entry[56+2*i:], unit)
	}
}

func protectiveMBR(sectors uint64) []byte {
	mbr := make([]byte, sector)
	copy(mbr[446:], []byte{0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff})
	binary.LittleEndian.PutUint32(mbr[454:], 1)
	binary.LittleEndian.PutUint32(mbr[458:], uint32(min(sectors-1, 0xffffffff)))
	mbr[510], mbr[511] = 0x55, 0xaa
	return mbr
}
