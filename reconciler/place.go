package reconciler

import (
	"net"
	"net/netip"
	"sync"
)

// places counts the connections that are open, in all and by where they come from.
type places struct {
	total, each int

	mu    sync.Mutex
	taken int
	by    map[netip.Prefix]int
}

// enter takes a place for a connection. It reports false where none is left, for anybody or for
// this source. Whoever has one gives it back by leave.
func (p *places) enter(from netip.Prefix) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.total || p.by[from] >= p.each {
		return false
	}
	p.taken++
	p.by[from]++
	return true
}

func (p *places) leave(from netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.by[from]--; p.by[from] == 0 {
		delete(p.by, from)
	}
}

// sourceOf is an IPv4 address, or the /64 of an IPv6 address: whoever has one address of it has
// all.
func sourceOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits) // the zero Prefix for the zero Addr
	return prefix
}
