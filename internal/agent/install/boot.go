package install

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// EFIMark is a file by which a system in memory knows that firmware has started the machine by
// EFI. Its own kernel may show nothing of that.
const EFIMark = "ironherd/efi"

// bootedByEFI says whether firmware has started the machine by EFI. Where it has not, that may be
// BIOS, or EFI of which the kernel was told to make no use.
func bootedByEFI(root string) bool {
	for _, path := range []string{"sys/firmware/efi", EFIMark} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			return true
		}
	}
	return false
}

// checkArchitecture fails when the image is known to be for another architecture than the machine
// has.
func checkArchitecture(image *agentv1.Image) error {
	if a := image.GetArchitecture(); a != "" && a != runtime.GOARCH {
		return fmt.Errorf("the image is for %s, and the machine is %s: ask for an image for %s, or call the install off", a, runtime.GOARCH, runtime.GOARCH)
	}
	return nil
}

// ForAnother returns the report of an install that must not begin, because its image is for another
// architecture; nil: it is not known to be.
func ForAnother(request *agentv1.InstallRequest) *agentv1.InstallReport {
	err := checkArchitecture(request.GetImage())
	if err == nil {
		return nil
	}
	report := ReportOf(request)
	report.Error = err.Error()
	return report
}

// checkBoot fails when the machine cannot boot an image with that first MiB. It returns the EFI
// system partition, its number 0 where there is none, and a warning where it is not as sure.
func checkBoot(root string, head []byte) (esp partition, warning, err error) {
	esp, err = findESP(head)
	switch efi := bootedByEFI(root); {
	case efi && err != nil:
		return esp, nil, fmt.Errorf("the machine boots by EFI, and no EFI system partition can be found in the image: %w", err)
	case efi && esp.number == 0:
		return esp, nil, errors.New("the machine boots by EFI, and the image has no EFI system partition")
	case !efi && runtime.GOARCH == "amd64" && esp.number != 0 && !hasBootCode(head):
		return esp, errors.New("the machine seems to boot by BIOS, and the image boots by EFI alone: its boot sector has no code"), nil
	}
	return esp, nil, nil
}

// findESP returns the first EFI system partition of a disk by its first MiB, its number 0 where
// there is none. The error is of a table that makes no sense.
func findESP(head []byte) (partition, error) {
	for _, sector := range []int{gptSector, maxSector} {
		t, err := readTable(head, sector)
		if err == nil {
			esp, _ := t.find(typeESP)
			return esp, nil
		}
		if !errors.Is(err, errNoTable) {
			return partition{}, err
		}
	}
	for i, e := range mbrEntries(head) {
		const kindESP = 0xef
		if first, n := binary.LittleEndian.Uint32(e[8:]), binary.LittleEndian.Uint32(e[12:]); e[4] == kindESP && n > 0 {
			esp := partition{number: i + 1, first: uint64(first), last: uint64(first) + uint64(n) - 1, mbr: true}
			copy(esp.id[:], head[440:444])
			return esp, nil
		}
	}
	return partition{}, nil
}

// hasBootCode says whether the first sector has something that a BIOS could run.
func hasBootCode(head []byte) bool {
	const code = 440
	return has(head, 510, "\x55\xaa") && len(bytes.Trim(head[:code], "\x00")) > 0
}

// mbrProtective is the kind of the entry by which an MBR says that the disk has a GPT.
const mbrProtective = 0xee

// mbrEntries are the four entries of the table in the first sector; none where it has no table.
func mbrEntries(head []byte) [][]byte {
	if !hasMBR(head) {
		return nil
	}
	const table, entry = 446, 16
	var entries [][]byte
	for at := table; at < table+4*entry; at += entry {
		entries = append(entries, head[at:at+entry])
	}
	return entries
}

// bootsInstead warns of other disks that the firmware may boot in the place of the installed one:
// by BIOS those whose boot sector has code, and by EFI those with an EFI system partition, unless
// the firmware has an entry that tells them apart. Unread warns of disks that are silent.
func bootsInstead(options Options, chosen *agentv1.BlockDevice, esp partition, entry bool) (instead, unread error) {
	byEFI := bootedByEFI(options.Root)
	var names []string
	for _, d := range options.Disks {
		if d.GetName() != chosen.GetName() && d.GetName() != "" && !strings.ContainsAny(d.GetName(), "/\x00") {
			names = append(names, d.GetName())
		}
	}
	found, late := readAll(names, func(name string) (by string) {
		head, ok := readHead(options.Root, name)
		if ok && !byEFI && hasBootCode(head) {
			return "boot sector"
		}
		if other, err := findESP(head); ok && byEFI && err == nil && other.number != 0 && (!entry || other.id == esp.id) {
			return "EFI system partition"
		}
		return ""
	})
	names = slices.DeleteFunc(names, func(name string) bool { return found[name] == "" })
	disk := devicePath(chosen.GetName())
	if len(names) > 0 {
		instead = fmt.Errorf("the firmware may boot another disk than %s, by the %s of %s", disk, found[names[0]], listed(names))
	}
	if len(late) > 0 {
		unread = fmt.Errorf("the firmware may boot another disk than %s: what is on %s is not known, because %w", disk, listed(late), errLate)
	}
	return instead, unread
}

// listed names devices in a warning, of which history keeps 300 bytes: the first ones by their
// paths, and how many there are besides.
func listed(names []string) string {
	const most = 6
	rest := len(names) - most
	if rest < 2 {
		rest = 0
	}
	var paths []string
	for _, name := range names[:len(names)-rest] {
		paths = append(paths, devicePath(name))
	}
	text := strings.Join(paths, ", ")
	if rest > 0 {
		text += fmt.Sprintf(" and %d others", rest)
	}
	return text
}

// readHead reads the first MiB of a disk, and says whether it could.
func readHead(root, name string) ([]byte, bool) {
	file, err := os.OpenFile(filepath.Join(root, devicePath(name)), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false
	}
	defer func() { _ = file.Close() }()
	head := make([]byte, mebibyte)
	_, err = file.ReadAt(head, 0)
	return head, err == nil || errors.Is(err, io.EOF)
}
