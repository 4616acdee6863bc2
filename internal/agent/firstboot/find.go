package firstboot

import (
	"bufio"
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
	"github.com/ironherd/ironherd/internal/agent/install"
)

// find returns what the first-boot area of a disk says, and the kernel name of the disk; nil where
// no disk has one. The disk of the root file system comes first: another one may hold an older
// install.
func find(root string) (*agentv1.FirstBoot, string, error) {
	entries, err := os.ReadDir(filepath.Join(root, "sys/block"))
	if err != nil {
		return nil, "", fmt.Errorf("list the disks: %w", err)
	}
	names := rootDisks(root)
	for _, entry := range entries {
		if name := entry.Name(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var problems []error
	for _, name := range names {
		first, err := read(filepath.Join(root, "dev", strings.ReplaceAll(name, "!", "/")))
		if err != nil && slices.Contains(rootDisks(root), name) {
			problems = append(problems, fmt.Errorf("look for the first-boot area of %s: %w", name, err))
		}
		if first != nil {
			return first, name, nil
		}
	}
	return nil, "", errors.Join(problems...)
}

// read returns what the first-boot area of a disk says; nil where it has none, or none that is
// whole.
func read(path string) (*agentv1.FirstBoot, error) {
	disk, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = disk.Close() }()
	size, err := disk.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	offset := install.FirstBootOffset(size)
	if offset < 0 {
		return nil, nil
	}
	area := make([]byte, install.MaxFirstBootArea)
	n, err := disk.ReadAt(area, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	first, err := install.DecodeFirstBoot(area[:n])
	if err != nil || first.GetToken().GetMachineId() == "" {
		return nil, nil //nolint:nilerr // whatever lies there, it is not for us
	}
	return first, nil
}

// rootDisks are the kernel names of the disks below the root file system: one, or those of a RAID.
func rootDisks(root string) []string {
	data, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil
	}
	number := ""
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) > 4 && f[4] == "/" {
			number = f[2]
		}
	}
	path, err := filepath.EvalSymlinks(filepath.Join(root, "sys/dev/block", number))
	if err != nil || number == "" {
		return nil
	}
	return below(path, 0)
}

// below returns the disks that a block device, given by its directory in sysfs, is made of.
func below(dir string, depth int) []string {
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	slaves, _ := filepath.Glob(filepath.Join(dir, "slaves/*"))
	if len(slaves) == 0 || depth > 8 {
		return []string{filepath.Base(dir)}
	}
	var disks []string
	for _, slave := range slaves {
		path, err := filepath.EvalSymlinks(slave)
		if err != nil {
			continue
		}
		for _, name := range below(path, depth+1) {
			if !slices.Contains(disks, name) {
				disks = append(disks, name)
			}
		}
	}
	return disks
}
