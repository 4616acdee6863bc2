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
	next     atomic.Int64

	mu      sync.Mutex
	targets []string
	// held are the directions in which nothing passes. turn says that the next word of a server
	// holds what its clients say to it.
	held   map[Way]*hold
	turn   bool
	closed bool
}

// hold is one time in which nothing passes.
type hold struct {
	over chan struct{}
	// lost is written before over is closed: what was held does not pass then either.
	lost bool
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
	b := &Balancer{listener: listener, held: make(map[Way]*hold)}
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

// Hold keeps what comes from now on in the balancer, until Let or Drop.
func (b *Balancer) Hold(way Way) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begin(way)
}

// begin begins a hold; the caller has the lock.
func (b *Balancer) begin(way Way) {
	if b.held[way] == nil && !b.closed {
		b.held[way] = &hold{over: make(chan struct{})}
	}
}

// Turn lets clients speak to their servers until a server speaks. Before a client hears it, what
// clients say is held again. It changes nothing while an earlier one lasts.
func (b *Balancer) Turn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.turn {
		b.end(ToServer, false)
		b.turn = true
	}
}

// Let ends a Hold.
func (b *Balancer) Let(way Way) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(way, false)
}

// Drop ends a Hold. What was held is lost, and its connection ends.
func (b *Balancer) Drop(way Way) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(way, true)
}

// end ends a hold, and a turn with it; the caller has the lock.
func (b *Balancer) end(way Way, lost bool) {
	if way == ToServer {
		b.turn = false
	}
	if h := b.held[way]; h != nil {
		h.lost = lost
		close(h.over)
		delete(b.held, way)
	}
}

// pass returns true when something may pass, and false when it is lost.
func (b *Balancer) pass(way Way) bool {
	for {
		b.mu.Lock()
		h := b.held[way]
		if h == nil && way == ToClient && b.turn {
			b.turn = false
			b.begin(ToServer)
		}
		b.mu.Unlock()
		if h == nil {
			return true
		}
		if <-h.over; h.lost {
			return false
		}
	}
}

// forward copies from one end to the other.
func (b *Balancer) forward(way Way, to io.Writer, from io.Reader) {
	for buffer := make([]byte, 32<<10); ; {
		n, err := from.Read(buffer)
		if n > 0 && !b.pass(way) {
			return
		}
		if n > 0 {
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
	first := int(b.next.Add(1))
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
