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

// prior is what is known of earlier installs of the machine.
type prior struct {
	// begun says of a disk, by its name, that this install generation has begun to write it.
	begun map[string]bool
	// gone is the disk that it has begun to write and that is not there any more; "" where none is.
	gone string
	// generations are the newest install generations that disks hold, by the names of the disks.
	generations map[string]int64
	// unread says of a disk, by its name, why it is not known what it holds.
	unread map[string]error
	// missing are disks that the machine had before the agent was in memory, and has not now.
	missing []*agentv1.BlockDevice
}

// choose returns the one disk that the selector means, or says why there is none. Disks that are
// removable, read-only, in use (inUse tells why, or "") or too small for need bytes of image are
// never chosen.
//
// Where this install has begun to write a disk before, it is that one or none: the next attempt
// must not wipe another, because the one that was begun is not there, or the disks have other
// names.
func choose(
	disks []*agentv1.BlockDevice, selector *agentv1.DiskSelector, need int64, inUse func(name string) string, prior prior,
) (*agentv1.BlockDevice, error) {
	const anew = "ask for the install anew to have another disk written"
	if prior.gone != "" {
		return nil, fmt.Errorf("an earlier attempt at this install has begun to write %s, which is not there any more; %s", prior.gone, anew)
	}
	var fit []*agentv1.BlockDevice
	var rejected []string
	for _, disk := range disks {
		reason := unfit(disk, selector, need)
		if reason == "" {
			reason = inUseByAnyPath(disk, inUse)
		}
		if reason != "" && prior.begun[disk.GetName()] {
			return nil, fmt.Errorf("an earlier attempt at this install has begun to write %s, which %s; %s", disk.GetName(), reason, anew)
		}
		if reason == "" {
			fit = append(fit, disk)
			continue
		}
		rejected = append(rejected, disk.GetName()+" "+reason)
	}
	if len(prior.begun) == 0 {
		if err := missed(prior.missing, selector, need); err != nil {
			return nil, err
		}
	}
	if len(fit) == 0 {
		if len(disks) == 0 {
			return nil, errors.New("the machine has no disks")
		}
		return nil, fmt.Errorf("no disk fits: %s", strings.Join(rejected, ", "))
	}
	if len(prior.begun) > 0 {
		fit = slices.DeleteFunc(fit, func(d *agentv1.BlockDevice) bool { return !prior.begun[d.GetName()] })
	} else if len(fit) > 1 {
		for _, disk := range fit {
			if err := prior.unread[disk.GetName()]; err != nil {
				return nil, fmt.Errorf("an earlier attempt at this install may have begun to write %s, which cannot be read: %w; name the disk by serial or WWN, or %s",
					disk.GetName(), err, anew)
			}
		}
	}
	return pick(fit, selector, prior.generations)
}

// missed fails where one of the missing disks fits. It may be the one that is meant: without it
// another one is the smallest.
func missed(missing []*agentv1.BlockDevice, selector *agentv1.DiskSelector, need int64) error {
	remedy := "name the disk that is to be written by its serial number or WWN"
	if selector.GetSerial() != "" || selector.GetWwn() != "" { // the request names it already
		remedy = "see whether it is broken, or ask for an install on another disk"
	}
	for _, disk := range missing {
		if unfit(disk, selector, need) == "" {
			return fmt.Errorf("%s (serial number %q, %d bytes), which the machine had before it was taken over and which fits, is not there: %s",
				disk.GetName(), disk.GetSerial(), disk.GetSizeBytes(), remedy)
		}
	}
	return nil
}

// Missing returns those of the disks of before that are not there now, but for what comes and goes:
// what is removable, and what is not in the machine.
func Missing(before, now []*agentv1.BlockDevice) (missing []*agentv1.BlockDevice) {
	left := slices.Clone(now)
	for _, was := range before {
		if neverRoot(was) != "" || elsewhere(was) != "" {
			continue
		}
		at := slices.IndexFunc(left, func(d *agentv1.BlockDevice) bool {
			return d.GetSizeBytes() == was.GetSizeBytes() && sameIdentity(d, was)
		})
		if at < 0 {
			missing = append(missing, was)
			continue
		}
		left = slices.Delete(left, at, at+1)
	}
	return missing
}

// sameIdentity says that two disks may be one. A drive that is slow may be read without one of the
// two by which it is known.
func sameIdentity(a, b *agentv1.BlockDevice) bool {
	if a.GetWwn() != "" && b.GetWwn() != "" {
		return a.GetWwn() == b.GetWwn()
	}
	return a.GetSerial() == b.GetSerial() || a.GetSerial() == "" || b.GetSerial() == ""
}

