package server

import (
	"net/netip"
	"slices"
	"time"
)

// The state of a connection changes in this file alone, under the listener's lock:
//
//	from        to          when                                                     by
//	            unadmitted  it is accepted, and finds room or one that makes room    enter
//	unadmitted  admitted    its caller is known: Admit, AdmitFor, Carrying           admit
//	admitted    unadmitted  its caller is not known, or no longer: Dismiss           dismiss
//	unadmitted  closed      another connection needs its room                        enter
//	unadmitted  closed      its time is up: Limit.AdmitWithin                        late
//	unadmitted  closed      it has sent too much: Limit.UnadmittedBytes              close
//	either      closed      its owner has too many newer ones: Limit.PerOwner        admit
//	either      closed      somebody closes it                                       close
//
// A connection that carries an admitted call while it is dismissed is admitted again at once. One
// that is served does not make room. Both are counters of the connection, and no states: they
// change without the lock.

// source is where connections come from. It is forgotten with the last of them.
type source struct {
	prefix     netip.Prefix
	total      int
	unadmitted map[*LimitedConn]struct{}
}

// enter takes the connection in, and returns the one that is to be closed for it.
func (l *limitedListener) enter(c *LimitedConn, from netip.Prefix) (victim *LimitedConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[from]
	if s == nil {
		s = &source{prefix: from, unadmitted: map[*LimitedConn]struct{}{}}
	}
	victim, ok = l.room(s)
	if !ok {
		return nil, false
	}
	if victim != nil {
		l.remove(victim)
	}
	l.add(c, s)
	return victim, true
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

// dismiss makes the connection one that is as if it had just been accepted.
func (l *limitedListener) dismiss(c *LimitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.open && c.admitted.Load() {
		c.read.Store(0)
		c.waited.Store(0)
		c.waiting.Store(int64(time.Since(l.started)))
		c.admitted.Store(false)
		l.addUnadmitted(c)
	}
}

// late closes the connection if it is still unadmitted when its time is up.
func (l *limitedListener) late(c *LimitedConn) {
	l.mu.Lock()
	due := c.open && !c.admitted.Load()
	if due {
		l.remove(c)
	}
	l.mu.Unlock()
	if due {
		c.refuse(refusedLate)
	}
}

// close takes the connection out, whoever closes it.
func (l *limitedListener) close(c *LimitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c)
}

// The functions below count what the ones above do. Their callers hold the lock.

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
		c.deadline = time.AfterFunc(l.limit.AdmitWithin, func() { l.late(c) })
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
