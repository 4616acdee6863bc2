package etcdtest

import (
	"context"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Link passes connections on to a member until it is cut.
type Link struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	off   bool
	delay time.Duration
	conns []net.Conn
}

// NewLink returns a link to the client URL of a member; it ends with the test.
func NewLink(t *testing.T, endpoint string) *Link {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Link{listener: ln, to: u.Host}
	go p.serve(t.Context())
	t.Cleanup(func() {
		_ = ln.Close()
		p.Cut()
	})
	return p
}

// URL is the client URL of the member by way of the link.
func (p *Link) URL() string { return "http://" + p.listener.Addr().String() }

func (p *Link) serve(ctx context.Context) {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := new(net.Dialer).DialContext(ctx, "tcp", p.to)
		p.mu.Lock()
		if p.off || err != nil {
			_ = in.Close()
			if out != nil {
				_ = out.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		go p.pass(in, out, p.answersLate)
		go p.pass(out, in, func() time.Duration { return 0 })
	}
}

// pass copies until an end is closed.
func (p *Link) pass(to, from net.Conn, late func() time.Duration) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if wait := late(); wait > 0 {
			<-time.After(wait)
		}
		if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

func (p *Link) answersLate() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

// Delay lets what the member answers come later.
func (p *Link) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Cut closes its connections and refuses new ones.
func (p *Link) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// Restore lets connections through again.
func (p *Link) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = false
}
