package process

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Balancer is one address for several servers. It forwards each connection to a server that
// answers. A test can hold what is on its way.
type Balancer struct {
	listener net.Listener
	stop     context.CancelFunc
	serving  sync.WaitGroup
	turn     atomic.Int64

	mu      sync.Mutex
	targets []string
	// held are the directions in which nothing passes, until free is closed; after Close all does.
	held   map[Way]chan struct{}
	closed bool
	passed map[Way]int64
}

// Way is a direction through a balancer.
type Way string

// The directions.
const (
	ToServer Way = "to the server"
	ToClient Way = "to the client"
)

// NewBalancer listens on loopback, until it is closed.
func NewBalancer(ctx context.Context) (*Balancer, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &Balancer{listener: listener, held: make(map[Way]chan struct{}), passed: make(map[Way]int64)}
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

// Hold keeps what comes from now on in the balancer, until Let.
func (b *Balancer) Hold(way Way) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[way] == nil && !b.closed {
		b.held[way] = make(chan struct{})
	}
}

// Let ends a Hold.
func (b *Balancer) Let(way Way) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if held := b.held[way]; held != nil {
		close(held)
		delete(b.held, way)
	}
}

// Passed is how many bytes have passed, those that are about to included.
func (b *Balancer) Passed(way Way) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.passed[way]
}

// pass returns when so many bytes may pass.
func (b *Balancer) pass(way Way, bytes int) {
	for {
		b.mu.Lock()
		held := b.held[way]
		if held == nil {
			b.passed[way] += int64(bytes)
		}
		b.mu.Unlock()
		if held == nil {
			return
		}
		<-held
	}
}

// forward copies from one end to the other.
func (b *Balancer) forward(way Way, to io.Writer, from io.Reader) {
	for buffer := make([]byte, 32<<10); ; {
		n, err := from.Read(buffer)
		if n > 0 {
			b.pass(way, n)
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// Close ends all connections.
func (b *Balancer) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.Let(ToServer)
	b.Let(ToClient)
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
		copying.Go(func() { b.forward(ToServer, server, client); _ = server.Close() })
		b.forward(ToClient, client, server)
		_ = client.Close()
		copying.Wait()
		return
	}
}
