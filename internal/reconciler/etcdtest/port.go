package etcdtest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// port is a TCP port on loopback that nobody else gets, also while its member is down. A socket is
// bound to it that does not listen. Members bind the same port beside it, by SO_REUSEPORT, which
// only processes of one user can.
type port struct {
	address string
	socket  int
}

// keepPort takes a port that is free.
func keepPort() (_ *port, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("keep a port: %w", err), unix.Close(fd))
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	return &port{address: fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port), socket: fd}, nil
}

func (p *port) close() { _ = unix.Close(p.socket) }
