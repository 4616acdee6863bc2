package server

import (
	"net"
	"net/netip"
	"sync"
)

// Limit bounds the connections that are open at one time.
type Limit struct {
	// Total connections; zero: no limit.
	Total int
	// PerAddress is for one remote IP address; zero: no limit.
	PerAddress int
}

// LimitConnections wraps a listener. It closes a connection above a limit as soon as it is
// accepted, so that nobody within the limits waits for it.
func LimitConnections(ln net.Listener, limit Limit) net.Listener {
	if limit.Total <= 0 && limit.PerAddress <= 0 {
		return ln
	}
	return &limitedListener{Listener: ln, limit: limit, perAddress: map[netip.Addr]int{}}
}

type limitedListener struct {
	net.Listener
	limit Limit

	mu         sync.Mutex
	total      int
	perAddress map[netip.Addr]int
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := remoteIP(conn.RemoteAddr())
		if l.acquire(address) {
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { l.release(address) })}, nil
		}
		_ = conn.Close()
	}
}

func (l *limitedListener) acquire(address netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit.Total > 0 && l.total >= l.limit.Total {
		return false
	}
	if l.limit.PerAddress > 0 && l.perAddress[address] >= l.limit.PerAddress {
		return false
	}
	l.total++
	l.perAddress[address]++
	return true
}

func (l *limitedListener) release(address netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.perAddress[address]--; l.perAddress[address] == 0 {
		delete(l.perAddress, address)
	}
}

type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// remoteIP returns the IP address; invalid where there is none, as for a Unix socket.
func remoteIP(addr net.Addr) netip.Addr {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
