package process

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Balancer is one address for several servers. It forwards each connection to a server that
// answers.
type Balancer struct {
	listener net.Listener
	stop     context.CancelFunc
	serving  sync.WaitGroup
	mu       sync.Mutex
	targets  []string
	turn     atomic.Int64
}

// NewBalancer listens on loopback, until it is closed.
func NewBalancer(ctx context.Context) (*Balancer, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &Balancer{listener: listener}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			b.serving.Go(func() { b.serve(ctx, client) })
		}
	})
	return b, nil
}

// Address is where it listens.
func (b *Balancer) Address() string { return b.listener.Addr().String() }

// Forward adds a server.
func (b *Balancer) Forward(target string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets = append(b.targets, target)
}

// Close ends all connections.
func (b *Balancer) Close() {
	b.stop()
	_ = b.listener.Close() // nothing is lost with it
	b.serving.Wait()
}

func (b *Balancer) serve(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	b.mu.Lock()
	targets := append([]string(nil), b.targets...)
	b.mu.Unlock()
	first := int(b.turn.Add(1))
	for n := range targets {
		server, err := new(net.Dialer).DialContext(ctx, "tcp", targets[(first+n)%len(targets)])
		if err != nil {
			continue
		}
		defer func() { _ = server.Close() }()
		stop := context.AfterFunc(ctx, func() { _ = client.Close(); _ = server.Close() })
		defer stop()
		var copying sync.WaitGroup
		copying.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
		_, _ = io.Copy(client, server)
		_ = client.Close()
		copying.Wait()
		return
	}
}