// pick returns one of the disks that fit. Among disks of one size it is the one that holds the
// newest install of the machine, or else the first by what does not change with the next boot.
func pick(fit []*agentv1.BlockDevice, selector *agentv1.DiskSelector, generations map[string]int64) (*agentv1.BlockDevice, error) {
	slices.SortStableFunc(fit, func(a, b *agentv1.BlockDevice) int {
		return cmp.Or(
			cmp.Compare(a.GetSizeBytes(), b.GetSizeBytes()), cmp.Compare(generations[b.GetName()], generations[a.GetName()]),
			cmp.Compare(a.GetSerial(), b.GetSerial()), cmp.Compare(a.GetWwn(), b.GetWwn()), cmp.Compare(a.GetName(), b.GetName()),
		)
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

// priorOf works out what is known of earlier installs, from what lies on the disks and what the
// agent remembers.
func priorOf(request *agentv1.InstallRequest, options Options, marks marks) prior {
	p := prior{
		begun: map[string]bool{}, generations: map[string]int64{}, unread: map[string]error{}, missing: Missing(options.Before, options.Disks),
	}
	for name, m := range marks {
		generation := m.generation(options.MachineID)
		p.generations[name] = generation
		if generation > 0 && generation == request.GetInstallGeneration() {
			p.begun[name] = true
		}
		if m.err != nil && request.GetAttempt() > 1 {
			p.unread[name] = m.err
		}
	}
	if last := options.Begun; last.GetInstallGeneration() > 0 && last.GetInstallGeneration() == request.GetInstallGeneration() {
		at := slices.IndexFunc(options.Disks, func(d *agentv1.BlockDevice) bool { return isDisk(last, d) })
		if at < 0 {
			p.gone = fmt.Sprintf("%s (serial number %q)", last.GetName(), last.GetSerial())
		} else {
			p.begun[options.Disks[at].GetName()] = true
		}
	}
	return p
}

// isDisk says whether a disk is the one that an install has begun to write.
func isDisk(begun *agentv1.BegunDisk, d *agentv1.BlockDevice) bool {
	if begun.GetSerial() == "" && begun.GetWwn() == "" {
		return d.GetName() == begun.GetName()
	}
	return d.GetSerial() == begun.GetSerial() && d.GetWwn() == begun.GetWwn()
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
	case selector.GetSerial() != "" && disk.GetSerial() != selector.GetSerial():
		return "has another serial number"
	case selector.GetWwn() != "" && !strings.EqualFold(disk.GetWwn(), selector.GetWwn()):
		return "has another WWN"
	case selector.GetModel() != "" && disk.GetModel() != selector.GetModel():
		return "is of another model"
	case neverRoot(disk) != "":
		return neverRoot(disk)
	case elsewhere(disk) != "" && selector.GetSerial() == "" && selector.GetWwn() == "":
		return elsewhere(disk) + ", and neither its serial number nor its WWN was asked for"
	case disk.GetSizeBytes() < selector.GetMinSize():
		return fmt.Sprintf("is smaller than %d bytes", selector.GetMinSize())
	case FirstBootOffset(disk.GetSizeBytes()) < need:
		return fmt.Sprintf("is too small for the image and the first-boot area (%d bytes)", disk.GetSizeBytes())
	}
	return ""
}

// neverRoot says why a disk cannot be the root disk of any install, or "".
func neverRoot(disk *agentv1.BlockDevice) string {
	switch {
	case disk.GetName() == "" || strings.ContainsAny(disk.GetName(), "/\x00") || strings.HasPrefix(disk.GetName(), "."):
		return "has a name that makes no sense"
	case disk.GetRemovable():
		return "is removable"
	case disk.GetReadOnly():
		return "is read-only"
	case disk.GetSizeBytes() < minDisk:
		return fmt.Sprintf("is too small for any image (%d bytes)", disk.GetSizeBytes())
	}
	return ""
}

// elsewhere says that a disk may not be the machine's own, or "". A USB disk is somebody's, and
// says only of some that it is removable; what a network leads to may have other users; a memory
// card may hold what the machine starts with.
func elsewhere(disk *agentv1.BlockDevice) string {
	switch protocol := disk.GetProtocol(); protocol {
	case "usb":
		return "is a USB disk"
	case "sd":
		return "is a memory card"
	case "fc", "iscsi", "nvme-fc", "nvme-rdma", "nvme-tcp":
		return "is not in the machine (" + protocol + ")"
	}
	return ""
}
