package server

import (
	"net"
	"sync/atomic"
	"time"
)

// LimitedConn is a connection that LimitConnections has let in. Its methods may be called on nil,
// where they do nothing, and from any goroutine.
type LimitedConn struct {
	net.Conn
	listener *limitedListener

	// The state, which connstate.go alone changes, under the listener's lock.
	admitted atomic.Bool // may be read without the lock; the others may not
	open     bool
	source   *source
	owner    string // for whom it was first admitted; empty: for nobody in particular
	deadline *time.Timer

	// What goes on beside it, at any time and without the lock.
	read    atomic.Int64 // bytes since it became unadmitted
	served  atomic.Int32 // calls that this server works at
	carried atomic.Int32 // admitted ones among them, of HTTP
	resting atomic.Int32 // those that are answered, of which the rest is waited for
	// carriedAt is when the last of those ended, as a duration since the listener started.
	carriedAt atomic.Int64
	// waited is how long this server has waited for the caller, and waiting since when it does now, as
	// a duration since the listener started; zero: it does not.
	waited  atomic.Int64
	waiting atomic.Int64
}

// LimitedConnOf returns the limited connection beneath a connection such as a *tls.Conn; nil where
// there is none.
func LimitedConnOf(conn net.Conn) *LimitedConn {
	for {
		switch c := conn.(type) {
		case *LimitedConn:
			return c
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return nil
		}
	}
}

// Admit says that the caller is known to be one that this server is for: from here on the
// connection may stay.
func (c *LimitedConn) Admit() { c.AdmitFor("") }

// AdmitFor is Admit for a caller that is known by name: of its connections only the newest stay, as
// Limit.PerOwner says.
func (c *LimitedConn) AdmitFor(owner string) {
	if c == nil || c.admitted.Load() {
		return
	}
	if victim := c.listener.admit(c, owner); victim != nil {
		victim.refuse(refusedTooMany)
	}
}

// Dismiss says that the caller is not, or no longer, one that this server is for. The connection
// becomes as a new one, unless it carries an admitted call.
func (c *LimitedConn) Dismiss() {
	if c == nil || !c.admitted.Load() {
		return
	}
	c.listener.dismiss(c)
	if c.carried.Load() > 0 { // as it may since somebody looked
		c.Admit()
	}
}

// Serving says that this server works at a call of the connection until done is called: it does not
// make room meanwhile. A call that waits for its turn is none that this server works at.
func (c *LimitedConn) Serving() (done func()) {
	if c == nil {
		return func() {}
	}
	c.served.Add(1)
	return func() { c.served.Add(-1) }
}

// Open reports whether the connection was not closed here.
func (c *LimitedConn) Open() bool {
	if c == nil {
		return true
	}
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	return c.open
}

// CutOff closes the connection of a caller who sends on and on what is not wanted.
func (c *LimitedConn) CutOff() {
	if c != nil {
		c.refuse(refusedTooMuch)
	}
}

// Resting says that the rest of a request is waited for until ended is called, and whether that is
// so of no more than most requests of the connection.
func (c *LimitedConn) Resting(most int32) (ended func(), room bool) {
	if c == nil {
		return func() {}, true
	}
	return func() { c.resting.Add(-1) }, c.resting.Add(1) <= most
}

// shared is for how long a connection counts as one that carries admitted calls after the last one.
const shared = time.Minute

// Carrying admits the connection for an owner, and says that it carries a call that is admitted
// until done is called.
func (c *LimitedConn) Carrying(owner string) (done func()) {
	if c == nil {
		return func() {}
	}
	c.carried.Add(1) // before it is admitted, for Dismiss
	c.AdmitFor(owner)
	return func() {
		c.carriedAt.Store(int64(time.Since(c.listener.started)))
		c.carried.Add(-1)
	}
}

// Carries reports whether the connection carries admitted calls, or has lately.
func (c *LimitedConn) Carries() bool {
	if c == nil {
		return false
	}
	last := c.carriedAt.Load()
	return c.carried.Load() > 0 || last > 0 && time.Since(c.listener.started) < time.Duration(last)+shared
}

// Read implements net.Conn. It closes a connection that sends too much while it is unadmitted.
func (c *LimitedConn) Read(p []byte) (int, error) {
	if !c.admitted.Load() {
		start := time.Since(c.listener.started)
		c.waiting.Store(int64(max(start, 1)))
		defer func() {
			c.waiting.Store(0)
			c.waited.Add(int64(time.Since(c.listener.started) - start))
		}()
	}
	n, err := c.Conn.Read(p)
	if c.admitted.Load() {
		return n, err
	}
	if limit := c.listener.limit.UnadmittedBytes; c.read.Add(int64(n)) > limit && limit > 0 {
		c.refuse(refusedTooMuch)
		return 0, net.ErrClosed
	}
	return n, err
}

// waitedUntil returns how long this server has waited for the caller in all.
func (c *LimitedConn) waitedUntil(now time.Duration) time.Duration {
	waited := time.Duration(c.waited.Load())
	if since := time.Duration(c.waiting.Load()); since > 0 {
		waited += max(now-since, 0)
	}
	return waited
}

// refuse counts the refusal and closes the connection so that nothing of it is left here: the
// caller gets a reset.
func (c *LimitedConn) refuse(why Refusal) {
	c.listener.refusals.Count(why, c.RemoteAddr())
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// Close implements net.Conn.
func (c *LimitedConn) Close() error {
	c.listener.close(c)
	return c.Conn.Close()
}
