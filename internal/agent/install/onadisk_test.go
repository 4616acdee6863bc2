package install

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// onADisk is what others put on a disk by which they know it again: in the KiB and at the byte that
// the comments of libblkid count from, negative from the end. blkid is the type that blkid tells
// of it, with what beside adds; "": it looks at more, such as checksums.
type onADisk struct {
	kib, at int
	bytes   string
	what    string
	blkid   string
	beside  []beside
}

// beside is what blkid looks at besides the magic.
type beside struct {
	at    int
	bytes string
}

// raid1 is what blkid looks at in a superblock of a Linux RAID of version 1 that lies at that byte:
// its version, and where it says that it lies, in sectors.
func raid1(at int) []beside {
	return []beside{{at + 4, "\x01"}, {at + 144, string([]byte{byte(at >> 9), byte(at >> 17), byte(at >> 25)})}}
}

const (
	raidMagic = "\xfc\x4e\x2b\xa9"
	// onADiskSize is no multiple of 4 KiB, as that of many disks.
	onADiskSize = 8*mebibyte + 5*512
)

// onDisks is written out, and made of nothing that the code under test has.
var onDisks = []onADisk{
	{0, 512, "EFI PART", "a GUID partition table", "", nil},
	{4, 0, "EFI PART", "a GUID partition table", "", nil},
	{0, -512, "EFI PART", "the backup of a GUID partition table", "", nil},
	{-4, 0, "EFI PART", "the backup of a GUID partition table", "", nil},
	{1, 0x38, "\123\357", "an ext2, ext3 or ext4 file system", "ext2", nil},
	{0, 0, "XFSB", "an XFS file system", "", nil},
	{64, 0x40, "_BHRfS_M", "a Btrfs file system", "btrfs", nil},
	{1, 0, "\x10\x20\xf5\xf2", "an F2FS file system", "f2fs", nil},
	{4, 0x18, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "a bcachefs file system or bcache device", "", nil},
	{4, 0x18, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "a bcachefs file system", "", nil},
	{0, 3, "NTFS    ", "an NTFS file system", "", nil},
	{0, 3, "EXFAT   ", "an exFAT file system", "exfat", nil},
	{0, 0x36, "FAT12   ", "a FAT file system", "", nil},
	{0, 0x36, "FAT16   ", "a FAT file system", "", nil},
	{0, 0x52, "FAT32   ", "a FAT file system", "", nil},
	{32, 1, "CD001", "an ISO 9660 file system", "iso9660", []beside{{32 << 10, "\x01"}}},
	{32, 1, "BEA01", "a UDF file system", "", nil},
	{32, 1, "NSR02", "a UDF file system", "", nil},
	{32, 1, "NSR03", "a UDF file system", "", nil},
	{1, 0, "H+\x00\x04", "an HFS+ file system", "hfsplus", []beside{{1024 + 0x28, "\x00\x00\x10\x00"}}},
	{1, 0, "HX\x00\x05", "an HFS+ file system", "hfsplus", []beside{{1024 + 0x28, "\x00\x00\x10\x00"}}},
	{32, 0, "JFS1", "a JFS file system", "", nil},
	{1, 0, "\x02\x00\x00\x00\x00\x00\x34\x34", "a NILFS2 file system", "", nil},
	{8, 0x34, "ReIsErFs", "a ReiserFS file system", "", nil},
	{64, 0x34, "ReIsErFs", "a ReiserFS file system", "", nil},
	{64, 0x34, "ReIsEr2Fs", "a ReiserFS file system", "", nil},
	{64, 0x34, "ReIsEr3Fs", "a ReiserFS file system", "", nil},
	{64, 0, "ReIsEr4", "a Reiser4 file system", "reiser4", nil},
	{64, 0, "\x01\x16\x19\x70", "a GFS2 file system", "", nil},
	{1, 0, "OCFSV2", "an OCFS2 file system", "", nil},
	{2, 0, "OCFSV2", "an OCFS2 file system", "", nil},
	{4, 0, "OCFSV2", "an OCFS2 file system", "", nil},
	{8, 0, "OCFSV2", "an OCFS2 file system", "", nil},
	{1024, 0, "\x0d\xd0\x01\xc0", "a VMFS volume", "VMFS_volume_member", nil},
	{0, 0xff6, "SWAPSPACE2", "swap space", "swap", []beside{{1024, "\x01\x00\x00\x00\x64"}}},
	{0, 0x1ff6, "SWAPSPACE2", "swap space", "swap", []beside{{1024, "\x01\x00\x00\x00\x64"}}},
	{0, 0x3ff6, "SWAPSPACE2", "swap space", "swap", []beside{{1024, "\x01\x00\x00\x00\x64"}}},
	{0, 0x7ff6, "SWAPSPACE2", "swap space", "swap", []beside{{1024, "\x01\x00\x00\x00\x64"}}},
	{0, 0xfff6, "SWAPSPACE2", "swap space", "swap", []beside{{1024, "\x01\x00\x00\x00\x64"}}},
	{0, 0, "LUKS\xba\xbe", "encrypted data (LUKS)", "crypto_LUKS", nil},
	{16, 0, "SKUL\xba\xbe", "encrypted data (LUKS)", "crypto_LUKS", nil},
	{0, 3, "-FVE-FS-", "encrypted data (BitLocker)", "BitLocker", []beside{{0, "\xeb\x52\x90"}}},
	{0, 0x018, "LVM2 001", "an LVM physical volume", "", nil},
	{0, 0x218, "LVM2 001", "an LVM physical volume", "", nil},
	{1, 0x018, "LVM2 001", "an LVM physical volume", "", nil},
	{1, 0x218, "LVM2 001", "an LVM physical volume", "", nil},
	{0, 0, "HM\x01\x00", "an LVM physical volume", "LVM1_member", nil},
	{0, 0, "HM\x02\x00", "an LVM physical volume", "LVM1_member", nil},
	{0, 0x204, "!Stra0tis\x86\xff\x02^Arh", "a member of a Stratis pool", "", nil},
	{4, 0x204, "!Stra0tis\x86\xff\x02^Arh", "a member of a Stratis pool", "", nil},
	{0, 0, "dmvdo001", "data of VDO", "vdo", nil},
	{0, 0, "integrt\x00", "data of dm-integrity", "", nil},
	{0, 32, "ORCLDISK", "a disk of Oracle ASM", "oracleasm", nil},
	{0, 0, raidMagic, "a member of a Linux RAID", "linux_raid_member", raid1(0)},
	{4, 0, raidMagic, "a member of a Linux RAID", "linux_raid_member", raid1(4096)},
	// Version 0.90 lies 64 KiB before the end and version 1.0 lies 8 KiB before it, rounded down.
	{-64, -2560, raidMagic, "a member of a Linux RAID", "linux_raid_member", []beside{{onADiskSize - 2560 - 64<<10 + 8, "\x5a"}}},
	{-8, -2560, raidMagic, "a member of a Linux RAID", "linux_raid_member", raid1(onADiskSize - 2560 - 8<<10)},
	// The last sectors of a disk are of 512 bytes or of 4096.
	{-1, 0, "Intel Raid ISM Cfg Sig. ", "a member of a firmware RAID (Intel)", "isw_raid_member", nil},
	{-8, 0, "Intel Raid ISM Cfg Sig. ", "a member of a firmware RAID (Intel)", "", nil},
	{0, -512, "\xde\x11\xde\x11", "a member of a firmware RAID (DDF)", "ddf_raid_member", nil},
	{-4, 0, "\xde\x11\xde\x11", "a member of a firmware RAID (DDF)", "", nil},
	{-31, -512, "Promise Technology, Inc.", "a member of a firmware RAID (Promise)", "promise_fasttrack_raid_member", nil},
	{0, 0, "bluestore block device\n", "data of Ceph", "ceph_bluestore", nil},
	{0, 0, "ceph osd volume v026", "data of Ceph", "", nil},
	{-4, 60, "\x83\x74\x02\x6b", "data of DRBD", "drbd", nil},
	{-4, 60, "\x83\x74\x02\x6c", "data of DRBD", "drbd", nil},
	{0, 0, "hsqs", "a SquashFS file system", "squashfs3", nil},
	{1, 0, "\xe2\xe1\xf5\xe0", "an EROFS file system", "erofs", nil},
	{0, 32, "NXSB", "an APFS container", "apfs", []beside{{24, "\x01"}, {36, "\x00\x10"}}},
	{64, 0x55c, "\x19\x01\x54\x19", "a UFS file system", "ufs", nil},
	{64, 0x55c, "\x19\x54\x01\x19", "a UFS file system", "ufs", nil},
	{8, 0x55c, "\x54\x19\x01\x00", "a UFS file system", "ufs", nil},
	{8, 0x55c, "\x00\x01\x19\x54", "a UFS file system", "ufs", nil},
	{1, 0, "\xf5\xfc\x01\xa5", "a VxFS file system", "vxfs", nil},
	{0, 0, "\x00\x00\x00ReFS\x00", "a ReFS file system", "ReFS", nil},
	{0, 0, "\xce\xfa\xad\x1b", "a BFS file system", "bfs", nil},
	{1, 0x10, "\x7f\x13\x01\x00", "a MINIX file system", "minix", minixBeside},
	{1, 0x10, "\x8f\x13\x01\x00", "a MINIX file system", "minix", minixBeside},
	{1, 0x10, "\x68\x24\x01\x00", "a MINIX file system", "", nil},
	{1, 0x10, "\x78\x24\x01\x00", "a MINIX file system", "", nil},
	{1, 0x18, "\x5a\x4d\x00\x00", "a MINIX file system", "", nil},
	{0, 512, "\x57\x45\x56\x82", "a BSD disklabel", "", nil},
	{0, 188, "\x60\x0d\xde\xee", "a Sun disklabel", "", nil},
	{0, 512, "PM\x00\x00", "an Apple partition map", "", nil},
}

