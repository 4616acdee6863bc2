package kexec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// installedFS are the file systems that an installed system is looked for in. Their modules are
// carried where the old system has them. The options keep a mount from writing.
var installedFS = []struct{ name, options string }{{"ext4", "noload"}, {"xfs", "norecovery"}}

// configFiles are where GRUB's configuration is, on a root file system or on one for /boot.
var configFiles = []string{"boot/grub/grub.cfg", "boot/grub2/grub.cfg", "grub/grub.cfg", "grub2/grub.cfg"}

// maxConfig bounds a configuration, in bytes.
const maxConfig = mebibyte

// LoadInstalled gives the kernel of the system on a disk to the running one, so that Start starts
// it: the first entry of the GRUB configuration on one of the disk's partitions. The partitions are
// mounted read-only meanwhile. It needs to be root of a system that may mount what it likes.
func LoadInstalled(disk string) error {
	if err := handsACPI("/"); err != nil {
		return err
	}
	name := filepath.Base(disk)
	partitions, err := filepath.Glob(filepath.Join("/sys/class/block", name, "*", "partition"))
	if err != nil || len(partitions) == 0 {
		return fmt.Errorf("%s has no partitions", disk)
	}
	dir, err := os.MkdirTemp("", "installed-")
	if err != nil {
		return fmt.Errorf("make a directory to mount at: %w", err)
	}
	defer func() { _ = os.Remove(dir) }()
	slices.Sort(partitions)
	for _, partition := range partitions {
		device := filepath.Base(filepath.Dir(partition))
		if !mount("/dev/"+device, dir) {
			continue
		}
		found, err := loadFrom(dir)
		err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
		if err != nil {
			return fmt.Errorf("%s: %w", device, err)
		}
		if found {
			return nil
		}
	}
	return fmt.Errorf("no partition of %s has a configuration of GRUB on ext4 or xfs", disk)
}

// handsACPI fails where the next kernel would not find the tables of ACPI. One in memory that was
// handed nothing of EFI hands nothing on but, before Linux 6.6, its boot parameters. EFI firmware
// has no other place for them.
func handsACPI(root string) error {
	_, byEFI := os.Stat(filepath.Join(root, "ironherd/efi")) // install.EFIMark
	_, known := os.Stat(filepath.Join(root, "sys/firmware/efi"))
	if byEFI == nil && known != nil && !toldACPI(root) {
		return errors.New("the kernel in memory makes no use of EFI, so the installed system would not find the tables of ACPI")
	}
	return nil
}

// mount mounts a partition if it is one of the file systems.
func mount(device, dir string) bool {
	const flags = unix.MS_RDONLY | unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC
	for _, fs := range installedFS {
		if unix.Mount(device, dir, fs.name, flags, fs.options) == nil {
			return true
		}
	}
	return false
}

// loadFrom loads what the configuration below dir names, if there is one.
func loadFrom(dir string) (found bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, err
	}
	defer func() { _ = root.Close() }()
	for _, name := range configFiles {
		config, err := readWhole(root, name, maxConfig)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return true, err
		}
		e, err := firstEntry(config)
		if err != nil {
			return true, fmt.Errorf("%s: %w", name, err)
		}
		return true, e.load(root)
	}
	return false, nil
}

func readWhole(root *os.Root, name string, most int64) ([]byte, error) {
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, most))
}

// load gives kernel and initrd to the running kernel.
func (e entry) load(root *os.Root) error {
	kernel, err := root.Open(strings.TrimPrefix(e.Kernel, "/"))
	if err != nil {
		return fmt.Errorf("open its kernel: %w", err)
	}
	defer func() { _ = kernel.Close() }()
	if len(e.Initrd) == 0 {
		return fileLoad(kernel, nil, e.commandLine(), e.Kernel)
	}
	initrd, err := newMemoryFile("initrd")
	if err != nil {
		return err
	}
	defer func() { _ = initrd.Close() }()
	if err := e.join(initrd, root); err != nil {
		return err
	}
	return fileLoad(kernel, initrd, e.commandLine(), e.Kernel)
}

// join writes the initrds one after the other, each at a multiple of four bytes, as boot loaders
// lay them out (Documentation/driver-api/early-userspace/buffer-format.rst).
func (e entry) join(w io.Writer, root *os.Root) error {
	for _, name := range e.Initrd {
		file, err := root.Open(strings.TrimPrefix(name, "/"))
		if err != nil {
			return fmt.Errorf("open its initrd: %w", err)
		}
		n, err := io.Copy(w, file)
		_ = file.Close() // only read
		if err == nil {
			_, err = w.Write(make([]byte, -n&3))
		}
		if err != nil {
			return fmt.Errorf("read its initrd: %w", err)
		}
	}
	return nil
}

// Start starts the kernel that LoadInstalled has loaded. It returns only when that fails.
func Start() error {
	Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_KEXEC); err != nil {
		return fmt.Errorf("start the loaded kernel: %w", err)
	}
	return errors.New("start the loaded kernel: the kernel went on")
}
