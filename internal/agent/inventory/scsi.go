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

// scsiRequest is struct sg_io_hdr of scsi/sg.h.
type scsiRequest struct {
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
	sgIO         = 0x2285
	sgNone       = -1
	sgFromDevice = -3
)

// scsiCommand sends a command that reads into data, or has none, and returns the status of the
// command and the sense data.
func scsiCommand(device *os.File, command, data []byte) (status byte, sense []byte, err error) {
	sense = make([]byte, 32)
	request := &scsiRequest{
		interfaceID: 'S', direction: sgNone, commandLength: uint8(len(command)), senseLength: uint8(len(sense)),
		command: unsafe.Pointer(&command[0]), sense: unsafe.Pointer(&sense[0]), timeoutMilliseconds: healthTimeoutMs,
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(&command[0])
	pinner.Pin(&sense[0])
	if len(data) > 0 {
		pinner.Pin(&data[0])
		request.direction, request.data, request.dataLength = sgFromDevice, unsafe.Pointer(&data[0]), uint32(len(data))
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), sgIO, uintptr(unsafe.Pointer(request))); errno != 0 {
		return 0, nil, errno
	}
	if request.hostStatus != 0 {
		return 0, nil, errors.New("the controller did not pass the question on")
	}
	return request.status, sense[:min(int(request.senseWritten), len(sense))], nil
}

// Log pages that tell of the health of a drive (SPC-5, section 7.3; SBC-4, section 6.4). A page is
// named by its code, with the code of a subpage above it.
const (
	logSupported   = 0x00
	logWriteErrors = 0x02
	logReadErrors  = 0x03
	logVerify      = 0x05
	logTemperature = 0x0D
	logSolidState  = 0x11
	logBackground  = 0x15
	logPending     = 0x0115
	logExceptions  = 0x2F
)

// scsiHealth asks a drive for its log pages and its list of grown defects.
func scsiHealth(device *os.File, _ *agentv1.BlockDevice) (*agentv1.Health, error) {
	supported, err := logSense(device, logSupported)
	if err != nil {
		return nil, err
	}
	pages := make(map[int][]byte)
	for _, code := range supported[min(4, len(supported)):] {
		switch code {
		case logWriteErrors, logReadErrors, logVerify, logTemperature, logSolidState, logBackground, logExceptions:
			if page, err := logSense(device, int(code)); err == nil {
				pages[int(code)] = page
			}
		}
	}
	if pages[logBackground] != nil {
		pages[logPending], _ = logSense(device, logPending) // not every drive has the subpage
	}
	health, err := parseLogPages(pages)
	if err != nil {
		return nil, err
	}
	health.ReallocatedSectors = grownDefects(device)
	return health, nil
}

// logSense reads a log page with its current values.
func logSense(device *os.File, page int) ([]byte, error) {
	data := make([]byte, 4096)
	command := []byte{0x4D, 0, 0x40 | byte(page), byte(page >> 8), 0, 0, 0, byte(len(data) >> 8), byte(len(data)), 0}
	status, _, err := scsiCommand(device, command, data)
	if err != nil {
		return nil, err
	}
	if status != 0 {
		return nil, errors.New("the drive has no log pages")
	}
	return cutPage(data), nil
}

// cutPage cuts what follows a log page off.
func cutPage(data []byte) []byte {
	return data[:min(len(data), 4+int(binary.BigEndian.Uint16(data[2:])))]
}

// logParameter returns the value of a parameter of a log page; nil when the page does not have it
// in that length.
func logParameter(page []byte, code uint16, length int) []byte {
	for rest := page[min(4, len(page)):]; len(rest) >= 4; {
		size := 4 + int(rest[3])
		if size > len(rest) {
			return nil
		}
		if binary.BigEndian.Uint16(rest) == code {
			if size-4 < length {
				return nil
			}
			return rest[4:size]
		}
		rest = rest[size:]
	}
	return nil
}

// parseLogPages reads what log pages say. The page of exceptions is the one that must be there: it
// has the drive's verdict, of which 5Dh means that it expects to fail.
func parseLogPages(pages map[int][]byte) (*agentv1.Health, error) {
	verdict := logParameter(pages[logExceptions], 0, 2)
	if verdict == nil {
		return nil, errors.New("the drive gives no verdict on itself")
	}
	health := &agentv1.Health{Passed: verdict[0] != 0x5D, PercentageUsed: -1}
	if heat := logParameter(pages[logTemperature], 0, 2); heat != nil && heat[1] != 0xFF {
		health.TemperatureCelsius = int32(heat[1])
	}
	if scan := logParameter(pages[logBackground], 0, 4); scan != nil {
		health.PowerOnHours = int64(binary.BigEndian.Uint32(scan)) / 60
	}
	if wear := logParameter(pages[logSolidState], 1, 4); wear != nil {
		health.PercentageUsed = int32(wear[3])
	}
	if pending := logParameter(pages[logPending], 0, 4); pending != nil {
		health.PendingSectors = int64(binary.BigEndian.Uint32(pending))
	}
	for _, page := range []int{logReadErrors, logWriteErrors, logVerify} {
		health.MediaErrors = saturate(health.GetMediaErrors(), bigEndian(logParameter(pages[page], 6, 1)))
	}
	return health, nil
}

// bigEndian reads a counter of any length; what would not fit stays at the largest number.
func bigEndian(data []byte) int64 {
	n := int64(0)
	for _, b := range data {
		if n >= 1<<55 {
			return 1<<63 - 1
		}
		n = n<<8 | int64(b)
	}
	return n
}

func saturate(a, b int64) int64 {
	if a > 1<<63-1-b {
		return 1<<63 - 1
	}
	return a + b
}

// grownDefects returns how many places of the medium were replaced since the drive was made
// (READ DEFECT DATA (12), SBC-4, section 5.21); 0 when the drive does not tell.
func grownDefects(device *os.File) int64 {
	data := make([]byte, 8) // the header tells how long the list is
	command := []byte{0xB7, 0x08, 0, 0, 0, 0, 0, 0, 0, byte(len(data)), 0, 0}
	if status, sense, err := scsiCommand(device, command, data); err != nil || status != 0 && !defectListFollows(sense) {
		return 0
	}
	return parseDefectHeader(data)
}

// defectListFollows tells that a drive gave a list in another form than was asked for, or less of
// it than there is: recovered error.
func defectListFollows(sense []byte) bool {
	switch {
	case len(sense) >= 2 && sense[0]&0x7F == 0x72:
		return sense[1]&0x0F == 1
	case len(sense) >= 3 && sense[0]&0x7F == 0x70:
		return sense[2]&0x0F == 1
	}
	return false
}

// parseDefectHeader counts the descriptors, which have four bytes for short addresses, and eight in
// all other forms.
func parseDefectHeader(header []byte) int64 {
	if header[1]&0x08 == 0 { // the list is not that of grown defects
		return 0
	}
	size := int64(8)
	if header[1]&0x07 == 0 {
		size = 4
	}
	return int64(binary.BigEndian.Uint32(header[4:])) / size
}
