package install

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// otherVolumes warns of volumes on other disks that the installed system may take for its own: with
// the label or the UUID of one on the written disk, whose partitions the kernel has read.
//
// With a seed, it warns of other ones, too: cloud-init goes by the label, and takes the device
// whose name sorts last (cloudinit's DataSourceNoCloud). Names may change with a restart, so any
// other volume counts.
func otherVolumes(root string, chosen *agentv1.BlockDevice, seed bool) (warnings []error) {
	const seedOf = "cloud-init may take another seed than that of this install: "
	dirs, _ := filepath.Glob(filepath.Join(root, "sys/class/block/*")) // a fixed pattern, and sorted
	var names, seeds, twins []string
	for _, dir := range dirs {
		names = append(names, filepath.Base(dir))
	}
	found, late := readAll(names, func(name string) string { return volumeOf(filepath.Join(root, "dev", name)) })
	isOwn := func(name string) bool { return partOf(name, chosen) }
	own := map[string]bool{}
	for _, name := range names {
		if label, id, _ := strings.Cut(found[name], "\x00"); isOwn(name) && !strings.EqualFold(label, "cidata") {
			own[label], own[id] = true, true
		}
	}
	delete(own, "")
	for _, name := range slices.DeleteFunc(names, isOwn) {
		if label, id, _ := strings.Cut(found[name], "\x00"); strings.EqualFold(label, "cidata") {
			seeds = append(seeds, name)
		} else if own[label] || own[id] {
			twins = append(twins, name)
		}
	}
	late = slices.DeleteFunc(late, isOwn)
	if seed && len(seeds) > 0 {
		warnings = append(warnings, fmt.Errorf(seedOf+"wipe or detach what has the label CIDATA, too (%s)", listed(seeds)))
	}
	if seed && len(late) > 0 {
		warnings = append(warnings, fmt.Errorf(seedOf+"what is on %s is not known, because %w", listed(late), errLate))
	}
	if len(twins) > 0 {
		warnings = append(warnings, fmt.Errorf("the installed system may take a volume of another disk for its own: wipe or detach what has the label or the UUID of one on %s, too (%s)",
			devicePath(chosen.GetName()), listed(twins)))
	}
	return warnings
}

// partOf reports whether a name is that of the disk, of another path to it, or of a partition.
func partOf(name string, d *agentv1.BlockDevice) bool {
	return slices.ContainsFunc(append([]string{d.GetName()}, d.GetOtherPaths()...), func(disk string) bool {
		rest, same := strings.CutPrefix(name, disk)
		number, parted := strings.CutPrefix(rest, "p")
		// nvme0n10 is no part of nvme0n1
		if !parted && rest != "" && strings.TrimRight(disk, "0123456789") != disk {
			return false
		}
		return same && strings.Trim(number, "0123456789") == ""
	})
}

// volumeOf returns the label of a FAT, ISO 9660, ext, XFS or Btrfs file system, a zero and its
// UUID; "" where there is none, or it cannot be read. Seeds are made as one of the first three, and
// roots as one of the last three. "NO NAME" is no label: FAT has that where it was given none. The
// offsets are those of libblkid.
func volumeOf(device string) string {
	file, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	head := make([]byte, 65<<10)
	if n, err := file.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) || n < 512 {
		return ""
	}
	for _, l := range []struct {
		magic                  string
		at                     int64
		label, most, id, bytes int
	}{
		{"FAT12   ", 54, 43, 11, 39, 4},
		{"FAT16   ", 54, 43, 11, 39, 4},
		{"FAT32   ", 82, 71, 11, 67, 4},
		{"CD001", 32769, 32808, 32, 0, 0},
		{"\x53\xef", 1080, 1144, 16, 1128, 16},
		{"XFSB", 0, 108, 12, 32, 16},
		{"_BHRfS_M", 65600, 65835, 256, 65568, 16},
	} {
		if has(head, l.at, l.magic) {
			label := strings.TrimRight(string(head[l.label:l.label+l.most]), " \x00")
			return strings.TrimPrefix(label, "NO NAME") + "\x00" + strings.TrimRight(string(head[l.id:l.id+l.bytes]), "\x00")
		}
	}
	return ""
}
