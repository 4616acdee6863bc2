package install

import (
	"bytes"
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

// otherSeeds warns of other volumes that cloud-init may take in the place of the seed of the
// install: it goes by the label, and takes the device whose name sorts last (cloudinit's
// DataSourceNoCloud). Names may change with a restart, so any other volume counts. Unread warns of
// volumes that are silent.
func otherSeeds(root string, chosen *agentv1.BlockDevice) (others, unread error) {
	dirs, _ := filepath.Glob(filepath.Join(root, "sys/class/block/*")) // a fixed pattern, and sorted
	var names []string
	for _, dir := range dirs {
		if name := filepath.Base(dir); !partOf(name, chosen) {
			names = append(names, name)
		}
	}
	found, late := readAll(names, func(name string) string { return volumeLabel(filepath.Join(root, "dev", name)) })
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.EqualFold(found[name], "cidata") })
	if len(names) > 0 {
		others = fmt.Errorf("cloud-init may take another seed than that of this install: wipe or detach what has the label CIDATA, too (%s)", listed(names))
	}
	if len(late) > 0 {
		unread = fmt.Errorf("cloud-init may take another seed than that of this install: what is on %s is not known, because %w", listed(late), errLate)
	}
	return others, unread
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

// volumeLabel returns the label of a FAT, ISO 9660 or ext file system, which are those that seeds
// are made as; "" where there is none, or it cannot be read. The offsets are those of libblkid.
func volumeLabel(device string) string {
	file, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	head := make([]byte, 33<<10)
	if n, err := file.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) || n < 512 {
		return ""
	}
	for _, l := range []struct {
		magic   string
		at      int64
		from, n int
	}{
		{"FAT12   ", 54, 43, 11},
		{"FAT16   ", 54, 43, 11},
		{"FAT32   ", 82, 71, 11},
		{"CD001", 32769, 32808, 32},
		{"\x53\xef", 1080, 1144, 16},
	} {
		if has(head, l.at, l.magic) {
			return string(bytes.TrimRight(head[l.from:l.from+l.n], " \x00"))
		}
	}
	return ""
}
