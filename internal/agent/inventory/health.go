package inventory

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// health asks a drive for what it says of itself; nil when it has no way of saying.
func (p *probe) health(name, protocol string) *agentv1.Health {
	var ask func(device *os.File) (*agentv1.Health, error)
	switch protocol {
	case "nvme":
		ask = nvmeHealth
	case "sata":
		ask = ataHealth
	default:
		return nil
	}
	device, err := os.OpenFile(filepath.Join("/dev", strings.ReplaceAll(name, "!", "/")), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		p.warn("the health of %s cannot be read: %s", name, reason(err))
		return nil
	}
	defer func() { _ = device.Close() }()
	health, err := ask(device)
	if err != nil {
		p.warn("the health of %s cannot be read: %s", name, err)
		return nil
	}
	return health
}

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
	nvmeIoctlAdmin  = 0xC0484E41 // _IOWR('N', 0x41, struct nvme_admin_cmd)
	nvmeGetLogPage  = 0x02
	nvmeHealthPage  = 0x02
	nvmeHealthSize  = 512
	healthTimeoutMs = 5000
)

// nvmeHealth reads the health log of an NVMe drive (NVM Express base specification 2.0, section
// 5.16.1.3).
func nvmeHealth(device *os.File) (*agentv1.Health, error) {
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

// scsiCommand is struct sg_io_hdr of scsi/sg.h.
type scsiCommand struct {
	interfaceID, direction              int32
	commandLength, senseLength          uint8
	vectors                             uint16
	dataLength                          uint32
	data, command, sense                unsafe.Pointer
	timeoutMilliseconds, flags          uint32
	packID                              int32
	user                                unsafe.Pointer
	status, maskedStatus, messageStatus uint8
	senseWritten                        uint8
	hostStatus, driverStatus            uint16
	residual                            int32
	duration, info                      uint32
}

const (
	sgIO          = 0x2285
	sgNone        = -1
	sgFromDevice  = -3
	smartDataSize = 512
)

// ataHealth asks a drive behind ATA for its SMART data and its own verdict (ACS-3, sections 7.48.5
// and 7.48.8), through the ATA pass-through of SCSI (SAT-3, section 12.2.2.3).
func ataHealth(device *os.File) (*agentv1.Health, error) {
	data := new([smartDataSize]byte)
	if _, err := ataSmart(device, 0xD0, data); err != nil {
		return nil, err
	}
	health, err := parseSmartData(data[:])
	if err != nil {
		return nil, err
	}
	sense, err := ataSmart(device, 0xDA, nil)
	if err != nil {
		return nil, err
	}
	health.Passed, err = parseSmartStatus(sense)
	return health, err
}

// ataSmart sends one SMART command, with data to be read or without, and returns the sense data.
func ataSmart(device *os.File, feature byte, data *[smartDataSize]byte) ([]byte, error) {
	cdb, sense := new([16]byte), new([32]byte)
	*cdb = [16]byte{0: 0x85, 1: 3 << 1, 2: 0x20, 4: feature, 10: 0x4F, 12: 0xC2, 14: 0xB0}
	command := &scsiCommand{
		interfaceID: 'S', direction: sgNone, commandLength: uint8(len(cdb)), senseLength: uint8(len(sense)),
		command: unsafe.Pointer(cdb), sense: unsafe.Pointer(sense), timeoutMilliseconds: healthTimeoutMs,
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(cdb)
	pinner.Pin(sense)
	if data != nil {
		pinner.Pin(data)
		cdb[1], cdb[2], cdb[6] = 4<<1, 0x0E, 1
		command.direction, command.data, command.dataLength = sgFromDevice, unsafe.Pointer(data), smartDataSize
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), sgIO, uintptr(unsafe.Pointer(command)))
	if errno != 0 {
		return nil, errno
	}
	if command.hostStatus != 0 || (data != nil && command.status != 0) {
		return nil, errors.New("the drive does not know SMART")
	}
	return sense[:min(int(command.senseWritten), len(sense))], nil
}

// parseSmartStatus returns the drive's verdict, which SMART RETURN STATUS leaves in the LBA
// registers.
func parseSmartStatus(sense []byte) (passed bool, err error) {
	var middle, high byte
	switch {
	case len(sense) >= 22 && sense[0]&0x7F == 0x72 && sense[8] == 0x09: // descriptor format
		middle, high = sense[17], sense[19]
	case len(sense) >= 12 && sense[0]&0x7F == 0x70: // fixed format
		middle, high = sense[10], sense[11]
	default:
		return false, errors.New("the drive's verdict cannot be understood")
	}
	switch {
	case middle == 0x4F && high == 0xC2:
		return true, nil
	case middle == 0xF4 && high == 0x2C:
		return false, nil
	}
	return false, errors.New("the drive's verdict cannot be understood")
}

// parseSmartData reads the attribute table: 30 entries of 12 bytes from offset 2, with the number
// of the attribute first and six raw bytes from the sixth on.
func parseSmartData(data []byte) (*agentv1.Health, error) {
	if len(data) < smartDataSize {
		return nil, errors.New("the SMART data is cut short")
	}
	health := &agentv1.Health{PercentageUsed: -1}
	for i := range 30 {
		entry := data[2+12*i:][:12]
		low, wide := int32(entry[5]), int64(binary.LittleEndian.Uint32(entry[5:]))
		switch entry[0] {
		case 5:
			health.ReallocatedSectors = wide
		case 9:
			health.PowerOnHours = wide & 0xFFFFFF // some drives keep minutes above
		case 187:
			health.MediaErrors = wide & 0xFFFF
		case 190:
			if health.GetTemperatureCelsius() == 0 {
				health.TemperatureCelsius = low
			}
		case 194:
			health.TemperatureCelsius = low
		}
	}
	return health, nil
}
