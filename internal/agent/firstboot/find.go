package firstboot

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
)

// find returns the first-boot area of a disk of the root file system, and the path of that disk;
// nil where none of them has one. anew says that it is of another install than this system has
// begun with. No other disk is read: what lies there is of another install, and may have come with
// a recycled disk, a USB stick or a LUN. Nor is an area believed that is of what was on the disk
// before, unless this system has begun with its first boot: since then it may have made all its
// partitions anew. It may also have grown over a disk that holds the area of another install. Of
// several areas, the one counts that it has begun with. Where no disk has that one, which may be on
// a disk that cannot be read now, another counts only where the system came with its image, and has
// its root file system on that disk alone, by whatever number of paths. A system that does not know
// with which it has begun prefers an area whose install is still there.
func find(options Options, begun bool) (best *install.FirstBootArea, disk string, anew bool, err error) {
	text, _ := os.ReadFile(filepath.Join(options.Root, begunFile))
	own := string(text)
	most, of, paths, unused := 0, "", 0, ""
	var problems []error
	disks := rootDisks(options.Root)
	for _, name := range disks {
		path := filepath.Join(options.Root, "dev", strings.ReplaceAll(name, "!", "/"))
		area, err := read(path)
		if err != nil {
			problems = append(problems, fmt.Errorf("look for the first-boot area of %s: %w", name, err))
		}
		if area == nil {
			continue
		}
		its, claim, why := markOf(area.First), 2, ""
		switch {
		case own != "" && (strings.HasPrefix(its, own) || strings.HasPrefix(own, its)):
			claim = 3
		case area.Replaced && begun && own == "":
			claim = 1
		case area.Replaced:
			why = "the disk does not hold that install any more"
		case own != "" && area.Taken:
			why = "another system has begun with it"
		case own != "":
			why = notCameWith(own, its, area.First)
		}
		if why != "" {
			unused = name + ": " + why
			continue
		}
		if claim > most {
			best, disk, most, of, paths = area, path, claim, its, 0
		}
		if its == of {
			paths++
		}
	}
	anew = own != "" && most == 2
	if anew && paths < len(disks) {
		best, unused = nil, "the root file system is on other disks, too, or one cannot be read"
	}
	if best != nil {
		return best, disk, anew, nil
	}
	if unused != "" {
		options.Logger.Warn("a first-boot area is not used", slog.String("why", unused))
	}
	return nil, "", false, errors.Join(problems...)
}

// markOf is what begunFile has, once the first boot of an install has begun: a line that says which
// install it is, and one since when there is one. Older versions left out the second, or both,
// or added a third.
func markOf(first *agentv1.FirstBoot) string {
	token := first.GetToken()
	return fmt.Sprintf("%s %d %d\n%020d\n", token.GetMachineId(), token.GetInstallGeneration(), token.GetAttempt(), token.GetMadeAt().GetSeconds())
}

// notCameWith says why a system with one mark did not come with the image of another install, or
// nothing. Its root file system may have been moved to the disk of that install.
func notCameWith(own, its string, first *agentv1.FirstBoot) string {
	_, mine, _ := strings.Cut(own, "\n")
	_, other, _ := strings.Cut(its, "\n")
	switch {
	case len(first.GetContent().GetPartitions()) == 0:
		return "it recorded no partitions"
	case mine == "" || other <= mine:
		return "it is not later, by the clock of the control plane, as far as is known"
	}
	return ""
}

// read returns the first-boot area of a disk, and what the disk says of it; nil where it has none
// that is whole, or that is for us.
func read(path string) (*install.FirstBootArea, error) {
	disk, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = disk.Close() }()
	size, err := disk.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	area, err := install.ReadFirstBoot(disk, size)
	if area == nil || area.First.GetToken().GetMachineId() == "" {
		return nil, err
	}
	if err := area.Look(disk, size); err != nil {
		return nil, err
	}
	return area, nil
}

// rootDisks are the kernel names of the disks below the root file system: one, or those of a RAID
// or of a Btrfs; none where it is on no disk, or is one of layers (overlay) or of ZFS.
func rootDisks(root string) []string {
	file, err := os.Open(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	mounts, err := mountinfo.GetMountsFromReader(file, func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != "/", false })
	if err != nil || len(mounts) == 0 {
		return nil
	}
	top := mounts[len(mounts)-1] // the last one mounted there covers the others
	path, err := filepath.EvalSymlinks(filepath.Join(root, "sys/dev/block", fmt.Sprintf("%d:%d", top.Major, top.Minor)))
	if err != nil { // Btrfs makes a number up, and names its device
		if path, err = filepath.EvalSymlinks(filepath.Join(root, top.Source)); err == nil {
			path, err = filepath.EvalSymlinks(filepath.Join(root, "sys/class/block", filepath.Base(path)))
		}
	}
	if err != nil {
		return nil
	}
	// mountinfo names one device of a Btrfs that has several.
	devices, _ := filepath.Glob(filepath.Join(root, "sys/fs/btrfs/*/devices", filepath.Base(path)))
	if len(devices) == 0 {
		return below(path, 0)
	}
	return belowAll(filepath.Dir(devices[0])+"/*", 0)
}

// below returns the disks that a block device, given by its directory in sysfs, is made of.
func below(dir string, depth int) []string {
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	slaves := dir + "/slaves/*"
	if found, _ := filepath.Glob(slaves); len(found) == 0 || depth > 8 {
		return []string{filepath.Base(dir)}
	}
	return belowAll(slaves, depth+1)
}

// belowAll returns the same of all devices whose links in sysfs match.
func belowAll(pattern string, depth int) []string {
	links, _ := filepath.Glob(pattern)
	var disks []string
	for _, link := range links {
		path, err := filepath.EvalSymlinks(link)
		if err != nil {
			continue
		}
		for _, name := range below(path, depth) {
			if !slices.Contains(disks, name) {
				disks = append(disks, name)
			}
		}
	}
	return disks
}
