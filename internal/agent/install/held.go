package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// refuseHeld is the last fence in front of an installed system: it fails when a disk holds an
// install of this machine that is not older than the one that is asked for. A control plane that
// was restored from a backup does not know what it has installed since. Its state may be restored
// as a whole, so that nothing there can tell; the disk can.
//
// What this running system has written itself, since it was booted, is no obstacle: an attempt that
// ended between its last write and its report is repeated.
//
// The disk that would be written must be readable: what it holds is not known otherwise, and the
// install fails like one that found no image, to be tried again. Other disks are not written, so
// one of them that cannot be read is no obstacle. chosen is nil where none is to be written yet.
//
// What the fence cannot see:
//
//   - On a disk without a GUID partition table for sectors of 512 bytes, or whose table has no
//     entry left, the area is no partition. An installed system that grows a partition or a file
//     system over it may overwrite it, and then nothing here refuses. Nor is the area found there
//     when the disk was made larger since, as a LUN or the disk of a virtual machine may be.
//   - Nothing tells an install that was written and never came up from one that is in use. Both are
//     refused, so a machine whose installed system does not boot gets a new install generation.
func refuseHeld(request *agentv1.InstallRequest, chosen *agentv1.BlockDevice, options Options, marks marks, report *agentv1.InstallReport) error {
	for _, d := range options.Disks {
		m := marks[d.GetName()]
		if m.err != nil && d.GetName() == chosen.GetName() {
			return fmt.Errorf("nothing is written to %s, because what it holds cannot be read: %w", devicePath(d.GetName()), m.err)
		}
		token := m.held.GetToken()
		if !m.finished || token.GetMachineId() == "" || token.GetMachineId() != options.MachineID || olderInstall(token, request) {
			continue
		}
		if repeats(token, request, options.FirstGeneration, options.FirstAttempt) {
			continue
		}
		report.HeldInstallGeneration, report.HeldAttempt = token.GetInstallGeneration(), token.GetAttempt()
		return fmt.Errorf("%s holds install generation %d (attempt %d) of this machine already; it is not overwritten", devicePath(d.GetName()),
			token.GetInstallGeneration(), token.GetAttempt())
	}
	return nil
}

// Refused returns the report of an install that Run refuses because of what a disk holds; nil: it
// is not known to. That is an install of this machine that is not older, or something that the
// request does not allow to be erased. Nothing is written, and the disks may be in use. One that
// cannot be read is no obstacle, because Run reads the disks again.
func Refused(request *agentv1.InstallRequest, options Options) *agentv1.InstallReport {
	report := ReportOf(request)
	marks := readMarks(&options)
	err := refuseHeld(request, nil, options, marks, report)
	if err == nil {
		err = refuseForeignInUse(request, options, marks, report)
	}
	if report.GetHeldInstallGeneration() == 0 && !report.GetNeedsErase() {
		return nil
	}
	report.Error = clip(err.Error())
	return report
}

// refuseForeignInUse is refuseForeign for the disk that is written when nothing uses the disks any
// more.
func refuseForeignInUse(request *agentv1.InstallRequest, options Options, marks marks, report *agentv1.InstallReport) error {
	chosen, err := choose(options.Disks, request.GetRootDisk(), max(1, request.GetImage().GetSize()), zonedBelow(options.Root), priorOf(request, options, marks))
	if err != nil {
		return err
	}
	file, err := openToRead(options.Root, chosen.GetName())
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return refuseForeign(request, options, chosen, file, marks, report)
}

func olderInstall(token *agentv1.BootToken, request *agentv1.InstallRequest) bool {
	return token.GetInstallGeneration() < request.GetInstallGeneration()
}

// repeats says whether the request is a further attempt at the install that is on the disk, which
// this running system began itself: at its first install or later.
func repeats(token *agentv1.BootToken, request *agentv1.InstallRequest, firstGeneration int64, firstAttempt int32) bool {
	held, attempt := token.GetInstallGeneration(), token.GetAttempt()
	return firstGeneration > 0 && held == request.GetInstallGeneration() && attempt < request.GetAttempt() &&
		(held > firstGeneration || held == firstGeneration && attempt >= firstAttempt)
}

// mark is what installs have left on a disk.
type mark struct {
	// held is what the first-boot area says, nil where there is none, and finished whether the install
	// was finished there.
	held     *agentv1.FirstBoot
	finished bool
	// begun are the records of installs that have begun.
	begun begunRecords
	// err says why the disk could not be read.
	err error
}

// marks are those of all disks of a machine, by the names of the disks.
type marks map[string]mark

// readLimit is how long disks may take to tell what they hold, all of them together. One that has
// died may keep whoever reads it in the kernel for ever. All paths to a disk share it. It is less
// than the look before a jump, and than the patience with an install.
const readLimit = 45 * time.Second

// errLate is why a disk that has not answered in time cannot be read.
var errLate = fmt.Errorf("it did not answer within %s", readLimit)

