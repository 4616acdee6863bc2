package remote

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Options adjusts a Dialer. The zero value gives the documented defaults.
type Options struct {
	// Logger gets what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
	// ConnectTimeout bounds the TCP connect. Zero: 2 s.
	ConnectTimeout time.Duration
	// HandshakeTimeout bounds the SSH handshake, authentication included. Zero: 15 s.
	HandshakeTimeout time.Duration
	// StepTimeout bounds each thing that a host is asked to do: a command that names no limit of its
	// own, each operation on files, and how long an upload may go without progress. Zero: 15 s.
	StepTimeout time.Duration
	// Dial makes the connection below SSH. Nil: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Dialer connects to hosts with one key. It is safe for concurrent use and keeps no connections.
type Dialer struct {
	key     *Key
	options Options
}

// NewDialer returns a dialer that authenticates with the key.
func NewDialer(key *Key, options Options) *Dialer {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.ConnectTimeout <= 0 {
		options.ConnectTimeout = 2 * time.Second
	}
	if options.HandshakeTimeout <= 0 {
		options.HandshakeTimeout = 15 * time.Second
	}
	if options.StepTimeout <= 0 {
		options.StepTimeout = 15 * time.Second
	}
	if options.Dial == nil {
		options.Dial = new(net.Dialer).DialContext
	}
	return &Dialer{key: key, options: options}
}

// Dial connects, verifies the host key and authenticates. The context bounds the dialing only. The
// caller closes the host.
func (d *Dialer) Dial(ctx context.Context, target Target) (*Host, error) {
	if !target.Address.IsValid() || target.Address.Port() == 0 || target.User == "" {
		return nil, fleet.Errorf(fleet.KindInvalid, "a host needs an address, a port and a user, not %q, %q", target.Address, target.User)
	}
	verifier, err := newVerifier(target.Address, target.Trust)
	if err != nil {
		return nil, err
	}
	connection, err := d.connect(ctx, target)
	if err != nil {
		return nil, err
	}
	host, err := d.handshake(ctx, connection, target, verifier)
	if err != nil {
		_ = connection.Close()
		return nil, err
	}
	return host, nil
}

func (d *Dialer) connect(ctx context.Context, target Target) (net.Conn, error) {
	connecting, cancel := context.WithTimeout(ctx, d.options.ConnectTimeout)
	defer cancel()
	connection, err := d.options.Dial(connecting, "tcp", target.Address.String())
	switch {
	case err == nil:
		return connection, nil
	case ctx.Err() != nil:
		return nil, ended(ctx, "connect to "+target.Address.String())
	case connecting.Err() != nil || isTimeout(err):
		return nil, fleet.Errorf(fleet.KindTimeout, "%s did not accept a connection within %s", target.Address, d.options.ConnectTimeout)
	}
	return nil, fleet.Errorf(fleet.KindTemporary, "connect: %w", err)
}

func (d *Dialer) handshake(ctx context.Context, connection net.Conn, target Target, verifier *verifier) (*Host, error) {
	shaking, cancel := context.WithTimeout(ctx, d.options.HandshakeTimeout)
	defer cancel()
	// Closing is the one thing that ends a read or a write on every kind of connection.
	stop := context.AfterFunc(shaking, func() { _ = connection.Close() })
	defer stop()

	config := &ssh.ClientConfig{
		User:              target.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(d.key.signer)},
		HostKeyCallback:   verifier.check,
		HostKeyAlgorithms: verifier.algorithms(),
		ClientVersion:     "SSH-2.0-Ironherd",
		Config:            ssh.Config{Ciphers: ciphers()},
	}
	link := &link{Conn: connection}
	sshConnection, channels, requests, err := ssh.NewClientConn(link, target.Address.String(), config)
	if err == nil {
		link.attach(sshConnection)
		client := ssh.NewClient(sshConnection, channels, requests)
		host := newHost(client, link, target, verifier.hostKey(), d.options)
		if stop() {
			return host, nil
		}
		_ = host.Close() // the time was over in the very moment of success
	}
	switch {
	case verifier.refused != nil:
		return nil, verifier.refused
	case ctx.Err() != nil:
		return nil, ended(ctx, "SSH handshake with "+target.Address.String())
	case shaking.Err() != nil:
		return nil, fleet.Errorf(fleet.KindTimeout, "%s did not finish the SSH handshake within %s",
			target.Address, d.options.HandshakeTimeout)
	}
	return nil, d.handshakeError(target, verifier.presented != nil && !link.lost.Load(), err)
}

// handshakeError gives a failed handshake its kind. The library has no type for a refused key, so
// the caller tells by how far the handshake came: the host has refused our key if we have accepted
// its key, and the host has not ended the connection.
func (d *Dialer) handshakeError(target Target, refused bool, err error) error {
	var negotiation *ssh.AlgorithmNegotiationError
	switch {
	case errors.As(err, &negotiation):
		return fleet.Errorf(fleet.KindUnsupported, "%s shares no SSH algorithm with us: %w", target.Address, said{err})
	case refused:
		return fleet.Errorf(fleet.KindUnauthenticated, "%s refuses the key %s for user %s: %w",
			target.Address, d.key.Fingerprint(), target.User, said{err})
	}
	return fleet.Errorf(fleet.KindTemporary, "SSH handshake with %s: %w", target.Address, said{err})
}

// ciphers returns the library's ciphers with AES-GCM first, which costs a fraction of ChaCha20 on a
// processor that supports it.
func ciphers() []string {
	order := []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM}
	for _, cipher := range ssh.SupportedAlgorithms().Ciphers {
		if !strings.Contains(cipher, "gcm") {
			order = append(order, cipher)
		}
	}
	return order
}
