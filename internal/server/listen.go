package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

const unixPrefix = "unix:"

// Listener is an address that this process holds. It can be served more than once: after a serving
// component failed and closed the socket, the next Serve opens the same address again.
type Listener struct {
	address string // as bound: the port is known
	mu      sync.Mutex
	open    net.Listener // nil once handed out
}

// Listen takes an address: "host:port" for TCP (port 0: any free port), or "unix:PATH" for a Unix
// socket, which is made with mode 0600. An address that another process holds is KindInUse. One
// that this host does not have (yet), or whose name cannot be resolved, is KindTemporary, and a
// malformed one KindInvalid. A Unix socket that nobody answers on is left over from a process that
// died, and is replaced.
func Listen(ctx context.Context, address string) (*Listener, error) {
	ln, err := listen(ctx, address)
	if err != nil {
		return nil, err
	}
	l := &Listener{address: address, open: ln}
	if !strings.HasPrefix(address, unixPrefix) {
		l.address = ln.Addr().String()
	}
	return l, nil
}

// Address returns where it listens, in the form that Listen takes, with the port that was chosen.
func (l *Listener) Address() string { return l.address }

// URL returns where an HTTP client on this host reaches it over TCP; "" for a Unix socket.
func (l *Listener) URL(scheme string) string {
	if strings.HasPrefix(l.address, unixPrefix) {
		return ""
	}
	host, port, err := net.SplitHostPort(l.address)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// Serve hands the socket to serve, which closes it before it returns.
func (l *Listener) Serve(ctx context.Context, serve func(context.Context, net.Listener) error) error {
	l.mu.Lock()
	ln := l.open
	l.open = nil
	l.mu.Unlock()
	if ln == nil {
		again, err := listen(ctx, l.address)
		if err != nil {
			return err
		}
		ln = again
	}
	return serve(ctx, ln)
}

// Close gives the address back if nobody serves it.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		return nil
	}
	err := l.open.Close()
	l.open = nil
	return err
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		return listenUnix(ctx, path)
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "%q is not an address to listen on: use host:port or unix:PATH", address)
	}
	// A port that is none looks like a name that cannot be resolved.
	if _, err := net.DefaultResolver.LookupPort(ctx, "tcp", port); err != nil && ctx.Err() == nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "%q is not an address to listen on: %q is not a port", address, port)
	}
	var config net.ListenConfig
	ln, err := config.Listen(ctx, "tcp", address)
	return ln, explain(address, err)
}

func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if path == "" {
		return nil, fleet.Errorf(fleet.KindInvalid, "%q is not an address to listen on: a path must follow", unixPrefix)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fleet.Errorf(fleet.KindInvalid, "%s exists and is not a socket", path)
		}
		if answers(ctx, path) {
			return nil, fleet.Errorf(fleet.KindInUse, "socket %s is in use by another process: stop that process first", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, explain(path, fmt.Errorf("remove stale socket: %w", err))
		}
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		// This runs before bind, so that the socket never has a wider mode.
		err := c.Control(func(fd uintptr) { failed = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	ln, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, explain(path, err)
	}
	// On some systems the mode of an unbound socket does not carry over.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict socket: %w", err), ln.Close())
	}
	return ln, nil
}

// answers says whether somebody accepts connections there. Only a refusal means that nobody does.
func answers(ctx context.Context, path string) bool {
	dialer := net.Dialer{Timeout: 2 * time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return true
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist)
}

func explain(address string, err error) error {
	if err == nil {
		return nil
	}
	cause := err
	if op, ok := errors.AsType[*net.OpError](err); ok {
		cause = op.Err // the rest repeats the address
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fleet.Errorf(fleet.KindInUse, "address %s is in use by another process", address)
	case errors.Is(err, syscall.EACCES):
		return fleet.Errorf(fleet.KindForbidden, "not allowed to listen on %s: %w", address, cause)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fleet.Errorf(fleet.KindTemporary, "cannot listen on %s: this host does not have that address: is its network up?", address)
	}
	_, unresolved := errors.AsType[*net.DNSError](err)
	switch {
	// A socket is a file, too, and its file system may be mounted for writing again, or get room.
	case unresolved, errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fleet.Errorf(fleet.KindTemporary, "cannot listen on %s: %w", address, cause)
	}
	return fmt.Errorf("listen on %s: %w", address, cause)
}