// readAll reads disks or partitions at once, each by its name, and returns what came in time. Of
// the others it returns the names: each of them costs a thread until it answers.
func readAll[T any](names []string, read func(name string) T) (found map[string]T, late []string) {
	type answer struct {
		name string
		read T
	}
	answers := make(chan answer, len(names))
	for _, name := range names {
		go func() {
			_ = Survive(func() error { // after a fault it is as one that did not answer
				answers <- answer{name, read(name)}
				return nil
			})
		}()
	}
	timer := time.NewTimer(readLimit)
	defer timer.Stop()
	found = make(map[string]T)
	for len(found) < len(names) {
		select {
		case a := <-answers:
			found[a.name] = a.read
		case <-timer.C:
			for _, name := range names {
				if _, answered := found[name]; !answered {
					late = append(late, name)
				}
			}
			return found, late
		}
	}
	return found, nil
}

// readMarks looks at all disks but those that are never chosen. One that cannot be read by its name
// goes by that of another path to it that can: in the options, too, so that what was read is what
// is written.
func readMarks(options *Options) (found marks) {
	root := options.Root
	options.Disks, found = readDisks(options.Disks, func(d *agentv1.BlockDevice) mark { return readMark(root, d) })
	return found
}

// byPath is what was read of a disk, which has the name of the path that it was read by.
type byPath struct {
	disk *agentv1.BlockDevice
	mark mark
}

// readDisks reads disks at once, and returns them with the names by which they were read.
func readDisks(disks []*agentv1.BlockDevice, read func(*agentv1.BlockDevice) mark) ([]*agentv1.BlockDevice, marks) {
	at, found := make(map[string]int), make(marks)
	for i, d := range disks {
		if neverRoot(d) == "" {
			at[d.GetName()] = i
		}
	}
	answers, late := readAll(slices.Collect(maps.Keys(at)), func(name string) byPath { return readPaths(disks[at[name]], read) })
	for _, name := range late {
		found[name] = mark{err: errLate}
	}
	named := slices.Clone(disks)
	for name, answer := range answers {
		named[at[name]], found[answer.disk.GetName()] = answer.disk, answer.mark
	}
	return named, found
}

// readPaths reads a disk by its name, and by one other path to it after the other when those before
// have failed or are silent. Each has its share of the time, so that the last one has some, too.
// What it returns when all have failed is why the first one has.
func readPaths(d *agentv1.BlockDevice, read func(*agentv1.BlockDevice) mark) byPath {
	paths := []*agentv1.BlockDevice{d}
	for i, path := range d.GetOtherPaths() {
		other := proto.CloneOf(d)
		other.Name, other.OtherPaths[i] = path, d.GetName()
		paths = append(paths, other)
	}
	answers := make(chan byPath, len(paths))
	first := byPath{disk: d}
	for failed, begun := 0, 0; failed < len(paths); {
		var silent <-chan time.Time
		if begun < len(paths) {
			path := paths[begun]
			begun++
			go func() {
				_ = Survive(func() error { // after a fault it is as one that is silent
					answers <- byPath{path, read(path)}
					return nil
				})
			}()
			silent = time.After(readLimit / time.Duration(len(paths)))
		}
		select {
		case answer := <-answers:
			if answer.mark.err == nil {
				return answer
			}
			if failed++; answer.disk == d {
				first = answer
			}
		case <-silent:
		}
	}
	return first
}

func readMark(root string, d *agentv1.BlockDevice) (m mark) {
	file, err := openToRead(root, d.GetName())
	if err != nil {
		return mark{err: err}
	}
	defer func() { _ = file.Close() }()
	if m.held, m.finished, m.err = findHeld(file, d.GetSizeBytes()); m.err == nil {
		m.begun, m.err = readBegun(file, d.GetSizeBytes())
	}
	return m
}

// openToRead opens a disk, which may be in use.
func openToRead(root, name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(root, devicePath(name)), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// generation is the newest install generation of the machine that has left its mark, finished or
// not.
func (m mark) generation(machineID string) (newest int64) {
	if token := m.held.GetToken(); machineID != "" && token.GetMachineId() == machineID {
		newest = token.GetInstallGeneration()
	}
	if begun, _ := m.begun.newest(machineID); machineID != "" {
		newest = max(newest, begun.GetInstallGeneration())
	}
	return newest
}

// newestBeside returns the newest install generation of the machine that was finished on another
// disk, or 0.
func (m marks) newestBeside(chosen *agentv1.BlockDevice, machineID string) (newest int64) {
	for name, other := range m {
		if token := other.held.GetToken(); name != chosen.GetName() && other.finished && token.GetMachineId() == machineID {
			newest = max(newest, token.GetInstallGeneration())
		}
	}
	return newest
}

// maxGeneration bounds the install generation of a mark, as the control plane does: it could count
// to none above a higher one.
const maxGeneration = 1 << 40

// counted reports whether a mark may be one of ours: whoever had the installed system may have
// written anything there.
func counted(generation int64, attempt int32) bool {
	return generation >= 0 && generation <= maxGeneration && attempt >= 0
}

// findHeld looks for the first-boot area of a disk of that size. Boot sectors are written last, so
// a disk without them holds no finished install.
func findHeld(disk io.ReaderAt, size int64) (held *agentv1.FirstBoot, finished bool, err error) {
	area, err := ReadFirstBoot(disk, size)
	if area == nil || !counted(area.First.GetToken().GetInstallGeneration(), area.First.GetToken().GetAttempt()) {
		return nil, false, err
	}
	head := make([]byte, mebibyte)
	n, err := disk.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	return area.First, len(bytes.Trim(head[:n], "\x00")) > 0, nil
}
