package install

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"golang.org/x/sys/unix"
)

const (
	efiDir    = "sys/firmware/efi/efivars"
	efiGlobal = "8be4df61-93ca-11d2-aa0d-00e098032b8c" // EFI_GLOBAL_VARIABLE
	// efiAttributes: kept without power, readable before and after the start of the operating system.
	efiAttributes = 7
	// efiActive marks an entry that the firmware may boot.
	efiActive = 1
	// efiCategory has the bits of an entry's second byte that are 0 where it boots a system.
	efiCategory = 0x1f
	// efiName is how our boot entry is called. It is the same after each install, which is how the
	// next install finds it.
	efiName = "Ironherd installed system"
	// immutable is FS_IMMUTABLE_FL of linux/fs.h.
	immutable = 0x10
)

// efiLoaders are the paths that firmware boots from a disk without having been told, by
// architecture. An image that boots by EFI on any machine of that architecture has its loader
// there. Nothing here reads the file system, so it is not known that this image has one.
var efiLoaders = map[string]string{"amd64": `\EFI\BOOT\BOOTX64.EFI`, "arm64": `\EFI\BOOT\BOOTAA64.EFI`}

// efiVariables are the firmware's variables, as files below a root.
type efiVariables struct{ dir string }

// bootByEFI makes the firmware boot the loader on that partition: an entry of ours, new or changed,
// in the order before every other one that boots no network. Entries of others are left as they
// are, so that the machine goes on to boot them when ours fails. It says whether there is an entry;
// on a machine that was not booted by EFI there is none. An error beside an entry warns of what
// comes before it.
//
// Network boot that comes first stays so: some providers decide by it, at each restart, whether a
// machine boots its disk or a rescue system.
func bootByEFI(root string, esp partition) (entry bool, err error) {
	loader := efiLoaders[runtime.GOARCH]
	if !bootedByEFI(root) || esp.number == 0 || loader == "" {
		return false, nil
	}
	v := efiVariables{filepath.Join(root, efiDir)}
	if _, err := os.Stat(v.dir); errors.Is(err, fs.ErrNotExist) {
		return false, errors.New("no boot entry was made, because the kernel cannot reach the firmware's variables: the firmware decides by itself which disk it boots")
	}
	networkFirst, err := v.put(loadOption(esp, loader))
	if err != nil {
		return false, fmt.Errorf("make a boot entry: %w", err)
	}
	if networkFirst {
		return true, errors.New("the firmware boots from the network first, and this order is left as it was: " +
			"the installed system comes up where the network has nothing to boot, or leads to the disk")
	}
	return true, nil
}

// put makes the option our entry, and says whether network boot comes before it.
func (v efiVariables) put(option []byte) (networkFirst bool, err error) {
	number, err := v.number()
	if err != nil {
		return false, err
	}
	if err := v.write(fmt.Sprintf("Boot%04X", number), option); err != nil {
		return false, err
	}
	data, err := v.read("BootOrder")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	var order []uint16
	at := 0xffff // an entry of ours that somebody has put before network boot stays before it
	for i := 0; i+1 < len(data); i += 2 {
		if n := binary.LittleEndian.Uint16(data[i:]); n != number {
			order = append(order, n)
		} else {
			at = min(at, len(order))
		}
	}
	place := 0
	for i, n := range order[:min(at, len(order))] {
		network, boots := v.bootsNetwork(n)
		if network {
			place, networkFirst = i+1, networkFirst || boots
		} else if boots {
			break
		}
	}
	var encoded []byte
	for _, n := range append(append(order[:place:place], number), order[place:]...) {
		encoded = binary.LittleEndian.AppendUint16(encoded, n)
	}
	if bytes.Equal(encoded, data) {
		return networkFirst, nil
	}
	return networkFirst, v.write("BootOrder", encoded)
}

