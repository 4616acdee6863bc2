package postgres_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
)

// balancer forwards connections to a server until it forgets them, as a load balancer or a pooler
// does that is started again: whoever sends on one of them then hears that it was reset.
type balancer struct {
	at, to string

	mu    sync.Mutex
	conns []net.Conn
}

func balance(t *testing.T, to string) *balancer {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{at: l.Addr().String(), to: to}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { _ = l.Close(); b.forget() })
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp", b.to)
			if err != nil {
				_ = client.Close()
				continue
			}
			b.mu.Lock()
			b.conns = append(b.conns, client, server)
			b.mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
			wg.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
		}
	})
	return b
}

// forget resets all connections.
func (b *balancer) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.(*net.TCPConn).SetLinger(0) // closing it resets it
		_ = c.Close()
	}
	b.conns = nil
}

// TestConnectionsThatAreReset: what was not even sent runs on another connection, and no caller
// hears of it.
func TestConnectionsThatAreReset(t *testing.T) {
	t.Parallel()
	at, err := url.Parse(migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	b := balance(t, at.Host)
	at.Host = b.at
	e := open(t, at.String(), postgres.Options{Silent: true})
	t.Cleanup(func() { _ = e.Close() })
	one := func(ctx context.Context, tx bmdb.Tx) error {
		_, err := tx.ExecContext(ctx, "SELECT 1")
		return err
	}
	for what, run := range map[string]func(context.Context, func(context.Context, bmdb.Tx) error) error{
		"Update": e.Update, "Extend": e.Extend, "View": e.View, "Peek": e.Peek,
	} {
		for range 3 {
			if err := run(t.Context(), one); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			b.forget()
			if err := run(t.Context(), one); err != nil {
				t.Errorf("%s after the reset: %v", what, err)
			}
		}
	}
}
