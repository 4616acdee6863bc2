package image

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Where the partitions lie, in bytes.
const (
	sector     = 512
	biosOffset = 1 * mebibyte
	espOffset  = 2 * mebibyte
	espSize    = 64 * mebibyte
	rootOffset = espOffset + espSize
	// tailSize is left behind the root partition, for the backup of the partition table.
	tailSize = 1 * mebibyte
	// roomSize is what the root file system has to spare unless a size was asked for.
	roomSize = 192 * mebibyte
	minSize  = rootOffset + 256*mebibyte + tailSize
	// bytesPerInode is how much of a file system mke2fs makes an inode for, and bytesPerInodeSmall how
	// much of one below smallSize (mke2fs.conf). bootInodes is how many inodes a root has to spare.
	bytesPerInode, inodeSize = 16384, 256
	bytesPerInodeSmall       = 4096
	smallSize                = 512 * mebibyte
	bootInodes               = 8192
)

// Types of partitions, by the UEFI specification, GRUB's manual and the Discoverable Partitions
// Specification. The latter's name for the root of this architecture would make systemd mount it by
// itself, even that of another disk; so it is only "Linux data".
const (
	typeBIOS = "21686148-6449-6E6F-744E-656564454649"
	typeESP  = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
	typeRoot = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
)

func (b *builder) espPath() string  { return filepath.Join(b.work, "esp") }
func (b *builder) rootPath() string { return filepath.Join(b.work, "root.ext4") }

const (
	shim       = "usr/lib/shim/shimx64.efi.signed"
	mokManager = "usr/lib/shim/mmx64.efi.signed"
	grub       = "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
)

// espFiles are what the EFI system partition has of the packages.
var espFiles = []struct{ from, to string }{
	{shim, "EFI/BOOT/BOOTX64.EFI"},
	{grub, "EFI/BOOT/grubx64.efi"},
	{mokManager, "EFI/BOOT/mmx64.efi"},
	{"usr/lib/shim/BOOTX64.CSV", "EFI/debian/BOOTX64.CSV"},
	{shim, "EFI/debian/shimx64.efi"},
	{grub, "EFI/debian/grubx64.efi"},
	{mokManager, "EFI/debian/mmx64.efi"},
}

// makeESP writes the file system that UEFI firmware looks into. Its GRUB is Debian's signed one,
// which reads EFI/debian/grub.cfg; the removable path serves firmware without boot entries.
func (b *builder) makeESP(ctx context.Context, tree string) error {
	esp := b.espPath()
	// --invariant sets a serial number of its own, so ours comes behind it.
	if _, err := b.run(ctx, nil, "mkfs.vfat", "--invariant", "-C", "-F", "32", "-n", "ESP", "-i", b.volumeID(), esp, strconv.Itoa(espSize/1024)); err != nil {
		return err
	}
	stub := filepath.Join(b.work, "grub.cfg")
	text := fmt.Sprintf("search.fs_uuid %s root\nset prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n", b.id("root"))
	if err := os.WriteFile(stub, []byte(text), 0o600); err != nil {
		return err
	}
	for _, dir := range []string{"EFI", "EFI/BOOT", "EFI/debian"} {
		if _, err := b.run(ctx, nil, "mmd", "-i", esp, "::"+dir); err != nil {
			return err
		}
	}
	for _, file := range espFiles {
		if _, err := b.run(ctx, nil, "mcopy", "-i", esp, filepath.Join(tree, file.from), "::"+file.to); err != nil {
			return err
		}
	}
	_, err := b.run(ctx, nil, "mcopy", "-i", esp, stub, "::EFI/debian/grub.cfg")
	return err
}

