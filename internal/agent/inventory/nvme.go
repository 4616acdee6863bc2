package inventory

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// nvmeAdminCommand is struct nvme_admin_cmd of linux/nvme_ioctl.h.
type nvmeAdminCommand struct {
	opcode, flags                            uint8
	reserved                                 uint16
	namespace                                uint32
	cdw2, cdw3                               uint32
	metadata, address                        uint64
	metadataLength, dataLength               uint32
	cdw10, cdw11, cdw12, cdw13, cdw14, cdw15 uint32
	timeoutMilliseconds, result              uint32
}

const (
	nvmeIoctlAdmin = 0xC0484E41 // _IOWR('N', 0x41, struct nvme_admin_cmd)
	nvmeGetLogPage = 0x02
	nvmeHealthPage = 0x02
	nvmeHealthSize = 512
)

// nvmeHealth reads the health log of an NVMe drive (NVM Express base specification 2.0, section
// 5.16.1.3).
func nvmeHealth(device *os.File, _ *agentv1.BlockDevice) (*agentv1.Health, error) {
	page := new([nvmeHealthSize]byte)
	command := &nvmeAdminCommand{
		opcode: nvmeGetLogPage, namespace: 0xFFFFFFFF,
		address: uint64(uintptr(unsafe.Pointer(page))), dataLength: nvmeHealthSize,
		cdw10:               nvmeHealthPage | (nvmeHealthSize/4-1)<<16,
		timeoutMilliseconds: healthTimeoutMs,
	}
	var pinner runtime.Pinner
	pinner.Pin(page)
	defer pinner.Unpin()
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), nvmeIoctlAdmin, uintptr(unsafe.Pointer(command)))
	if errno != 0 {
		return nil, errno
	}
	if status != 0 {
		return nil, errors.New("the drive refuses to give its health log")
	}
	return parseNVMeHealth(page[:])
}

// parseNVMeHealth reads the health log page.
func parseNVMeHealth(page []byte) (*agentv1.Health, error) {
	if len(page) < nvmeHealthSize {
		return nil, errors.New("the health log is cut short")
	}
	health := &agentv1.Health{
		Passed:         page[0] == 0,
		PercentageUsed: int32(page[5]),
		PowerOnHours:   counter(page[128:]),
		MediaErrors:    counter(page[160:]),
	}
	if kelvin := binary.LittleEndian.Uint16(page[1:]); kelvin > 0 {
		health.TemperatureCelsius = int32(kelvin) - 273
	}
	return health, nil
}

// counter reads the lower half of a 128-bit counter; what would not fit stays at the largest
// number.
func counter(data []byte) int64 {
	return int64(min(binary.LittleEndian.Uint64(data), 1<<63-1))
}
