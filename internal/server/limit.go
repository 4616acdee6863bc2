package server

import (
	"math"
	"net"
	"net/netip"
	"slices"
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

// source is where connections come from. It is forgotten with the last of them.
type source struct {
	prefix     netip.Prefix
	total      int
	unadmitted map[*LimitedConn]struct{}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &LimitedConn{Conn: conn, listener: l}
		victim, ok := l.enter(c, sourceOf(conn.RemoteAddr()))
		if victim != nil {
			victim.refuse(RefusedForRoom)
		}
		if ok {
			return c, nil
		}
		c.refuse(RefusedNoRoom)
	}
}

// enter takes the connection in, and returns the one that is to be closed for it.
func (l *limitedListener) enter(c *LimitedConn, from netip.Prefix) (victim *LimitedConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[from]
	if s == nil {
		s = &source{prefix: from, unadmitted: map[*LimitedConn]struct{}{}}
	}
	switch {
	case reached(s.total, l.limit.PerSource) || reached(len(s.unadmitted), l.limit.UnadmittedPerSource):
		victim = l.idlest(s, spared)
	case reached(l.total, l.limit.Total) || reached(l.unadmitted, l.limit.Unadmitted):
		victim = l.yielding(s)
	default:
		l.add(c, s)
		return nil, true
	}
	if victim == nil {
		if l.refusals != nil && l.full(s) {
			l.refusals.full.Store(true)
		}
		return nil, false
	}
	l.remove(victim)
	l.add(c, s)
	return victim, true
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

// add and remove keep the books. The caller holds the lock.
func (l *limitedListener) add(c *LimitedConn, s *source) {
	l.sources[s.prefix] = s
	c.source, c.open = s, true
	l.total++
	s.total++
	l.addUnadmitted(c)
}

func (l *limitedListener) remove(c *LimitedConn) {
	if !c.open {
		return
	}
	c.open = false
	if !c.admitted.Load() {
		l.removeUnadmitted(c)
	}
	if c.owner != "" {
		l.disown(c)
	}
	l.total--
	if c.source.total--; c.source.total == 0 {
		delete(l.sources, c.source.prefix)
	}
}

// admit admits the connection for an owner, and returns the one that is to be closed for it. The
// first owner of a connection has it until it is closed, also while it is not admitted any more:
// what it has sent may still be held.
func (l *limitedListener) admit(c *LimitedConn, owner string) (victim *LimitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.open || c.admitted.Load() {
		return nil
	}
	l.removeUnadmitted(c)
	c.admitted.Store(true)
	if owner == "" || c.owner != "" {
		return nil
	}
	if owned := l.owners[owner]; reached(len(owned), l.limit.PerOwner) {
		victim = owned[0]
		l.remove(victim)
	}
	c.owner = owner
	l.owners[owner] = append(l.owners[owner], c)
	return victim
}

func (l *limitedListener) disown(c *LimitedConn) {
	left := slices.DeleteFunc(l.owners[c.owner], func(other *LimitedConn) bool { return other == c })
	if l.owners[c.owner] = left; len(left) == 0 {
		delete(l.owners, c.owner)
	}
}

func (l *limitedListener) addUnadmitted(c *LimitedConn) {
	l.unadmitted++
	c.source.unadmitted[c] = struct{}{}
	l.waiting[c.source] = struct{}{}
	if l.limit.AdmitWithin > 0 {
		c.deadline = time.AfterFunc(l.limit.AdmitWithin, func() { c.late() })
	}
}

func (l *limitedListener) removeUnadmitted(c *LimitedConn) {
	l.unadmitted--
	if delete(c.source.unadmitted, c); len(c.source.unadmitted) == 0 {
		delete(l.waiting, c.source)
	}
	if c.deadline != nil {
		c.deadline.Stop()
	}
}

// sourceOf returns the source of a connection; invalid where there is no IP address, as for a Unix
// socket.
func sourceOf(addr net.Addr) netip.Prefix {
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