// makeRoot writes the root file system.
func (b *builder) makeRoot(ctx context.Context, tree string) error {
	size, inodes, err := b.rootSize(tree)
	if err != nil {
		return err
	}
	path, id := b.rootPath(), b.id("root").String()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(path, size); err != nil {
		return err
	}
	// The directory is read in the order of its names. A large resize_inode leaves room to grow.
	args := []string{
		"-q", "-F", "-t", "ext4", "-b", "4096", "-m", "1", "-L", "root", "-U", id,
		"-E", "hash_seed=" + b.id("hash").String() + ",lazy_itable_init=0,lazy_journal_init=0,nodiscard", "-d", tree,
	}
	if inodes > size/bytesPerInode && (size >= smallSize || inodes > size/bytesPerInodeSmall) {
		args = append(args, "-N", strconv.FormatInt(inodes, 10))
	}
	if _, err := b.run(ctx, nil, "mke2fs", append(args, path)...); err != nil {
		return err
	}
	return b.pinInodeTimes(ctx, path)
}

// pinInodeTimes sets what mke2fs takes over and nobody can set, or reading a directory changes:
// when an inode was changed, made, and last read.
func (b *builder) pinInodeTimes(ctx context.Context, path string) error {
	listing, err := b.run(ctx, nil, "dumpe2fs", path)
	if err != nil {
		return err
	}
	used, err := usedInodes(listing)
	if err != nil {
		return err
	}
	var script strings.Builder
	at := b.Timestamp.Unix()
	for _, inode := range used {
		for _, time := range []string{"ctime", "crtime", "atime"} {
			_, _ = fmt.Fprintf(&script, "sif <%d> %s @%d\nsif <%d> %s_extra 0\n", inode, time, at, inode, time)
		}
	}
	file := filepath.Join(b.work, "inodes")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		return err
	}
	_, err = b.run(ctx, nil, "debugfs", "-w", "-f", file, path)
	return err
}

// firstFileInode is the first inode that is a file's; those below it are the file system's own, but
// for the root directory.
const firstFileInode, rootInode = 11, 2

// usedInodes returns the numbers of the inodes that are files, by dumpe2fs' lists of those that are
// not.
func usedInodes(listing string) ([]int, error) {
	count := 0
	free := map[int]bool{}
	for line := range strings.Lines(listing) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Inode count":
			n, err := strconv.Atoi(value)
			if err != nil {
				return nil, fmt.Errorf("dumpe2fs printed %q", line)
			}
			count = n
		case "Free inodes":
			for span := range strings.SplitSeq(value, ", ") {
				if span == "" || !strings.ContainsAny(span, "0123456789") {
					continue
				}
				from, to, isRange := strings.Cut(span, "-")
				if !isRange {
					to = from
				}
				first, err1 := strconv.Atoi(from)
				last, err2 := strconv.Atoi(to)
				if errors.Join(err1, err2) != nil {
					return nil, fmt.Errorf("dumpe2fs printed %q", line)
				}
				for n := first; n <= last; n++ {
					free[n] = true
				}
			}
		}
	}
	if count == 0 {
		return nil, errors.New("dumpe2fs did not say how many inodes there are")
	}
	used := []int{rootInode}
	for n := firstFileInode; n <= count; n++ {
		if !free[n] {
			used = append(used, n)
		}
	}
	return used, nil
}

