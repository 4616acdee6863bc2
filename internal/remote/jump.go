package remote

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// JumpHostError is a fault of the jump host, or of the way to it. It says nothing of the host
// behind.
type JumpHostError struct{ Err error }

// Error tells the fault.
func (e *JumpHostError) Error() string { return "jump host: " + e.Err.Error() }

// Unwrap returns the fault.
func (e *JumpHostError) Unwrap() error { return e.Err }

// TurnMissedError says that the turn of a login to a jump host did not come in time, so that
// nothing was tried.
type TurnMissedError struct {
	Err error
	// Last is why the last login there failed; nil: it did not.
	Last error
}

// Error tells for how long it waited, and why.
func (e *TurnMissedError) Error() string { return e.Err.Error() }

// Unwrap returns what Error tells.
func (e *TurnMissedError) Unwrap() error { return e.Err }

const (
	// loginsAtOnce is how many logins to one jump host are under way at once. OpenSSH turns away every
	// third one while ten are not done (MaxStartups), Dropbear all above five from one address, and
	// there may be several control planes.
	loginsAtOnce = 4
	// answerTime is more than a jump host's answer takes on its way.
	answerTime = time.Second
)

// JumpHosts are the jump hosts of one process: how many logins to each are under way, and how the
// last one went. All dialers of a process share them. It is safe for concurrent use, and the zero
// value is ready.
type JumpHosts struct {
	mu sync.Mutex
	by map[netip.AddrPort]*jumpHost
}

// jumpHost is one of them.
type jumpHost struct {
	// slots has an element for each login that is under way.
	slots chan struct{}
	// failed is why the last login failed by the fault of the jump host, or of the way; nil: it did
	// not.
	failed atomic.Pointer[error]
}

// of returns the jump host of that address.
func (j *JumpHosts) of(address netip.AddrPort) *jumpHost {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.by == nil {
		j.by = make(map[netip.AddrPort]*jumpHost)
	}
	if j.by[address] == nil {
		j.by[address] = &jumpHost{slots: make(chan struct{}, loginsAtOnce)}
	}
	return j.by[address]
}

// through connects to the target from its jump host. Once that has let us in, it leads to the
// target: what then hangs, or is refused, is the target. Where the target may well hang, so may its
// jump host.
func (d *Dialer) through(ctx context.Context, target Target) (net.Conn, error) {
	via, limit := *target.Via, d.options.ConnectTimeout+d.options.StepTimeout
	if via.Silence = target.Silence; via.Silence > 0 {
		limit = d.options.ConnectTimeout + answerTime
	}
	jump, err := d.enter(ctx, via)
	if err != nil {
		return nil, &JumpHostError{err}
	}
	// Where it takes long, the jump host is asked while there is time left for its answer.
	asked := make(chan error, 1)
	asking := time.AfterFunc(limit-answerTime, func() { asked <- jump.gone() })
	var connection net.Conn
	err = jump.within(ctx, limit, "connect from jump host "+via.Address.String(), func() (err error) {
		connection, err = jump.client.Dial("tcp", target.Address.String())
		return err
	})
	if err == nil {
		asking.Stop()
		return &tunnel{Conn: connection, jump: jump}, nil
	}
	_ = jump.Close()
	refused, spoke := errors.AsType[*ssh.OpenChannelError](err)
	if late := !asking.Stop(); late && !spoke && ctx.Err() == nil {
		if gone := <-asked; gone != nil {
			// The time of both ended then, and we closed the connection.
			if fleet.KindOf(err) == fleet.KindTimeout {
				gone = jump.unanswered()
			}
			return nil, &JumpHostError{gone}
		}
	}
	switch {
	case spoke && refused.Reason == ssh.ConnectionFailed, fleet.KindOf(err) == fleet.KindTimeout:
		return nil, err
	case spoke && refused.Reason == ssh.Prohibited:
		err = fleet.Errorf(fleet.KindForbidden, "%w; let it forward connections: AllowTcpForwarding and PermitOpen in its sshd_config", err)
	}
	return nil, &JumpHostError{err}
}

