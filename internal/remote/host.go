package remote

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Host is one connection to one host. Its methods may be called concurrently; the end of the context of any of them closes the
// connection for all.
type Host struct {
	client  *ssh.Client
	address netip.AddrPort
	hostKey HostKey
	logger  *slog.Logger

	files sync.Mutex
	sftp  *sftp.Client
}

func newHost(client *ssh.Client, address netip.AddrPort, key HostKey, logger *slog.Logger) *Host {
	return &Host{client: client, address: address, hostKey: key, logger: logger}
}

// HostKey returns the verified key of the host, and why it is trusted.
func (h *Host) HostKey() HostKey { return h.hostKey }

// Close ends the connection and everything that uses it.
func (h *Host) Close() error {
	if err := h.client.Close(); err != nil {
		return fleet.Errorf(fleet.KindTemporary, "close SSH connection: %w", err)
	}
	return nil
}

// bounded runs do, and closes the connection when ctx ends first: nothing less ends an operation on a host that hangs. The returned
// error has a kind.
func (h *Host) bounded(ctx context.Context, what string, do func() error) error {
	if ctx.Err() != nil {
		return ended(ctx, what)
	}
	stop := context.AfterFunc(ctx, func() { h.client.Close() })
	err := do()
	if !stop() && ctx.Err() != nil {
		return ended(ctx, what)
	}
	var exit *ExitError
	var classified *fleet.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &classified):
		return err
	case errors.As(err, &exit):
		return fleet.Errorf(fleet.KindUnknown, "%s: %w", what, err)
	}
	return fleet.Errorf(fleet.KindTemporary, "%s: %w", what, err)
}

// fileClient returns the SFTP session of this connection, opening it when first needed.
func (h *Host) fileClient() (*sftp.Client, error) {
	h.files.Lock()
	defer h.files.Unlock()
	if h.sftp != nil {
		return h.sftp, nil
	}
	client, err := sftp.NewClient(h.client, sftp.UseConcurrentWrites(true))
	if err != nil {
		return nil, fleet.Errorf(fleet.KindTemporary, "open SFTP session: %w", err)
	}
	h.sftp = client
	return client, nil
}
