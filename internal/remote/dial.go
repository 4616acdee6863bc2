package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
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
	// JumpHosts are those of the process. Nil: no other dialer uses the same.
	JumpHosts *JumpHosts
	// Dial makes the connection below SSH. Nil: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Dialer connects to hosts with one key. It is safe for concurrent use and keeps no connections.
type Dialer struct {
	key     *Key
	options Options
	// route fails where our own kernel knows no way to an address. Nil: it is not asked.
	route func(ctx context.Context, address string) error
}

// NewDialer returns a dialer that authenticates with the key.
func NewDialer(key *Key, options Options) *Dialer {
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	if options.ConnectTimeout <= 0 {
		options.ConnectTimeout = 2 * time.Second
	}
	if options.HandshakeTimeout <= 0 {
		options.HandshakeTimeout = 15 * time.Second
	}
	if options.StepTimeout <= 0 {
		options.StepTimeout = 15 * time.Second
	}
	if options.JumpHosts == nil {
		options.JumpHosts = new(JumpHosts)
	}
	d := &Dialer{key: key}
	if options.Dial == nil {
		options.Dial, d.route = new(net.Dialer).DialContext, route
	}
	d.options = options
	return d
}

// Dial connects, verifies the host key and authenticates. The context bounds the dialing only. The
// caller closes the host.
func (d *Dialer) Dial(ctx context.Context, target Target) (*Host, error) {
	host, err := d.login(ctx, target)
	if err == nil && target.Silence > 0 {
		if err = host.tryCommand(ctx, target.Silence); err != nil {
			_ = host.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	return host, nil
}

// login is Dial without a first command.
func (d *Dialer) login(ctx context.Context, target Target) (*Host, error) {
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

// tryCommand returns when the host has done a command that does nothing, however it ended.
func (h *Host) tryCommand(ctx context.Context, limit time.Duration) error {
	_, err := h.Run(ctx, Command{Args: []string{"true"}, Timeout: limit, OnStderr: func(string) {}})
	_, exited := errors.AsType[*ExitError](err)
	_, noise := errors.AsType[*noiseError](err)
	if exited || noise {
		return nil
	}
	if err != nil {
		return fmt.Errorf("a first command: %w", err)
	}
	return nil
}

func (d *Dialer) connect(ctx context.Context, target Target) (net.Conn, error) {
	if target.Via != nil {
		return d.through(ctx, target)
	}
	connecting, cancel := context.WithTimeout(ctx, d.options.ConnectTimeout)
	defer cancel()
	connection, err := d.options.Dial(connecting, "tcp", target.Address.String())
	switch {
	case err == nil:
		return connection, nil
	case ctx.Err() != nil:
		return nil, endedError(ctx, "connect to "+target.Address.String())
	case connecting.Err() != nil, isTimeout(err) && !errors.Is(err, syscall.EAGAIN): // which is ours
		return nil, fleet.Errorf(fleet.KindTimeout, "%s did not accept a connection within %s", target.Address, d.options.ConnectTimeout)
	}
	cause := causeOf(err)
	if d.fromTheWay(ctx, target.Address, cause) {
		return nil, fleet.Errorf(fleet.KindTemporary, "%s: %w (a router on the way says so, or a packet filter)", target.Address, &wayError{cause})
	}
	if Answered(cause) == fleet.AnswerUnknown {
		return nil, fleet.Errorf(fleet.KindTemporary, "%s: %w (the fault is of this host: look at its packet filter, its routes and its limits)",
			target.Address, cause)
	}
	return nil, fleet.Errorf(fleet.KindTemporary, "%s: %w", target.Address, cause)
}

// causeOf returns what the system said of a connection, without the words of package net around it:
// they repeat the call and the address.
func causeOf(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		err = call.Err
	}
	return err
}

// Answered returns what an error of Dial says of the host. One that refuses a connection has
// answered, and so has one that refuses our key, or shows another host key. One that hangs has
// not answered, and neither has one that nothing leads to. Any other error of the system is a fault
// of our own host, which says nothing of the other. Nor does a fault of a jump host.
func Answered(err error) fleet.Answer {
	errno, system := errors.AsType[syscall.Errno](err)
	_, before := errors.AsType[*JumpHostError](err)
	_, way := errors.AsType[*wayError](err)
	_, wrong := errors.AsType[*HostKeyError](err)
	switch {
	case before:
		return fleet.AnswerUnknown
	case way:
		return fleet.AnswerNone
	case wrong:
		return fleet.AnswerOtherKey
	case !system && fleet.KindOf(err) == fleet.KindUnauthenticated:
		return fleet.AnswerRefused
	case !system && fleet.KindOf(err) == fleet.KindTimeout:
		return fleet.AnswerNone
	case !system:
		return fleet.AnswerGiven
	}
	switch errno {
	case syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE: // the last of a write after a reset
		return fleet.AnswerGiven
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.EHOSTDOWN:
		return fleet.AnswerNone
	}
	return fleet.AnswerUnknown
}

// wayError is what our own kernel tells of a way that ends elsewhere.
type wayError struct{ error }

func (e *wayError) Unwrap() error { return e.error }

// fromTheWay says whether an error to connect is the ICMP of another host: a router that knows no
// way to the address, or that prohibits it. Our kernel tells these in the words that it has for its
// own routes, but then it has one. Of IPv4 it tells no ICMP as EACCES.
func (d *Dialer) fromTheWay(ctx context.Context, address netip.AddrPort, err error) bool {
	known := errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EACCES) && !address.Addr().Unmap().Is4()
	return known && d.route != nil && d.route(ctx, address.String()) == nil
}

// route fails where our own kernel knows no way to an address. Nothing is sent.
func route(ctx context.Context, address string) error {
	connection, err := new(net.Dialer).DialContext(ctx, "udp", address)
	if err != nil {
		return err
	}
	return connection.Close()
}

func (d *Dialer) handshake(ctx context.Context, connection net.Conn, target Target, verifier *verifier) (*Host, error) {
	late := fleet.Errorf(fleet.KindTimeout, "%s did not finish the SSH handshake within %s", target.Address, d.options.HandshakeTimeout)
	timed, cancel := context.WithTimeoutCause(ctx, d.options.HandshakeTimeout, late)
	defer cancel()
	shaking, giveUp := context.WithCancelCause(timed)
	defer giveUp(nil)
	stop := endsWith(ctx, shaking, connection)
	defer stop()

	offer := &offer{key: d.key}
	config := &ssh.ClientConfig{
		User:              target.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeysCallback(offer.keys)},
		AuthCallback:      offer.next,
		BannerCallback:    offer.banner,
		HostKeyCallback:   verifier.check,
		HostKeyAlgorithms: verifier.algorithms(),
		ClientVersion:     "SSH-2.0-Ironherd",
		Config:            ssh.Config{Ciphers: ciphers()},
	}
	link := &link{Conn: connection}
	if target.Silence > 0 {
		limit := time.AfterFunc(target.Silence, func() {
			giveUp(fleet.Errorf(fleet.KindTimeout, "%s said nothing for %s during the SSH handshake", target.Address, target.Silence))
		})
		defer limit.Stop()
		link.heard = func() {
			if shaking.Err() == nil {
				limit.Reset(target.Silence)
			}
		}
	}
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
		return nil, endedError(ctx, "SSH handshake with "+target.Address.String())
	case jumpFault(connection) != nil:
		return nil, jumpFault(connection)
	case shaking.Err() != nil:
		return nil, context.Cause(shaking)
	}
	if offer.greeted > bannerLimit {
		return nil, fleet.Errorf(fleet.KindInvalid, "%s greeted us with more than %d bytes before it let us in: look for Banner in its sshd_config",
			target.Address, bannerLimit)
	}
	refused := verifier.presented != nil && !link.lost.Load()
	var negotiation *ssh.AlgorithmNegotiationError
	if refused && !offer.made && !errors.As(err, &negotiation) {
		return nil, fleet.Errorf(fleet.KindUnauthenticated, "%s does not let user %s in by public key, perhaps only by password: "+
			"put `PubkeyAuthentication yes` into its sshd_config", target.Address, target.User)
	}
	if refused && len(offer.wanted) > 0 {
		return nil, fleet.Errorf(fleet.KindUnauthenticated, "%s takes the key %s for user %s, and wants more than that (%s): "+
			"have its sshd be content with the key for that user, by `AuthenticationMethods publickey` in a Match block before all others",
			target.Address, d.key.Fingerprint(), target.User, said{errors.New(strings.Join(offer.wanted, ", "))})
	}
	return nil, d.handshakeError(target, refused, err)
}

// bannerLimit is how much of a greeting a host may send during the authentication, in bytes.
// One message of it has 256 KiB at most.
const bannerLimit = 4 << 20

// offer is our side of one authentication.
type offer struct {
	key *Key
	// made tells that the host admits public keys, so that ours was offered.
	made bool
	// wanted is by what else the host wants to know us once it has taken our key.
	wanted []string
	// greeted is how much of a greeting has arrived, in bytes.
	greeted int
}

func (o *offer) keys() ([]ssh.Signer, error) {
	o.made = true
	return []ssh.Signer{o.key.signer}, nil
}

// next leaves it to the library what is tried next. Where our key is only a part of what the host
// wants, nothing is.
func (o *offer) next(so *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
	if len(so.PartialSuccessMethods) > 0 {
		o.wanted = so.AllowedMethods
	}
	return nil, nil
}

// banner receives a part of the greeting. It is for people, and nobody reads it here.
func (o *offer) banner(part string) error {
	if o.greeted += len(part); o.greeted > bannerLimit {
		return errors.New("the greeting is too long")
	}
	return nil
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
		return fleet.Errorf(fleet.KindUnauthenticated, "%s refuses the key %s for user %s, whose authorized_keys there must have it: %w",
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
