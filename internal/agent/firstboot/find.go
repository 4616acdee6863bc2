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

// candidate is the first-boot area of a disk of the root file system.
type candidate struct {
	*install.FirstBootArea
	disk  string // its path
	mark  string // what begunFile has of its install
	claim claim
}

// claim is how well an area fits the system. Higher ones go before.
type claim int

const (
	// noClaim: the system does not use it.
	noClaim claim = iota
	// claimReplaced: the disk does not hold its install any more. But the system has begun with some
	// install, nobody knows which, and may have made all its partitions anew since.
	claimReplaced
	// claimFits: nothing says that it is not of the install that the system came with.
	claimFits
	// claimBegun: the system has begun with it.
	claimBegun
)

// find returns the first-boot area on the disks of the root file system that this system is to use;
// nil where there is none. anew says that it is of another install than this system has begun with.
// No other disk is read: what lies there is of another install, and may have come with a recycled
// disk, a USB stick or a LUN. The root file system may also have grown over a disk that holds the
// area of another install. So an install that the system has not begun with counts only where the
// root file system is on its disk alone, by whatever number of paths: else its own may be on a disk
// that cannot be read now.
func find(options Options, begun bool) (best *candidate, anew bool, err error) {
	text, _ := os.ReadFile(filepath.Join(options.Root, begunFile))
	own, unused, paths := string(text), "", 0
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
		next := &candidate{FirstBootArea: area, disk: path, mark: markOf(area.First)}
		var why string
		if next.claim, why = next.judge(own, begun); next.claim == noClaim {
			unused = name + ": " + why
			continue
		}
		if best == nil || next.claim > best.claim {
			best, paths = next, 0
		}
		if next.mark == best.mark {
			paths++
		}
	}
	anew = best != nil && own != "" && best.claim == claimFits
	if anew && paths < len(disks) {
		best, unused = nil, "the root file system is on other disks, too, or one cannot be read"
	}
	if best != nil {
		return best, anew, nil
	}
	if unused != "" {
		options.Logger.Warn("a first-boot area is not used", slog.String("why", unused))
	}
	return nil, false, errors.Join(problems...)
}

// markOf is what begunFile has, once the first boot of an install has begun: a line that says which
// install it is, and one since when there is one. Older versions left out the second, or both, or
// added a third.
func markOf(first *agentv1.FirstBoot) string {
	token := first.GetToken()
	return fmt.Sprintf("%s %d %d\n%020d\n", token.GetMachineId(), token.GetInstallGeneration(), token.GetAttempt(), token.GetMadeAt().GetSeconds())
}

// judge returns the claim of the area on a system that has begun with its first boot, or has not,
// with that mark, which may be unknown; and why it has none. A system that has begun with another
// install came with the image of this one, or its root file system was moved to this disk.
func (c *candidate) judge(own string, begun bool) (claim, string) {
	_, since, _ := strings.Cut(c.mark, "\n")
	_, ownSince, _ := strings.Cut(own, "\n")
	switch {
	case own != "" && (strings.HasPrefix(c.mark, own) || strings.HasPrefix(own, c.mark)):
		return claimBegun, ""
	case c.Replaced && begun && own == "":
		return claimReplaced, ""
	case c.Replaced:
		return noClaim, "the disk does not hold that install any more"
	case own == "":
		return claimFits, ""
	case c.Taken:
		return noClaim, "another system has begun with it"
	case len(c.First.GetContent().GetPartitions()) == 0:
		return noClaim, "it recorded no partitions"
	case ownSince == "" || since <= ownSince:
		return noClaim, "it is not later, by the clock of the control plane, as far as is known"
	}
	return claimFits, ""
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
