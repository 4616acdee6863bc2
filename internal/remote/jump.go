package remote

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

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

// loginsAtOnce is how many logins to one jump host a dialer has under way at once. OpenSSH turns
// away every third one while ten are not done (MaxStartups), and there are several dialers.
const loginsAtOnce = 4

// jumpHosts counts the logins to jump hosts that are under way.
type jumpHosts struct {
	mu    sync.Mutex
	slots map[netip.AddrPort]chan struct{}
}

// of returns what has an element for each login to one jump host.
func (j *jumpHosts) of(address netip.AddrPort) chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.slots == nil {
		j.slots = make(map[netip.AddrPort]chan struct{})
	}
	if j.slots[address] == nil {
		j.slots[address] = make(chan struct{}, loginsAtOnce)
	}
	return j.slots[address]
}

// through connects to the target from its jump host. Once that has let us in, it leads to the
// target: what then hangs, or is refused, is the target.
func (d *Dialer) through(ctx context.Context, target Target) (net.Conn, error) {
	jump, err := d.enter(ctx, *target.Via)
	if err != nil {
		return nil, &JumpHostError{err}
	}
	var connection net.Conn
	err = jump.within(ctx, d.options.ConnectTimeout+d.options.StepTimeout, "connect from jump host "+target.Via.Address.String(), func() (err error) {
		connection, err = jump.client.Dial("tcp", target.Address.String())
		return err
	})
	if err == nil {
		return &tunnel{Conn: connection, jump: jump}, nil
	}
	_ = jump.Close()
	refused, spoke := errors.AsType[*ssh.OpenChannelError](err)
	switch {
	case spoke && refused.Reason == ssh.ConnectionFailed, fleet.KindOf(err) == fleet.KindTimeout:
		return nil, err
	case spoke && refused.Reason == ssh.Prohibited:
		err = fleet.Errorf(fleet.KindForbidden, "%w; let it forward connections: AllowTcpForwarding and PermitOpen in its sshd_config", err)
	}
	return nil, &JumpHostError{err}
}

// enter logs in to a jump host when its turn has come.
func (d *Dialer) enter(ctx context.Context, via Target) (*Host, error) {
	slots, patience := d.jumps.of(via.Address), d.options.ConnectTimeout+d.options.HandshakeTimeout
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-waiting.Done():
		if ctx.Err() != nil {
			return nil, ended(ctx, "log in to "+via.Address.String())
		}
		return nil, fleet.Errorf(fleet.KindTemporary, "%s is busy: %d logins were under way, and within %s this one's turn did not come",
			via.Address, loginsAtOnce, patience)
	}
	jump, err := d.Dial(ctx, via)
	if wrong, ok := errors.AsType[*HostKeyError](err); ok {
		// Not wrapped: it is not the key of the target that is wrong.
		return nil, fleet.Errorf(fleet.KindForbidden, "%v; if the new key is right, put it into the list of hosts", wrong)
	}
	return jump, err
}

// tunnel is a connection through a jump host, and ends with it.
type tunnel struct {
	net.Conn
	jump *Host
}

// Close ends the connection, and the one to the jump host.
func (t *tunnel) Close() error {
	// The link first: a channel of a host that hangs would wait to be closed.
	return errors.Join(t.jump.link.Close(), t.jump.Close())
}