// enter logs in to a jump host when its turn has come. Nobody waits for long for one that may well
// hang, and has let the last one not in.
func (d *Dialer) enter(ctx context.Context, via Target) (*Host, error) {
	host, patience := d.options.JumpHosts.of(via.Address), d.options.ConnectTimeout+d.options.HandshakeTimeout
	if via.Silence > 0 && host.failed.Load() != nil {
		patience = d.options.ConnectTimeout + via.Silence
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case host.slots <- struct{}{}:
		defer func() { <-host.slots }()
	case <-waiting.Done():
		if ctx.Err() != nil {
			return nil, endedError(ctx, "log in to "+via.Address.String())
		}
		if last := host.failed.Load(); last != nil {
			return nil, &TurnMissedError{Last: *last, Err: fleet.Errorf(fleet.KindTemporary,
				"the last login to %s failed: %v (%d more were under way, and within %s this one's turn did not come)",
				via.Address, *last, loginsAtOnce, patience)}
		}
		return nil, &TurnMissedError{Err: fleet.Errorf(fleet.KindTemporary,
			"%s is busy: %d logins were under way, and within %s this one's turn did not come", via.Address, loginsAtOnce, patience)}
	}
	// It may let nobody run commands, so none is asked for.
	jump, err := d.login(ctx, via)
	if wrong, ok := errors.AsType[*HostKeyError](err); ok {
		// Not wrapped: it is not the key of the target that is wrong.
		err = fleet.Errorf(fleet.KindForbidden, "%v; if the new key is right, put it into the list of hosts", wrong)
	}
	switch kind := fleet.KindOf(err); {
	case err == nil:
		host.failed.Store(nil)
	case ctx.Err() != nil: // it was given up
	case kind == fleet.KindTimeout, kind == fleet.KindTemporary: // else it is this login's own fault
		host.failed.Store(&err)
	}
	return jump, err
}

// tunnel is a connection through a jump host, and ends with it.
type tunnel struct {
	net.Conn
	jump *Host
	// judged tells that it is known whose fault an end is, or that nobody wants to know.
	judged atomic.Bool
	// gone is what is wrong with the jump host; nil: nothing is known to be.
	gone atomic.Pointer[error]
}

// Read implements net.Conn.
func (t *tunnel) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if err != nil {
		t.judge()
	}
	return n, err
}

// Write implements net.Conn.
func (t *tunnel) Write(p []byte) (int, error) {
	n, err := t.Conn.Write(p)
	if err != nil {
		t.judge()
	}
	return n, err
}

// judge asks the jump host, unless it was asked or we have ended the connection.
func (t *tunnel) judge() {
	if t.judged.CompareAndSwap(false, true) {
		if err := t.jump.gone(); err != nil {
			t.gone.Store(&err)
		}
	}
}

// Close ends the connection, and the one to the jump host.
func (t *tunnel) Close() error {
	t.judged.Store(true)
	// The link first: a channel of a host that hangs would wait to be closed.
	return errors.Join(t.jump.link.Close(), t.jump.Close())
}

// endsWith closes the connection when the time for a handshake is over, and asks the jump host
// before, where there is one. It returns what is to be called when the handshake is over, and tells
// whether that was in time.
func endsWith(ctx, shaking context.Context, connection net.Conn) (stop func() bool) {
	behind, _ := connection.(*tunnel)
	// Closing is the one thing that ends a read or a write on every kind of connection.
	inTime := context.AfterFunc(shaking, func() {
		if behind != nil && ctx.Err() == nil {
			behind.judge()
		}
		_ = connection.Close()
	})
	return func() bool {
		if behind != nil {
			behind.judged.Store(true)
		}
		return inTime()
	}
}

// JumpFault returns a *JumpHostError for a connection of Reach that has failed by the fault of its
// jump host; nil where it has not. It asks the jump host, for a second at most, and so comes before
// the connection is closed.
func JumpFault(connection net.Conn) error {
	if t, ok := connection.(*tunnel); ok {
		t.judge()
	}
	return jumpFault(connection)
}

// jumpFault returns the error for a handshake that has failed by the fault of the jump host, nil
// where it has not.
func jumpFault(connection net.Conn) error {
	if t, ok := connection.(*tunnel); ok {
		if gone := t.gone.Load(); gone != nil {
			return &JumpHostError{*gone}
		}
	}
	return nil
}

// gone asks a host whether it is there, and returns an error where it is not.
func (h *Host) gone() error {
	answered := make(chan error, 1)
	go func() {
		_, _, err := h.client.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	}()
	limit := time.NewTimer(answerTime)
	defer limit.Stop()
	select {
	case err := <-answered:
		if err == nil {
			return nil
		}
	case <-h.over:
	case <-limit.C:
		return h.unanswered()
	}
	return fleet.Errorf(fleet.KindTemporary, "the connection to %s has ended", h.address)
}

func (h *Host) unanswered() error {
	return fleet.Errorf(fleet.KindTimeout, "%s did not answer within %s", h.address, answerTime)
}
