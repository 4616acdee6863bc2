package sshhost

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// handshakeTimeout is how long a client may take to prove its key.
const handshakeTimeout = 30 * time.Second

// version is what the server calls itself.
const version = "SSH-2.0-OpenSSH_10.0p2 Debian-7"

// Options are the machine behind a server.
type Options struct {
	// Root is the directory that is the machine's file system.
	Root string
	// Hostname and KernelRelease are what the machine says of itself.
	Hostname, KernelRelease string
	HostKey                 ssh.Signer
	// Store keeps contents that machines share.
	Store *Store
	// Execute runs an executable file of the machine, and returns when it has ended. ctx ends with the
	// machine's power.
	Execute func(ctx context.Context, program Program) Status
	// Reboot is called by the command `reboot`.
	Reboot func() error
	// Observer is called for connections and uploads. May be nil.
	Observer Observer
	Logger   *slog.Logger
}

// Observer is called by the servers of a world, and may inject faults. Its methods may be called
// concurrently.
type Observer interface {
	// Connection is called for each accepted connection. If refuse is true, the server resets the
	// connection at once. If drop is not zero, it resets the connection after that time.
	Connection() (refuse bool, drop time.Duration)
	// Uploaded is called for each file that a client has written.
	Uploaded(bytes int64)
}

// Server serves one machine.
type Server struct {
	options Options
	config  *ssh.ServerConfig
	tasks   sync.WaitGroup
}

// NewServer returns a server that is not serving yet.
func NewServer(options Options) *Server {
	s := &Server{options: options}
	s.config = &ssh.ServerConfig{
		// Only cheap algorithms, because thousands of machines share a few processors.
		Config: ssh.Config{
			KeyExchanges: []string{ssh.KeyExchangeCurve25519, "curve25519-sha256@libssh.org"},
			Ciphers:      []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305, ssh.CipherAES128CTR},
		},
		ServerVersion:     version,
		PublicKeyCallback: s.authorize,
	}
	s.config.AddHostKey(options.HostKey)
	return s
}

// Serve answers on the listener until ctx ends; then it closes listener and connections, and
// returns when nothing of them is left.
func (s *Server) Serve(ctx context.Context, listener net.Listener) {
	ctx, cancel := context.WithCancel(ctx)
	defer s.tasks.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				s.options.Logger.Warn("machine stopped accepting connections", slog.Any("address", listener.Addr()), slog.Any("err", err))
			}
			_ = listener.Close()
			return
		}
		var refuse bool
		var drop time.Duration
		if s.options.Observer != nil {
			refuse, drop = s.options.Observer.Connection()
		}
		if refuse {
			reset(conn)
			continue
		}
		s.tasks.Go(func() { s.serveConn(ctx, conn, drop) })
	}
}

// reset closes a connection as a host does where nobody listens.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func (s *Server) serveConn(ctx context.Context, conn net.Conn, drop time.Duration) {
	power := ctx
	ctx, cancel := context.WithCancel(power)
	defer cancel()
	if drop > 0 {
		timer := time.AfterFunc(drop, cancel)
		defer timer.Stop()
	}
	stop := context.AfterFunc(ctx, func() { reset(conn) })
	defer stop()

	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	client, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		_ = conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	defer func() { _ = client.Close() }()
	s.tasks.Go(func() { ssh.DiscardRequests(requests) })
	for channel := range channels {
		if channel.ChannelType() != "session" {
			_ = channel.Reject(ssh.UnknownChannelType, "only sessions are served")
			continue
		}
		accepted, requests, err := channel.Accept()
		if err != nil {
			return
		}
		s.tasks.Go(func() { s.serveSession(power, accepted, requests) })
	}
}

// authorize admits root with a key of the machine's authorized_keys.
func (s *Server) authorize(conn ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	if conn.User() != "root" {
		return nil, errors.New("only root may log in")
	}
	root, err := os.OpenRoot(s.options.Root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	list, err := root.ReadFile("root/.ssh/authorized_keys")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	want := key.Marshal()
	for len(list) > 0 {
		known, _, _, rest, err := ssh.ParseAuthorizedKey(list)
		if err != nil {
			break // no key in what is left
		}
		if bytes.Equal(known.Marshal(), want) {
			return nil, nil
		}
		list = rest
	}
	return nil, errors.New("the key is not authorized")
}
