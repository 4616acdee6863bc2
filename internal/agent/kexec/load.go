package kexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// File is a file of the system in memory.
type File struct {
	// Path is absolute.
	Path string
	Mode uint64
	Data []byte
}

// Load builds the file system in memory around this executable and the files, and gives it to the
// kernel. The executable becomes the first process, as /init. Nothing has changed when Load fails.
func (p *Plan) Load(files []File) error {
	image, err := os.Open(p.path(p.Image))
	if err != nil {
		return fmt.Errorf("open the kernel's image: %w", err)
	}
	defer func() { _ = image.Close() }()
	memory, err := newMemoryFile("initramfs")
	if err != nil {
		return err
	}
	defer func() { _ = memory.Close() }()
	if err := p.Build(memory, files); err != nil {
		return err
	}
	return fileLoad(image, memory, p.CommandLine, p.Image)
}

// newMemoryFile returns a file in memory.
func newMemoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("ironherd-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// fileLoad gives a kernel and its initrd, which may be nil, to the running kernel. The name is the
// kernel's, for errors.
func fileLoad(kernel, initrd *os.File, commandLine, name string) error {
	fd, flags := -1, unix.KEXEC_FILE_NO_INITRAMFS
	if initrd != nil {
		fd, flags = int(initrd.Fd()), 0
		if _, err := initrd.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("read the file system again: %w", err)
		}
	}
	err := unix.KexecFileLoad(int(kernel.Fd()), fd, commandLine, flags)
	switch {
	case errors.Is(err, unix.EKEYREJECTED) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOKEY) || errors.Is(err, unix.EBADMSG):
		return fmt.Errorf("the running kernel does not trust the signature of %s: %w", name, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("the kernel does not allow kexec here: %w", err)
	case errors.Is(err, unix.ENOSYS):
		return errors.New("the kernel was built without kexec_file_load")
	case err != nil:
		return fmt.Errorf("load the kernel %s: %w", name, err)
	}
	return nil
}

// Unload takes back what Load has given to the kernel.
func Unload() error { return unix.KexecFileLoad(-1, -1, "", unix.KEXEC_FILE_UNLOAD) }

// Build writes the file system.
func (p *Plan) Build(w io.Writer, files []File) error {
	b := newArchive(w)
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run", "/tmp", "/etc", "/var/lib", "/var/log", "/root"} {
		b.directory(dir)
	}
	// The kernel opens it before anything is mounted.
	b.record("dev/console", typeCharacter|0o600, 5, 1, nil)
	// Where it cannot, as with a console whose driver is a module, Go's runtime opens this in its
	// place before main, and ends the program where there is none.
	b.record("dev/null", typeCharacter|0o666, 1, 3, nil)
	executable, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("read the agent's executable: %w", err)
	}
	b.file(File{Path: "/init", Mode: 0o755, Data: executable})
	for _, m := range p.Modules {
		data, err := readFile(filepath.Join(p.path("/lib/modules/"+p.Release), m.Path))
		if err != nil {
			return fmt.Errorf("read the module %s: %w", m.Name, err)
		}
		b.file(File{Path: m.Target(), Mode: 0o600, Data: data})
	}
	for _, name := range p.Firmware {
		data, err := readFile(p.firmwarePath(name))
		if err != nil {
			return fmt.Errorf("read the firmware %s: %w", name, err)
		}
		b.file(File{Path: "/lib/firmware/" + name, Mode: 0o600, Data: data})
	}
	for _, file := range files {
		b.file(file)
	}
	if err := b.close(); err != nil {
		return fmt.Errorf("write the file system in memory: %w", err)
	}
	return nil
}

const (
	// syncWait is how long the kernel may take to write what is to be written, and quietWait how long
	// it may take to make the file systems read-only.
	syncWait  = time.Minute
	quietWait = 5 * time.Second
)

// ErrReadOnly says that a jump failed after it had made the file systems read-only.
var ErrReadOnly = errors.New("the file systems are read-only now")

// Jump starts the loaded kernel. It first writes what is to be written and mounts every file
// system read-only, as the kernel does in an emergency, so that the old system finds its disks in
// order when it is booted again. It does not wait for ever for a disk that hangs. An error means
// that the machine still runs, with read-only disks where the error is ErrReadOnly. Where no
// kernel is loaded, or ctx ends before the disks are read-only, they are left alone.
func Jump(ctx context.Context) error {
	return jump(ctx, "/", unix.Sync, func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_KEXEC) })
}

// jump is Jump of the host below root.
func jump(ctx context.Context, root string, sync func(), reboot func() error) error {
	loaded, err := os.ReadFile(filepath.Join(root, "sys/kernel/kexec_loaded"))
	switch {
	case err != nil:
		return fmt.Errorf("look whether a kernel is loaded: %w", err)
	case !bytes.HasPrefix(loaded, []byte("1")): // somebody may have unloaded it
		return errors.New("start the loaded kernel: none is loaded any more")
	}
	bounded(ctx.Done(), sync)
	if ctx.Err() != nil { // from here on there is no way back
		return fmt.Errorf("start the loaded kernel: %w", context.Cause(ctx))
	}
	readOnly := os.WriteFile(filepath.Join(root, "proc/sysrq-trigger"), []byte("u"), 0) == nil
	if readOnly {
		deadline := time.Now().Add(quietWait)
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for writable(root) && time.Now().Before(deadline) {
			<-ticker.C
		}
	}
	bounded(nil, sync)
	if err = reboot(); err == nil {
		err = errors.New("the kernel went on")
	}
	if readOnly {
		err = fmt.Errorf("%w; %w", err, ErrReadOnly)
	}
	return fmt.Errorf("start the loaded kernel: %w", err)
}

// writable says whether any file system on a block device is open for writing, by the options of
// the file systems themselves. Btrfs is on one, and has no number of it.
func writable(root string) bool {
	file, err := os.Open(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	mounts, err := mountinfo.GetMountsFromReader(file, nil)
	return err == nil && slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool {
		onDevice := m.Major != 0 || m.FSType == "btrfs"
		return onDevice && slices.Contains(strings.Split(m.VFSOptions, ","), "rw")
	})
}

// Sync has the kernel write what is to be written. A file system that nobody answers for (NFS
// without its server, a disk that hangs) would keep it for ever, so it returns after syncWait at
// the latest.
func Sync() { bounded(nil, unix.Sync) }

// bounded waits for sync, at most syncWait or until ended is closed.
func bounded(ended <-chan struct{}, sync func()) {
	done := make(chan struct{})
	go func() {
		sync()
		close(done)
	}()
	timer := time.NewTimer(syncWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-ended:
	case <-timer.C:
	}
}
