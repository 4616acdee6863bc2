package inventory

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// healthTimeoutMs is how long a drive may take to answer.
const healthTimeoutMs = 5000

// askHealth asks a drive for its health, if its kind has a way of saying. It changes nothing of the
// drive.
func askHealth(disk *agentv1.BlockDevice) error {
	var ask func(device *os.File, disk *agentv1.BlockDevice) (*agentv1.Health, error)
	switch disk.GetProtocol() {
	case "nvme":
		ask = nvmeHealth
	case "sata":
		ask = ataHealth
	case "sas", "fc":
		ask = scsiHealth
	default:
		return nil
	}
	device, err := openDrive(disk)
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }()
	disk.Health, err = ask(device, disk)
	return err
}

func openDrive(disk *agentv1.BlockDevice) (*os.File, error) {
	return os.OpenFile(filepath.Join("/dev", strings.ReplaceAll(disk.GetName(), "!", "/")), os.O_RDONLY|unix.O_NONBLOCK, 0)
}
