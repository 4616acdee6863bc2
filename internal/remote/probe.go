package remote

import (
	"context"
	"errors"
	"io"
	"net"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// probeLimit is how much a host may say to a probe, in bytes: its version and one key exchange.
const probeLimit = 256 << 10

// errVerified ends a handshake that has shown what it should.
var errVerified = errors.New("the host key is verified")

// Reach connects to the target, by its jump host where it has one, and sends it nothing.
func (d *Dialer) Reach(ctx context.Context, target Target) (net.Conn, error) {
	return d.connect(ctx, target)
}

// Probe asks whether the target answers SSH: it connects, exchanges versions and keys, and verifies
// that the host owns a key that is trusted. Then it leaves. The host is told no user name and no
// key of ours. Errors are those of Dial.
func (d *Dialer) Probe(ctx context.Context, target Target) (HostKey, error) {
	if !target.Address.IsValid() || target.Address.Port() == 0 {
		return HostKey{}, fleet.Errorf(fleet.KindInvalid, "a host needs an address and a port, not %q", target.Address)
	}
	verifier, err := newVerifier(target.Address, target.Trust)
	if err != nil {
		return HostKey{}, err
	}
	connection, err := d.connect(ctx, target)
	if err != nil {
		return HostKey{}, err
	}
	defer func() { _ = connection.Close() }()
	late := fleet.Errorf(fleet.KindTimeout, "%s did not finish the SSH key exchange within %s", target.Address, d.options.HandshakeTimeout)
	shaking, cancel := context.WithTimeoutCause(ctx, d.options.HandshakeTimeout, late)
	defer cancel()
	stop := endsWith(ctx, shaking, connection)
	defer stop()

	verified := false
	_, _, _, err = ssh.NewClientConn(&probeConn{Conn: connection, rest: probeLimit}, target.Address.String(), &ssh.ClientConfig{
		HostKeyCallback: func(name string, address net.Addr, key ssh.PublicKey) error {
			if err := verifier.check(name, address, key); err != nil {
				return err
			}
			verified = true
			return errVerified // nothing more is asked, and nothing said
		},
		HostKeyAlgorithms: verifier.algorithms(),
		ClientVersion:     "SSH-2.0-Ironherd",
		Config:            ssh.Config{Ciphers: ciphers()},
	})
	var negotiation *ssh.AlgorithmNegotiationError
	switch {
	case verified:
		return verifier.hostKey(), nil
	case verifier.refused != nil:
		return HostKey{}, verifier.refused
	case ctx.Err() != nil:
		return HostKey{}, endedError(ctx, "SSH key exchange with "+target.Address.String())
	case jumpFault(connection) != nil:
		return HostKey{}, jumpFault(connection)
	case shaking.Err() != nil:
		return HostKey{}, context.Cause(shaking)
	case errors.As(err, &negotiation):
		return HostKey{}, fleet.Errorf(fleet.KindUnsupported, "%s shares no SSH algorithm with us: %w", target.Address, said{err})
	}
	return HostKey{}, fleet.Errorf(fleet.KindTemporary, "SSH key exchange with %s: %w", target.Address, said{err})
}

// probeConn ends what is read of a connection after so many bytes.
type probeConn struct {
	net.Conn
	rest int
}

// Read implements net.Conn.
func (b *probeConn) Read(p []byte) (int, error) {
	if b.rest <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.Conn.Read(p[:min(len(p), b.rest)])
	b.rest -= n
	return n, err
}
