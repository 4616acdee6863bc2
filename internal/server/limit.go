package server

import (
	"math"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Limit bounds the connections that are open at one time. Each number may be zero: no limit.
//
// A connection is unadmitted until LimitedConn.Admit is called. Unadmitted connections are few, are
// short, and make room for others.
type Limit struct {
	// Total connections, and those from one source: an IPv4 address, or the /64 of an IPv6 address,
	// because whoever has one address of it has all.
	Total     int
	PerSource int
	// Unadmitted connections among them.
	Unadmitted          int
	UnadmittedPerSource int
	// PerOwner is how many connections may be admitted for one owner (LimitedConn.AdmitFor): a newer
	// one closes the oldest.
	PerOwner int
	// AdmitWithin is how long a connection may be unadmitted.
	AdmitWithin time.Duration
	// UnadmittedBytes is how much is read from a connection while it is unadmitted.
	UnadmittedBytes int64
}

// FitOpenFiles returns the given number of connections (0: no limit), or fewer if this process may
// not have so many files open beside all else that it opens: a thousand, or half of its limit where
// that is less.
func FitOpenFiles(connections int) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return connections
	}
	room := files.Cur - min(1000, files.Cur/2)
	if connections > 0 && uint64(connections) <= room || room > math.MaxInt32 {
		return connections
	}
	return int(room)
}

// spared is for how long the caller of an unadmitted connection may keep this server waiting before
// the connection makes room for another one from the same source.
const spared = time.Second

// LimitConnections wraps a listener, whose connections are *LimitedConn from there on. It decides
// as soon as a connection is accepted, so that nobody within the limits waits for it:
//
//   - Above a limit, the unadmitted connection whose caller has kept this server waiting for the
//     longest makes room, of the source that has the most. So who does nothing is closed first, and
//     who comes from many addresses does not crowd out the others.
//   - Where none can make room, the new connection is closed.
//
// It counts those by refusals, which may be nil.
func LimitConnections(ln net.Listener, limit Limit, refusals *Refusals) net.Listener {
	return &limitedListener{
		Listener: ln, limit: limit, refusals: refusals, started: time.Now(), sources: map[netip.Prefix]*source{},
		waiting: map[*source]struct{}{}, owners: map[string][]*LimitedConn{},
	}
}

type limitedListener struct {
	net.Listener
	limit    Limit
	refusals *Refusals
	started  time.Time

	mu         sync.Mutex
	total      int
	unadmitted int
	sources    map[netip.Prefix]*source
	waiting    map[*source]struct{}      // those with unadmitted connections
	owners     map[string][]*LimitedConn // what was admitted for each; the oldest first
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &LimitedConn{Conn: conn, listener: l}
		victim, ok := l.enter(c, SourceOf(conn.RemoteAddr()))
		if victim != nil {
			victim.refuse(refusedForRoom)
		}
		if ok {
			return c, nil
		}
		c.refuse(refusedNoRoom)
	}
}

// room returns whether there is room for a connection from s, and the one that is to be closed for
// it, where there is none otherwise. The caller holds the lock, as for all below.
func (l *limitedListener) room(s *source) (victim *LimitedConn, ok bool) {
	switch {
	case reached(s.total, l.limit.PerSource) || reached(len(s.unadmitted), l.limit.UnadmittedPerSource):
		victim = l.idlest(s, spared)
	case reached(l.total, l.limit.Total) || reached(l.unadmitted, l.limit.Unadmitted):
		victim = l.yielding(s)
	default:
		return nil, true
	}
	if victim == nil && l.refusals != nil && l.full(s) {
		l.refusals.full.Store(true)
	}
	return victim, victim != nil
}

// full reports whether a caller from s, for whom there is no room, may be one that this server is
// for. So it is where more connections are admitted from there than one owner has, and where nobody
// else would find room either. A source that fills its own share, and has none or one owner, does
// so only to itself.
func (l *limitedListener) full(s *source) bool {
	if s.total-len(s.unadmitted) > l.limit.PerOwner {
		return true
	}
	return (reached(l.total, l.limit.Total) || reached(l.unadmitted, l.limit.Unadmitted)) && l.yielding(&source{}) == nil
}

func reached(n, limit int) bool { return limit > 0 && n >= limit }

// yielding returns the connection that makes room for one from s: of the source that has the most
// unadmitted ones. Where that has more than s would have, it need not have been idle.
func (l *limitedListener) yielding(s *source) *LimitedConn {
	most := s
	for other := range l.waiting {
		if len(other.unadmitted) > len(most.unadmitted) {
			most = other
		}
	}
	if len(most.unadmitted) > len(s.unadmitted)+1 {
		return l.idlest(most, 0)
	}
	return l.idlest(most, spared)
}

// idlest returns the unadmitted connection of s whose caller has kept this server waiting for the
// longest, and for at least so long; nil where there is none.
func (l *limitedListener) idlest(s *source, least time.Duration) (idlest *LimitedConn) {
	now := time.Since(l.started)
	for c := range s.unadmitted {
		if waited := c.waitedUntil(now); waited >= least && c.served.Load() == 0 {
			least, idlest = waited, c
		}
	}
	return idlest
}

// SourceOf returns the source of a connection, as Limit counts them; invalid where there is no IP
// address, as for a Unix socket.
func SourceOf(addr net.Addr) netip.Prefix {
	ip := remoteIP(addr)
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits) // the zero Prefix for the zero Addr
	return prefix
}

// remoteIP returns the IP address; invalid where there is none, as for a Unix socket.
func remoteIP(addr net.Addr) netip.Addr {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
