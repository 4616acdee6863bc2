package etcdtest

import (
	"context"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Link forwards connections to a member until it is cut, or hangs.
type Link struct {
	listener net.Listener
	to       string
	running  sync.WaitGroup

	mu    sync.Mutex
	off   bool
	delay time.Duration
	conns []net.Conn
	// hanging is closed when what hangs goes on; nil: nothing hangs.
	hanging chan struct{}
}

// NewLink returns a link to the client URL of a member. It ends with the test.
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
	ctx := t.Context()
	p.running.Go(func() { p.serve(ctx) })
	t.Cleanup(func() {
		_ = ln.Close()
		p.Cut()
		p.running.Wait()
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
		p.running.Go(func() { p.pass(in, out, p.answersLate) })
		p.running.Go(func() { p.pass(out, in, func() time.Duration { return 0 }) })
	}
}

// parcel is data that was read, and when it may be forwarded.
type parcel struct {
	data []byte
	due  time.Time
}

// pass copies until one end is closed. The delay of one parcel does not add to that of the next.
func (p *Link) pass(to, from net.Conn, late func() time.Duration) {
	way := make(chan parcel, 1024)
	go func() {
		defer close(way)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			way <- parcel{buffer[:n], time.Now().Add(late())}
		}
	}()
	var err error
	for item := range way {
		if wait := time.Until(item.due); wait > 0 && err == nil {
			<-time.After(wait)
		}
		p.goesOn()
		if err == nil {
			if _, err = to.Write(item.data); err != nil {
				_ = from.Close() // ends the reader
			}
		}
	}
	_, _ = to.Close(), from.Close()
}

func (p *Link) answersLate() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

// Delay delays the member's answers.
func (p *Link) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Hang holds back everything, in both directions, and tells nobody: connections stay, and new ones
// are accepted. Restore delivers what was held back.
func (p *Link) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hanging == nil {
		p.hanging = make(chan struct{})
	}
}

// goesOn returns when the link does not hang.
func (p *Link) goesOn() {
	p.mu.Lock()
	hanging := p.hanging
	p.mu.Unlock()
	if hanging != nil {
		<-hanging
	}
}

// release ends a Hang. The caller has locked.
func (p *Link) release() {
	if p.hanging != nil {
		close(p.hanging)
		p.hanging = nil
	}
}

// Cut closes its connections and refuses new ones.
func (p *Link) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
	p.release()
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
	p.release()
}
