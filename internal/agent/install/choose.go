package install

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// minDisk is the size below which a disk has no room for anything: first MiB, first-boot area, last
// MiB.
const minDisk = 3 * mebibyte

// choose returns the one disk that the selector means, or says why there is none. Disks that are
// removable, read-only, in use (inUse tells why, or "") or too small for need bytes of image are
// never chosen.
func choose(
	disks []*agentv1.BlockDevice, selector *agentv1.DiskSelector, need int64, inUse func(name string) string,
) (*agentv1.BlockDevice, error) {
	var fit []*agentv1.BlockDevice
	var rejected []string
	for _, disk := range disks {
		reason := unfit(disk, selector, need)
		if reason == "" {
			reason = inUseByAnyPath(disk, inUse)
		}
		if reason == "" {
			fit = append(fit, disk)
			continue
		}
		rejected = append(rejected, disk.GetName()+" "+reason)
	}
	if len(fit) == 0 {
		if len(disks) == 0 {
			return nil, errors.New("the machine has no disks")
		}
		return nil, fmt.Errorf("no disk fits: %s", strings.Join(rejected, ", "))
	}
	slices.SortStableFunc(fit, func(a, b *agentv1.BlockDevice) int {
		return cmp.Or(cmp.Compare(a.GetSizeBytes(), b.GetSizeBytes()), cmp.Compare(a.GetName(), b.GetName()))
	})
	switch selector.GetPick() {
	case agentv1.DiskSelector_PICK_SMALLEST:
		return fit[0], nil
	case agentv1.DiskSelector_PICK_LARGEST:
		largest := fit[len(fit)-1].GetSizeBytes()
		first := slices.IndexFunc(fit, func(d *agentv1.BlockDevice) bool { return d.GetSizeBytes() == largest })
		return fit[first], nil
	}
	if len(fit) > 1 {
		names := make([]string, len(fit))
		for i, disk := range fit {
			names[i] = disk.GetName()
		}
		slices.Sort(names)
		return nil, fmt.Errorf("%d disks match (%s): say which by serial, WWN, model, smallest or largest", len(fit), strings.Join(names, ", "))
	}
	return fit[0], nil
}

// inUseByAnyPath says how a disk is used, or "". The kernel does not know that two of its devices
// are paths to one disk, so an exclusive open of one path does not notice a mount of another.
func inUseByAnyPath(disk *agentv1.BlockDevice, inUse func(name string) string) string {
	if reason := inUse(disk.GetName()); reason != "" {
		return reason
	}
	for _, path := range disk.GetOtherPaths() {
		if reason := inUse(path); reason != "" {
			return reason + " (as " + path + ")"
		}
	}
	return ""
}

// unfit says why a disk cannot be the root disk, or "".
func unfit(disk *agentv1.BlockDevice, selector *agentv1.DiskSelector, need int64) string {
	switch {
	case disk.GetName() == "" || strings.ContainsAny(disk.GetName(), "/\x00") || strings.HasPrefix(disk.GetName(), "."):
		return "has a name that makes no sense"
	case selector.GetSerial() != "" && disk.GetSerial() != selector.GetSerial():
		return "has another serial number"
	case selector.GetWwn() != "" && !strings.EqualFold(disk.GetWwn(), selector.GetWwn()):
		return "has another WWN"
	case selector.GetModel() != "" && disk.GetModel() != selector.GetModel():
		return "is of another model"
	case disk.GetRemovable():
		return "is removable"
	case disk.GetReadOnly():
		return "is read-only"
	case disk.GetSizeBytes() < selector.GetMinSize():
		return fmt.Sprintf("is smaller than %d bytes", selector.GetMinSize())
	case disk.GetSizeBytes() < minDisk || FirstBootOffset(disk.GetSizeBytes()) < need:
		return fmt.Sprintf("is too small for the image and the first-boot area (%d bytes)", disk.GetSizeBytes())
	}
	return ""
}
