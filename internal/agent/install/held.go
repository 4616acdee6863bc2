package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// refuseHeld is the last fence in front of an installed system: it fails when a disk holds an
// install of this machine that is not older than the one that is asked for. A control plane that
// was restored from a backup does not know what it has installed since. Its state may be restored
// as a whole, so that nothing there can tell; the disk can.
//
// What this running system has written itself, since it was booted, is no obstacle: an attempt that
// ended between its last write and its report is repeated.
func refuseHeld(request *agentv1.InstallRequest, options Options, report *agentv1.InstallReport) error {
	for _, d := range options.Disks {
		held := readHeld(options.Root, d)
		token := held.GetToken()
		if token.GetMachineId() == "" || token.GetMachineId() != options.MachineID || olderInstall(token, request) {
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

// readHeld returns what the first-boot area of a disk says, if the install was finished there: its
// boot sectors are written last. Nil where there is none, or where nothing can be read: what is to
// be written must be opened anyway, and then that is an error.
func readHeld(root string, d *agentv1.BlockDevice) *agentv1.FirstBoot {
	offset := FirstBootOffset(d.GetSizeBytes())
	if unfit(d, nil, 0) != "" || offset < 0 {
		return nil
	}
	file, err := os.OpenFile(filepath.Join(root, devicePath(d.GetName())), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	area := make([]byte, firstBootHeader+maxFirstBoot)
	n, err := file.ReadAt(area, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	first, err := DecodeFirstBoot(area[:n])
	if err != nil {
		return nil
	}
	head := make([]byte, mebibyte)
	if n, err := file.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) || len(bytes.Trim(head[:n], "\x00")) == 0 {
		return nil
	}
	return first
}