// bootsNetwork says whether an entry boots what a server in the network has for the machine, by PXE
// or HTTP, and whether the firmware boots it by itself: it is there, active and no application such
// as the firmware's set-up. A disk that is in the network is a disk. Of some firmware (Dell's)
// nothing but the name of an entry says that.
func (v efiVariables) bootsNetwork(number uint16) (network, boots bool) {
	option, err := v.read(fmt.Sprintf("Boot%04X", number))
	if err != nil || len(option) < 6 {
		return false, false
	}
	boots = option[0]&efiActive != 0 && option[1]&efiCategory == 0
	length, path := int(binary.LittleEndian.Uint16(option[4:])), option[6:]
	for named := false; len(path) >= 2 && !named; path = path[2:] {
		named = path[0]|path[1] == 0
	}
	name, device := option[6:len(option)-len(path)], false
	path = path[:min(length, len(path))]
	for len(path) >= 4 {
		const (
			messaging, media     = 3, 4
			mac, ipv4, ipv6, uri = 11, 12, 13, 24
			iSCSI, nvmeOverWire  = 19, 34
		)
		switch kind, of := path[0], path[1]; {
		case kind == media || kind == messaging && (of == iSCSI || of == nvmeOverWire):
			return false, boots
		case kind == messaging && (of == mac || of == ipv4 || of == ipv6 || of == uri):
			network = true
		case kind == messaging: // SATA, NVMe, USB and the like, whatever its name
			device = true
		}
		path = path[min(len(path), max(4, int(binary.LittleEndian.Uint16(path[2:])))):]
	}
	says := func(word string) bool { return bytes.Contains(name, utf16Text(word)[:2*len(word)]) }
	return network || !device && (says("PXE") || says("HTTP")), boots
}

// number returns the number of our entry, else the first that is free.
func (v efiVariables) number() (uint16, error) {
	files, err := os.ReadDir(v.dir)
	if err != nil {
		return 0, err
	}
	var used []uint16
	for _, file := range files {
		name, ok := strings.CutSuffix(file.Name(), "-"+efiGlobal)
		digits, isEntry := strings.CutPrefix(name, "Boot")
		if !ok || !isEntry || len(digits) != 4 {
			continue
		}
		parsed, err := strconv.ParseUint(digits, 16, 16)
		if err != nil {
			continue
		}
		n := uint16(parsed)
		if data, err := v.read(name); err == nil && describes(data, efiName) {
			return n, nil
		}
		used = append(used, n)
	}
	for n := range uint16(0xffff) {
		if !slices.Contains(used, n) {
			return n, nil
		}
	}
	return 0, errors.New("the firmware has no free number for a boot entry")
}

// describes says whether a load option has that description.
func describes(option []byte, name string) bool {
	text := utf16Text(name)
	return len(option) >= 6+len(text) && bytes.Equal(option[6:6+len(text)], text)
}

// read returns a variable of the firmware's own, without its attributes.
func (v efiVariables) read(name string) ([]byte, error) {
	data, err := os.ReadFile(v.path(name))
	if err == nil && len(data) < 4 {
		err = fmt.Errorf("the firmware's variable %s makes no sense", name)
	}
	if err != nil {
		return nil, err
	}
	return data[4:], nil
}

// write sets a variable. The kernel keeps people from removing variables by an attribute of their
// files, and takes a value only in one piece.
func (v efiVariables) write(name string, value []byte) error {
	path := v.path(name)
	if err := makeMutable(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set the firmware's variable %s: %w", name, err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("set the firmware's variable %s: %w", name, err)
	}
	_, err = file.Write(append([]byte{efiAttributes, 0, 0, 0}, value...))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("set the firmware's variable %s: %w", name, err)
	}
	return nil
}

func (v efiVariables) path(name string) string {
	return filepath.Join(v.dir, name+"-"+efiGlobal)
}

// makeMutable takes the immutable attribute off a file. A file system without attributes has no
// such files.
func makeMutable(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) || err == nil && flags&immutable == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags&^immutable)
}

// loadOption is a boot entry: the UEFI specification, sections 3.1.3 and 10.3.
func loadOption(esp partition, loader string) []byte {
	disk := binary.LittleEndian.AppendUint16([]byte{4, 1}, 42) // a hard drive
	disk = binary.LittleEndian.AppendUint32(disk, uint32(esp.number))
	disk = binary.LittleEndian.AppendUint64(disk, esp.first)
	disk = binary.LittleEndian.AppendUint64(disk, esp.last-esp.first+1)
	disk = append(disk, esp.id[:]...)
	if esp.mbr {
		disk = append(disk, 1, 1) // an MBR, and its signature
	} else {
		disk = append(disk, 2, 2) // a GUID partition table, and a GUID as its signature
	}
	text := utf16Text(loader)
	file := binary.LittleEndian.AppendUint16([]byte{4, 4}, uint16(4+len(text)))
	file = append(file, text...)
	path := append(append(disk, file...), 0x7f, 0xff, 4, 0)

	option := binary.LittleEndian.AppendUint32(nil, efiActive)
	option = binary.LittleEndian.AppendUint16(option, uint16(len(path)))
	option = append(option, utf16Text(efiName)...)
	return append(option, path...)
}

// utf16Text is a text as firmware wants it, with its terminating zero.
func utf16Text(text string) []byte {
	var b []byte
	for _, unit := range utf16.Encode([]rune(text + "\x00")) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return b
}
