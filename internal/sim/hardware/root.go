package hardware

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Build makes the machine's file system in the directory root: the kernel's trees, the disks
// (sparse, empty), and the bare directories of an operating system that has not booted yet (SetBoot
// makes the rest). What was in the directory is gone.
func (m Machine) Build(root string, shared *Shared) error {
	if err := os.RemoveAll(root); err != nil {
		return fmt.Errorf("clear machine: %w", err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("build machine: %w", err)
	}
	t := newTree()
	for _, name := range []string{"dev", "etc", "root", "var/lib", "var/log"} {
		t.dir(name)
	}
	m.sysfs(t)
	m.procfs(t)
	if err := t.write(root, shared); err != nil {
		return fmt.Errorf("build machine: %w", err)
	}
	for _, d := range m.Disks {
		if err := makeDisk(d.Path(root), d.Size); err != nil {
			return fmt.Errorf("build machine: %w", err)
		}
	}
	return nil
}

// Path is where the drive's contents are in the machine whose file system is the directory root.
func (d Disk) Path(root string) string { return filepath.Join(root, "dev", d.Name) }

func makeDisk(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(size), file.Close())
}

// SetBoot makes the machine's trees those of a boot: the boot ID is set, and what lives in memory
// only (/run, /tmp) is empty.
func SetBoot(root, bootID string) error {
	for _, name := range []string{"run", "tmp"} {
		dir := filepath.Join(root, name)
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			return fmt.Errorf("boot machine: %w", err)
		}
	}
	path := filepath.Join(root, "proc/sys/kernel/random/boot_id")
	if err := errors.Join(os.WriteFile(path+".new", []byte(bootID+"\n"), 0o444), os.Rename(path+".new", path)); err != nil {
		return fmt.Errorf("boot machine: %w", err)
	}
	return nil
}
