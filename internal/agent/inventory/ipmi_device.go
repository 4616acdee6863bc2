package inventory

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// ipmiPatience is how long a BMC may take for an answer, and ipmiLimit for all of them.
	ipmiPatience = 1500 * time.Millisecond
	ipmiLimit    = 4 * time.Second
)

// Numbers of linux/ipmi.h.
const (
	ipmiSend            = 0x8028690D // IPMICTL_SEND_COMMAND
	ipmiReceive         = 0xC030690B // IPMICTL_RECEIVE_MSG_TRUNC
	ipmiSystemInterface = 0x0C       // IPMI_SYSTEM_INTERFACE_ADDR_TYPE
	ipmiBMCChannel      = 0x0F
	ipmiResponse        = 1 // IPMI_RESPONSE_RECV_TYPE
)

// ipmiMessage is struct ipmi_msg of linux/ipmi.h.
type ipmiMessage struct {
	function, command uint8
	length            uint16
	data              unsafe.Pointer
}

// ipmiRequest is struct ipmi_req.
type ipmiRequest struct {
	address       unsafe.Pointer
	addressLength uint32
	id            int // long in C
	message       ipmiMessage
}

// ipmiReceived is struct ipmi_recv.
type ipmiReceived struct {
	kind          int32
	address       unsafe.Pointer
	addressLength uint32
	id            int // long in C
	message       ipmiMessage
}

// ipmiAddress is struct ipmi_system_interface_addr.
type ipmiAddress struct {
	kind    int32
	channel int16
	lun     uint8
}

var errBMCSilent = errors.New("it does not answer")

// ipmiDevice is the kernel's way to the BMC.
type ipmiDevice struct {
	file *os.File
	// ioctl is that of the file.
	ioctl    func(number uintptr, argument unsafe.Pointer) error
	deadline time.Time
	id       int
}

// openIPMI opens the first BMC of this machine, which has ipmiLimit for all its answers from now
// on. fs.ErrNotExist: the kernel knows of none.
func openIPMI() (*ipmiDevice, error) {
	for _, path := range []string{"/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0"} {
		file, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		call := func(number uintptr, argument unsafe.Pointer) error {
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), number, uintptr(argument)); errno != 0 {
				return errno
			}
			return nil
		}
		return &ipmiDevice{file: file, ioctl: call, deadline: time.Now().Add(ipmiLimit)}, nil
	}
	return nil, fs.ErrNotExist
}

// ask is an ipmiAsk. Every request has data.
func (d *ipmiDevice) ask(function, command byte, data ...byte) ([]byte, error) {
	d.id++
	if err := d.send(function, command, data); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(ipmiPatience)
	if deadline.After(d.deadline) {
		deadline = d.deadline
	}
	for {
		if err := d.wait(deadline); err != nil {
			return nil, err
		}
		received, answer, err := d.receive()
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		if err == nil && received.kind == ipmiResponse && received.id == d.id {
			return answer, nil
		}
	}
}

func (d *ipmiDevice) send(function, command byte, data []byte) error {
	address := &ipmiAddress{kind: ipmiSystemInterface, channel: ipmiBMCChannel}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(address)
	pinner.Pin(&data[0])
	return d.ioctl(ipmiSend, unsafe.Pointer(&ipmiRequest{
		address: unsafe.Pointer(address), addressLength: uint32(unsafe.Sizeof(*address)), id: d.id,
		message: ipmiMessage{function: function, command: command, length: uint16(len(data)), data: unsafe.Pointer(&data[0])},
	}))
}

// wait waits until there is something to receive.
func (d *ipmiDevice) wait(deadline time.Time) error {
	for {
		left := time.Until(deadline).Milliseconds()
		if left <= 0 {
			return errBMCSilent
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(d.file.Fd()), Events: unix.POLLIN}}, int(left))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if err == nil && n > 0 {
			return nil
		}
	}
}

// receive takes what has come, which may be the answer to an earlier request, or no answer.
func (d *ipmiDevice) receive() (*ipmiReceived, []byte, error) {
	address, data := new([64]byte), new([272]byte) // IPMI_MAX_MSG_LENGTH, and more than any address
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(address)
	pinner.Pin(data)
	received := &ipmiReceived{
		address: unsafe.Pointer(address), addressLength: uint32(len(address)),
		message: ipmiMessage{length: uint16(len(data)), data: unsafe.Pointer(data)},
	}
	if err := d.ioctl(ipmiReceive, unsafe.Pointer(received)); err != nil {
		return nil, nil, err
	}
	return received, data[:min(int(received.message.length), len(data))], nil
}
