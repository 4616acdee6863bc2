package inventory

import (
	"bytes"
	"net"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// permanentAddress is struct ethtool_perm_addr of linux/ethtool.h.
type permanentAddress struct {
	command, size uint32
	data          [32]byte
}

// interfaceRequest is struct ifreq of linux/if.h with a pointer.
type interfaceRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// askDriver asks the driver of an interface for the version of its firmware and for the address
// that it was made with. A driver that does not know is no fault.
func askDriver(nic *agentv1.NetworkInterface) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(socket) }()
	if info, err := unix.IoctlGetEthtoolDrvinfo(socket, nic.GetName()); err == nil {
		nic.Firmware = firmwareVersion(info.Fw_version[:])
	}
	if nic.GetPermanentMac() != "" || len(nic.GetName()) >= unix.IFNAMSIZ {
		return
	}
	address := &permanentAddress{command: unix.ETHTOOL_GPERMADDR, size: 32}
	request := new(interfaceRequest)
	copy(request.name[:], nic.GetName())
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(address)
	request.data = unsafe.Pointer(address)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(request))); errno == 0 {
		nic.PermanentMac = hardwareAddress(address.data[:min(address.size, uint32(len(address.data)))])
	}
}

// firmwareVersion reads a string that ends with a zero byte; "N/A" is what some drivers have for
// none.
func firmwareVersion(text []byte) string {
	text, _, _ = bytes.Cut(text, []byte{0})
	if version := clean(string(text)); version != "N/A" {
		return version
	}
	return ""
}

// hardwareAddress writes an address as the kernel does; zeros are none.
func hardwareAddress(address []byte) string {
	if len(bytes.Trim(address, "\x00")) == 0 {
		return ""
	}
	return net.HardwareAddr(address).String()
}
