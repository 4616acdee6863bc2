package reconciler

import (
	"context"
	"net"
	"net/netip"
	"sync"
)

// places counts the connections that are open, in all and by where they come from.
type places struct {
	total, each int

	mu    sync.Mutex
	taken int
	by    map[netip.Prefix]int
}

// enter takes a place for a connection. It reports false where none is left, for anybody or for
// this source. Whoever has one gives it back by leave.
func (p *places) enter(from netip.Prefix) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.total || p.by[from] >= p.each {
		return false
	}
	p.taken++
	p.by[from]++
	return true
}

func (p *places) leave(from netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.by[from]--; p.by[from] == 0 {
		delete(p.by, from)
	}
}

// sourceOf is an IPv4 address, or the /64 of an IPv6 address: whoever has one address of it has
// all.
func sourceOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits) // the zero Prefix for the zero Addr
	return prefix
}

// questions lets those who wait at the same time share an answer. Everybody gets one to a question
// that began after he asked: so one question is under way, and at most one waits.
type questions[T any] struct {
	put func() T
	// start starts a goroutine.
	start func(func())

	mu   sync.Mutex
	busy bool
	next *question[T] // waits; nobody joins one that is under way
}

type question[T any] struct {
	done   chan struct{}
	answer T
}

// ask returns the answer; false when ctx ends before.
func (q *questions[T]) ask(ctx context.Context) (answer T, ok bool) {
	q.mu.Lock()
	mine := q.next
	if mine == nil {
		mine = &question[T]{done: make(chan struct{})}
		q.next = mine
	}
	if !q.busy {
		q.busy = true
		q.start(q.run)
	}
	q.mu.Unlock()
	select {
	case <-mine.done:
		return mine.answer, true
	case <-ctx.Done():
		return answer, false
	}
}

// run puts one question after the other until nobody waits.
func (q *questions[T]) run() {
	for {
		q.mu.Lock()
		current := q.next
		q.next = nil
		q.busy = current != nil
		q.mu.Unlock()
		if current == nil {
			return
		}
		current.answer = q.put()
		close(current.done)
	}
}