// rootSize is the size of the root file system, what was asked for or what the tree needs, and how
// many inodes it must have.
func (b *builder) rootSize(tree string) (size, inodes int64, err error) {
	const block = 4096
	var need int64
	linked := map[uint64]bool{} // files with several names
	err = filepath.WalkDir(tree, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			need += block
			inodes++
			return nil
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 {
			if linked[stat.Ino] {
				return nil
			}
			linked[stat.Ino] = true
		}
		need += (info.Size() + block - 1) / block * block
		inodes++
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	// The journal, the tables of inodes (one for each 16 KiB) and bitmaps.
	need += need/16 + 64*mebibyte
	inodes += inodes/8 + bootInodes
	need += max(0, inodes-need/bytesPerInode) * inodeSize
	if b.Size != 0 {
		size = b.Size - rootOffset - tailSize
		if size < need {
			return 0, 0, fmt.Errorf("the packages do not fit: the image must have at least %d MiB", (need+rootOffset+tailSize)/mebibyte+1)
		}
		return size, inodes, nil
	}
	const step = 64 * mebibyte
	return (need + roomSize + step - 1) / step * step, inodes, nil
}

// table is the input of sfdisk. Partitions begin where the constants say, whatever it likes itself.
func (b *builder) table(rootSize int64) string {
	var out strings.Builder
	_, _ = fmt.Fprintf(&out, "label: gpt\nlabel-id: %s\nunit: sectors\nfirst-lba: 34\n", b.id("disk"))
	for i, p := range []struct {
		offset, size int64
		kind, name   string
	}{
		{biosOffset, espOffset - biosOffset, typeBIOS, "BIOS"}, {espOffset, espSize, typeESP, "ESP"}, {rootOffset, rootSize, typeRoot, "root"},
	} {
		_, _ = fmt.Fprintf(&out, "start=%d, size=%d, type=%s, uuid=%s, name=%s\n",
			p.offset/sector, p.size/sector, p.kind, b.id(fmt.Sprint("partition ", i+1)), p.name)
	}
	return out.String()
}

// makeDisk puts the parts together.
func (b *builder) makeDisk(ctx context.Context, tree, path string) (size int64, err error) {
	root, err := os.Stat(b.rootPath())
	if err != nil {
		return 0, err
	}
	size = rootOffset + root.Size() + tailSize
	disk, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	if err := disk.Truncate(size); err != nil {
		return 0, err
	}
	if _, err := b.run(ctx, strings.NewReader(b.table(root.Size())), "sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", "--wipe=never", path); err != nil {
		return 0, err
	}
	if err := writeGRUB(disk, filepath.Join(tree, "boot/grub/i386-pc")); err != nil {
		return 0, err
	}
	for _, part := range []struct {
		path string
		at   int64
	}{{b.espPath(), espOffset}, {b.rootPath(), rootOffset}} {
		if err := copySparse(disk, part.at, part.path); err != nil {
			return 0, err
		}
	}
	return size, disk.Sync()
}

// writeGRUB makes the disk boot by BIOS, as grub-bios-setup does: the first stage in the code area
// of the MBR, which loads the first sector of the core image, which loads the rest. Both are told
// where that lies (grub-core/boot/i386/pc/boot.S and diskboot.S).
func writeGRUB(disk io.WriterAt, modules string) error {
	const (
		codeSize        = 440
		sectorOfCore    = 0x5c
		driveCheck      = 0x66
		blocklistOffset = sector - 12
	)
	boot, err := os.ReadFile(filepath.Join(modules, "boot.img"))
	if err != nil {
		return err
	}
	core, err := os.ReadFile(filepath.Join(modules, "core.img"))
	if err != nil {
		return err
	}
	if len(boot) != sector || len(core) <= sector || len(core) > espOffset-biosOffset {
		return fmt.Errorf("GRUB's images have %d and %d bytes, which makes no sense", len(boot), len(core))
	}
	binary.LittleEndian.PutUint64(boot[sectorOfCore:], biosOffset/sector)
	boot[driveCheck], boot[driveCheck+1] = 0x90, 0x90 // believe the BIOS which drive it booted
	binary.LittleEndian.PutUint64(core[blocklistOffset:], biosOffset/sector+1)
	if sectors := (len(core) - 1) / sector; int(binary.LittleEndian.Uint16(core[blocklistOffset+8:])) != sectors {
		return fmt.Errorf("GRUB's core image says that it has %d sectors besides its first, and has %d",
			binary.LittleEndian.Uint16(core[blocklistOffset+8:]), sectors)
	}
	if _, err := disk.WriteAt(boot[:codeSize], 0); err != nil {
		return err
	}
	_, err = disk.WriteAt(core, biosOffset)
	return err
}

// copySparse copies a file to an offset of the disk, and nothing where the file has holes.
func copySparse(disk *os.File, at int64, path string) error {
	part, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = part.Close() }()
	info, err := part.Stat()
	if err != nil {
		return err
	}
	for offset := int64(0); offset < info.Size(); {
		data, err := unix.Seek(int(part.Fd()), offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // holes to the end
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(part.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(disk, at+data), io.NewSectionReader(part, data, hole-data)); err != nil {
			return err
		}
		offset = hole
	}
	return nil
}
