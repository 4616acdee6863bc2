package install

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// usage finds out what the running system uses of its disks.
type usage struct {
	root string
	// mounted maps device numbers (major:minor) to mount points; swaps holds the device paths of
	// active swap.
	mounted map[string]string
	swaps   map[string]bool
}

// readUsage looks at mounts and swap of the system below root. What cannot be read is taken as
// unused here: the kernel itself refuses the exclusive open of a disk that is in use, this only
// says it in better words and before anything is touched.
func readUsage(root string) usage {
	u := usage{root: root}
	u.mounted = readMounts(filepath.Join(root, "proc/self/mountinfo"))
	swaps, _ := os.ReadFile(filepath.Join(root, "proc/swaps"))
	u.swaps = parseSwaps(swaps)
	return u
}

// zonedBelow returns what says of a disk that it takes no image, because each zone of it is to be
// written from its beginning on, or "". An install writes the first zone last.
func zonedBelow(root string) func(disk string) string {
	return func(disk string) string {
		model, _ := os.ReadFile(filepath.Join(root, "sys/class/block", disk, "queue/zoned"))
		if string(bytes.TrimSpace(model)) == "host-managed" {
			return "is zoned (host-managed), so no image can be written to it"
		}
		return ""
	}
}

// of says how the disk or one of its partitions is used, or that it is zoned, or "".
func (u usage) of(disk string) string {
	if reason := zonedBelow(u.root)(disk); reason != "" {
		return reason
	}
	dir := filepath.Join(u.root, "sys/class/block", disk)
	if reason := u.device(dir, disk); reason != "" {
		return reason
	}
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		partition := filepath.Join(dir, entry.Name())
		if _, err := os.Stat(filepath.Join(partition, "partition")); err != nil {
			continue
		}
		if reason := u.device(partition, entry.Name()); reason != "" {
			return reason
		}
	}
	return ""
}

func (u usage) device(dir, name string) string {
	number, _ := os.ReadFile(filepath.Join(dir, "dev"))
	if point, ok := u.mounted[string(bytes.TrimSpace(number))]; ok {
		return "is mounted at " + point
	}
	if u.swaps[name] {
		return "is used as swap"
	}
	if holders, _ := os.ReadDir(filepath.Join(dir, "holders")); len(holders) > 0 {
		return "is held by " + holders[0].Name()
	}
	return ""
}

// readMounts reads the first mount point of each device.
func readMounts(path string) map[string]string {
	mounted := make(map[string]string)
	file, err := os.Open(path) //nolint:gosec // one of the kernel's files
	if err != nil {
		return mounted
	}
	defer func() { _ = file.Close() }()
	mounts, _ := mountinfo.GetMountsFromReader(file, nil)
	for _, m := range mounts {
		number := fmt.Sprintf("%d:%d", m.Major, m.Minor)
		if _, ok := mounted[number]; !ok {
			mounted[number] = m.Mountpoint
		}
	}
	return mounted
}

// parseSwaps reads /proc/swaps: a header, then one line for each area with its path first.
func parseSwaps(data []byte) map[string]bool {
	swaps := make(map[string]bool)
	lines := bufio.NewScanner(bytes.NewReader(data))
	for first := true; lines.Scan(); first = false {
		if fields := strings.Fields(lines.Text()); !first && len(fields) > 1 && strings.HasPrefix(fields[0], "/dev/") {
			swaps[filepath.Base(fields[0])] = true
		}
	}
	return swaps
}
