package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Host is one connection to one host. Its methods may be called concurrently; the end of the
// context of any of them closes the connection for all.
type Host struct {
	client  *ssh.Client
	address netip.AddrPort
	user    string
	hostKey HostKey
	logger  *slog.Logger
	// step bounds each thing that the host is asked to do.
	step time.Duration
	// link is what is below SSH. Closing the client could wait for what hangs; closing this does not.
	link *link
	// over is closed when the connection has ended, whoever ended it.
	over chan struct{}

	files sync.Mutex
	sftp  *sftp.Client
	// known is what the host has said of itself; nil: it was not asked yet.
	asking sync.Mutex
	known  *about
}

func newHost(client *ssh.Client, link *link, target Target, key HostKey, options Options) *Host {
	h := &Host{
		client: client, link: link, address: target.Address, user: target.User, hostKey: key,
		logger: options.Logger, step: options.StepTimeout, over: make(chan struct{}),
	}
	go func() {
		defer close(h.over)
		_ = client.Wait() // the operations that it ended report why
	}()
	return h
}

// HostKey returns the verified key of the host, and why it is trusted.
func (h *Host) HostKey() HostKey { return h.hostKey }

// Close ends the connection and everything that uses it.
func (h *Host) Close() error {
	err := h.end()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fleet.Errorf(fleet.KindTemporary, "close SSH connection: %w", err)
	}
	return nil
}

// end closes the connection and waits until the library has noticed.
func (h *Host) end() error {
	err := h.link.Close()
	settled(h.over)
	return err
}

// grace is how long the users of a connection may take to notice that it has ended. They take
// microseconds; the bound is for a machine that is overloaded.
const grace = time.Second

// bounded runs do, and closes the connection when ctx ends first: nothing less ends an operation on
// a host that hangs. It also closes a connection on which do failed because the connection ends.
//
// The returned error has a kind. If it is not the error of do, then do may still be running, and
// the caller must not read what do writes.
func (h *Host) bounded(ctx context.Context, what string, do func() error) error {
	if ctx.Err() != nil {
		return endedError(ctx, what)
	}
	select {
	case <-h.over:
		return fleet.Errorf(fleet.KindTemporary, "%s: the connection has ended", what)
	default:
	}
	outcome := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		outcome <- do()
	}()
	select {
	case <-done:
	case <-h.over:
		if !settled(done) {
			return fleet.Errorf(fleet.KindTemporary, "%s: the connection has ended", what)
		}
	case <-ctx.Done():
		_ = h.end()
		settled(done)
		return endedError(ctx, what)
	}
	err := <-outcome
	if isEnding(err) {
		_ = h.end()
	}
	return classify(what, err)
}

// within is bounded with a time limit: a host that hangs is left when it is over.
func (h *Host) within(ctx context.Context, limit time.Duration, what string, do func() error) error {
	limited, cancel := context.WithTimeoutCause(ctx, limit, fleet.Errorf(fleet.KindTimeout, "the host did not finish it within %s", limit))
	defer cancel()
	return h.bounded(limited, what, do)
}

// progressing is bounded with a time limit that begins anew with each call of progress: a slow host
// gets the time that its progress earns.
func (h *Host) progressing(ctx context.Context, what string, do func(progress func()) error) error {
	moving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	timer := time.AfterFunc(h.step, func() {
		stop(fleet.Errorf(fleet.KindTimeout, "there was no progress within %s", h.step))
	})
	defer timer.Stop()
	return h.bounded(moving, what, func() error { return do(func() { timer.Reset(h.step) }) })
}

// isEnding reports whether err shows that the connection ends. The users of a channel learn of it a
// moment before the library refuses to open another one, which it would then never finish.
func isEnding(err error) bool {
	return errors.Is(err, errNoExit) || errors.Is(err, io.EOF) || errors.Is(err, sftp.ErrSSHFxConnectionLost)
}

// settled waits for an event that is due, and reports whether it came within the grace.
func settled(event <-chan struct{}) bool {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-event:
		return true
	case <-timer.C:
		return false
	}
}

func classify(what string, err error) error {
	_, exited := errors.AsType[*ExitError](err)
	_, classified := errors.AsType[*fleet.Error](err)
	switch {
	case err == nil:
		return nil
	case exited, classified:
		return fmt.Errorf("%s: %w", what, err)
	}
	return fleet.Errorf(fleet.KindTemporary, "%s: %w", what, said{err})
}