// minixBeside are 64 inodes, 100 zones, and one block for each of the maps of these.
var minixBeside = []beside{{1024, "\x40\x00\x64\x00\x01\x00\x01\x00\x05\x00"}}

// TestOnADisk puts what is written out above on a disk, each at a time, and demands that it is
// recognised. blkid must agree that it would be taken for that.
func TestOnADisk(t *testing.T) {
	t.Parallel()
	type place struct {
		offset int
		magic  string
	}
	var places []place
	path := filepath.Join(t.TempDir(), "disk")
	for _, d := range onDisks {
		data := make([]byte, onADiskSize)
		offset := d.kib<<10 + d.at
		places = append(places, place{offset, d.bytes})
		if offset < 0 {
			offset += onADiskSize
		}
		copy(data[offset:], d.bytes)
		if found, err := contents(bytes.NewReader(data), onADiskSize); err != nil || !slices.Equal(found, []string{d.what}) {
			t.Errorf("%s in KiB %d at %d (%q): found %q, %v", d.what, d.kib, d.at, d.bytes, found, err)
		}
		if d.blkid == "" {
			continue
		}
		for _, b := range d.beside {
			copy(data[b.at:], b.bytes)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if is := strings.TrimSpace(tool(t, "", "blkid", "-p", "-o", "value", "-s", "TYPE", path)); is != d.blkid {
			t.Errorf("%s in KiB %d at %d (%q): blkid takes it for %q", d.what, d.kib, d.at, d.bytes, is)
		}
	}
	for _, s := range signatures {
		if !slices.Contains(places, place{int(s.offset), s.magic}) {
			t.Errorf("%s at %d (%q) is not written out", s.what, s.offset, s.magic)
		}
	}
}
