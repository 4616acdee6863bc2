package install

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// signature is how something that lies on a disk is recognised: by these bytes at this offset, from
// the end of the disk where it is negative.
type signature struct {
	what   string
	offset int64
	magic  string
}

// signatures are what a disk may hold that somebody may miss. The offsets are those of libblkid
// (util-linux, libblkid/src/superblocks), which the tools of every distribution go by; others have
// their source beside them. Where a magic has two bytes, the version beside it counts, too, so that
// noise and boot code are not taken for it. What lies inside of partitions is not looked at,
// because the table of partitions is found.
//
// An install records these words of the disk that it has written, and later versions of the agent
// compare them with what they find (stillHolds). So a word stays as it is, and an entry that comes
// later must recognise nothing that images have at their ends: their disks would be strangers'.
var signatures = []signature{
	{kindGPT, 512, "EFI PART"},
	{kindGPT, 4096, "EFI PART"},
	{kindBackup, -512, "EFI PART"},
	{kindBackup, -4096, "EFI PART"},
	{"an ext2, ext3 or ext4 file system", 1080, "\x53\xef"},
	{"an XFS file system", 0, "XFSB"},
	{"a Btrfs file system", 65600, "_BHRfS_M"},
	{"an F2FS file system", 1024, "\x10\x20\xf5\xf2"},
	{"a bcachefs file system or bcache device", 4120, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
	{"a bcachefs file system", 4120, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"},
	{"an NTFS file system", 3, "NTFS    "},
	{"an exFAT file system", 3, "EXFAT   "},
	{"a FAT file system", 54, "FAT12   "},
	{"a FAT file system", 54, "FAT16   "},
	{"a FAT file system", 82, "FAT32   "},
	{"an ISO 9660 file system", 32769, "CD001"},
	// A UDF that does not begin with one of these begins with that of ISO 9660 (ECMA-167, part 2).
	{"a UDF file system", 32769, "BEA01"},
	{"a UDF file system", 32769, "NSR02"},
	{"a UDF file system", 32769, "NSR03"},
	{"an HFS+ file system", 1024, "H+\x00\x04"}, // version 4 (Apple's Technical Note TN1150)
	{"an HFS+ file system", 1024, "HX\x00\x05"}, // HFSX, version 5
	{"a JFS file system", 32768, "JFS1"},
	{"a NILFS2 file system", 1024, "\x02\x00\x00\x00\x00\x00\x34\x34"}, // of revision 2.0
	{"a ReiserFS file system", 8244, "ReIsErFs"},
	{"a ReiserFS file system", 65588, "ReIsErFs"},
	{"a ReiserFS file system", 65588, "ReIsEr2Fs"},
	{"a ReiserFS file system", 65588, "ReIsEr3Fs"},
	{"a Reiser4 file system", 65536, "ReIsEr4"},
	{"a GFS2 file system", 65536, "\x01\x16\x19\x70"},
	{"an OCFS2 file system", 1024, "OCFSV2"}, // its blocks have 512 to 4096 bytes
	{"an OCFS2 file system", 2048, "OCFSV2"},
	{"an OCFS2 file system", 4096, "OCFSV2"},
	{"an OCFS2 file system", 8192, "OCFSV2"},
	{"a VMFS volume", 1048576, "\x0d\xd0\x01\xc0"},
	{"swap space", 4086, "SWAPSPACE2"}, // at the end of a page, whose size the processor has
	{"swap space", 8182, "SWAPSPACE2"},
	{"swap space", 16374, "SWAPSPACE2"},
	{"swap space", 32758, "SWAPSPACE2"},
	{"swap space", 65526, "SWAPSPACE2"},
	{"encrypted data (LUKS)", 0, "LUKS\xba\xbe"},
	{"encrypted data (BitLocker)", 3, "-FVE-FS-"},
	{"an LVM physical volume", 24, "LVM2 001"},
	{"an LVM physical volume", 512 + 24, "LVM2 001"},
	{"an LVM physical volume", 1024 + 24, "LVM2 001"},
	{"an LVM physical volume", 1536 + 24, "LVM2 001"},
	{"a member of a Stratis pool", 512 + 4, "!Stra0tis\x86\xff\x02^Arh"},
	{"a member of a Stratis pool", 9*512 + 4, "!Stra0tis\x86\xff\x02^Arh"},
	{"data of VDO", 0, "dmvdo001"},
	{"data of dm-integrity", 0, "integrt\x00"}, // Linux, drivers/md/dm-integrity.c: SB_MAGIC
	{"a disk of Oracle ASM", 32, "ORCLDISK"},   // Linux, oracleasm's disk.h; libvolume_id of udev
	{"a member of a Linux RAID", 0, "\xfc\x4e\x2b\xa9"},
	{"a member of a Linux RAID", 4096, "\xfc\x4e\x2b\xa9"},
	{"a member of a firmware RAID (Intel)", -1024, "Intel Raid ISM Cfg Sig. "},
	{"a member of a firmware RAID (DDF)", -512, "\xde\x11\xde\x11"},
	{"a member of a firmware RAID (Promise)", -63 * 512, "Promise Technology, Inc."},
	{"data of Ceph", 0, "bluestore block device\n"},
	{"data of Ceph", 0, "ceph osd volume v026"},
	{"data of DRBD", -4096 + 60, "\x83\x74\x02\x6b"},
	{"data of DRBD", -4096 + 60, "\x83\x74\x02\x6c"}, // in use when it was written
	{"a SquashFS file system", 0, "hsqs"},
	{"an EROFS file system", 1024, "\xe2\xe1\xf5\xe0"},
	{"an APFS container", 32, "NXSB"},
	{"a UFS file system", 65536 + 1372, "\x19\x01\x54\x19"},
	{"a UFS file system", 65536 + 1372, "\x19\x54\x01\x19"},
	{"a UFS file system", 8192 + 1372, "\x54\x19\x01\x00"},
	{"a UFS file system", 8192 + 1372, "\x00\x01\x19\x54"},
	{"a VxFS file system", 1024, "\xf5\xfc\x01\xa5"},
	{"a ReFS file system", 0, "\x00\x00\x00ReFS\x00"},
	{"a BFS file system", 0, "\xce\xfa\xad\x1b"},
	{"a MINIX file system", 1024 + 16, "\x7f\x13\x01\x00"}, // clean, as are the next ones
	{"a MINIX file system", 1024 + 16, "\x8f\x13\x01\x00"},
	{"a MINIX file system", 1024 + 16, "\x68\x24\x01\x00"},
	{"a MINIX file system", 1024 + 16, "\x78\x24\x01\x00"},
	{"a MINIX file system", 1024 + 24, "\x5a\x4d\x00\x00"}, // version 3
	{"encrypted data (LUKS)", 16 << 10, "SKUL\xba\xbe"},    // its second header
	{"an LVM physical volume", 0, "HM\x01\x00"},
	{"an LVM physical volume", 0, "HM\x02\x00"},
	{"a member of a firmware RAID (Intel)", -2 * 4096, "Intel Raid ISM Cfg Sig. "},
	{"a member of a firmware RAID (DDF)", -4096, "\xde\x11\xde\x11"},
	// Tables of partitions: libblkid/src/partitions of util-linux.
	{"a BSD disklabel", 512, "\x57\x45\x56\x82"},
	{"a Sun disklabel", 188, "\x60\x0d\xde\xee"},
	{"an Apple partition map", 512, "PM\x00\x00"},
}

// zfsMagic starts the uberblocks of ZFS, in either byte order.
var zfsMagic = []string{"\x00\x00\x00\x00\x00\xba\xb1\x0c", "\x0c\xb1\xba\x00\x00\x00\x00\x00"}

// kinds says what is known of what a disk holds, each thing once.
func (e diskEnds) kinds() []string {
	head, tail, size := e.head, e.tail, e.size
	var found []string
	for _, s := range signatures {
		area, offset := head, s.offset
		if offset < 0 {
			area, offset = tail, int64(len(tail))+offset
		}
		if has(area, offset, s.magic) {
			found = append(found, s.what)
		}
	}
	if hasMBR(head) {
		found = append(found, kindMBR)
	}
	// Version 0.90 lies 64 KiB before the end, rounded down; 1.0 at least 8 KiB before it.
	base := size - int64(len(tail))
	for _, at := range []int64{size&^(64<<10-1) - 64<<10, (size - 8<<10) &^ (4<<10 - 1)} {
		if has(tail, at-base, "\xfc\x4e\x2b\xa9") {
			found = append(found, "a member of a Linux RAID")
		}
	}
	for offset := int64(128 << 10); offset < 256<<10; offset += 1 << 10 {
		for _, magic := range zfsMagic {
			if has(head, offset, magic) || has(tail, int64(len(tail))-512<<10+offset, magic) {
				found = append(found, "a member of a ZFS pool")
			}
		}
	}
	var once []string
	for _, what := range found {
		if !slices.Contains(once, what) {
			once = append(once, what)
		}
	}
	return once
}

func has(area []byte, offset int64, magic string) bool {
	return offset >= 0 && offset+int64(len(magic)) <= int64(len(area)) && string(area[offset:offset+int64(len(magic))]) == magic
}

// hasMBR says whether the first sector has a table of partitions: the mark at its end, and an entry
// that makes sense. Boot sectors of file systems have the mark, too, and code in the place of the
// entries.
func hasMBR(head []byte) bool {
	const table, entry, kind = 446, 16, 4
	if !has(head, 510, "\x55\xaa") {
		return false
	}
	used := false
	for i := range 4 {
		e := head[table+i*entry : table+(i+1)*entry]
		if e[0] != 0 && e[0] != 0x80 {
			return false
		}
		used = used || e[kind] != 0 && !bytes.Equal(e[12:16], []byte{0, 0, 0, 0})
	}
	return used
}

// refuseForeign fails when the disk, which is open for reading at least, holds something that the
// request does not allow to be destroyed.
func refuseForeign(request *agentv1.InstallRequest, options Options, chosen *agentv1.BlockDevice, disk io.ReaderAt, marks marks, report *agentv1.InstallReport,
) error {
	if request.GetRootDisk().GetErase() {
		return nil
	}
	found, why, err := foreign(disk, chosen.GetSizeBytes(), options.MachineID, marks.newestBeside(chosen, options.MachineID))
	if err != nil {
		return fmt.Errorf("look at what %s holds: %w", devicePath(chosen.GetName()), err)
	}
	if len(found) > 0 {
		report.NeedsErase = true
		return fmt.Errorf("%s holds %s%s, and the request does not allow that to be erased (--erase, or root_disk: {erase: true}); nothing was written",
			devicePath(chosen.GetName()), strings.Join(found, " and "), why)
	}
	return nil
}

// foreign returns what a disk holds that is not the machine's, and why that is not taken for an
// install of the machine, where it might be. newest is the newest install generation of the machine
// that another disk holds, or 0.
//
// An install of the same machine is no stranger: whether it may be overwritten was decided before.
// But a first-boot area stays where it is when a disk is given to another use, so it counts only
// while the disk holds what it says, and while no other disk holds a newer install. Nor is a
// stranger what an interrupted install has left: by its record, which is on stable storage before
// anything is wiped, and by the first-boot area, which is before any part of a partition table is
// written.
func foreign(disk io.ReaderAt, size int64, machineID string, newest int64) (found []string, why string, err error) {
	ends, err := endsOf(disk, size)
	if err != nil {
		return nil, "", err
	}
	if found = ends.kinds(); len(found) == 0 || machineID == "" {
		return found, "", nil
	}
	records, err := readBegun(disk, size)
	if err != nil {
		return nil, "", err
	}
	if begun, _ := records.newest(machineID); begun != nil && begun.GetInstallGeneration() >= newest && leftBy(begun, ends) {
		return nil, "", nil
	}
	held, _, err := findHeld(disk, size)
	switch {
	case err != nil:
		return nil, "", err
	case held.GetToken().GetMachineId() != machineID:
		return found, "", nil
	case held.GetToken().GetInstallGeneration() < newest:
		return found, " (of an older install of this machine: another disk holds a newer one)", nil
	case held.GetContent() == nil:
		return found, " (maybe of an install of this machine, by an agent that did not record it)", nil
	case !stillHolds(held.GetContent(), ends.content()):
		return found, " (an install of this machine was there, but not what is there now)", nil
	}
	return nil, "", nil
}
