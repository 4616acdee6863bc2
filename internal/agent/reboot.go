package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/agent/kexec"
)

// rebootKernel restarts the machine at once, as the kernel does it by itself: without asking the
// processes that run, whose system is no longer on the disk.
func rebootKernel(root string) error {
	real := filepath.Clean(root) == "/"
	if real {
		kexec.Sync()
	}
	err := writeTrigger(filepath.Join(root, "proc/sysrq-trigger"))
	if err == nil || !real {
		return err
	}
	if rebootErr := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); rebootErr != nil {
		return errors.Join(err, fmt.Errorf("reboot: %w", rebootErr))
	}
	return nil
}

// writeTrigger asks for an immediate restart (Documentation/admin-guide/sysrq.rst).
func writeTrigger(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString("b")
	return errors.Join(err, file.Close())
}
