package server

import (
	"context"
	"sync"
)

// Gate lets so many in at a time, in the order in which they come.
type Gate chan struct{}

// Enter waits until the caller is in, or fails when ctx ends.
func (g Gate) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case g <- struct{}{}:
		return func() { <-g }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Turns lets few in at a time, and fewer of each owner. Whoever waits has no more than those few of
// each other owner before them, however many wait.
type Turns[K comparable] struct {
	all  Gate
	each int

	mu     sync.Mutex
	owners map[K]*turns
}

// turns is the gate of one owner. It is forgotten with the last who waits or is in.
type turns struct {
	gate  Gate
	users int
}

// NewTurns lets so many in at a time, and so many of each owner.
func NewTurns[K comparable](all, each int) *Turns[K] {
	return &Turns[K]{all: make(Gate, all), each: each, owners: map[K]*turns{}}
}

// Enter is that of Gate, for an owner.
func (t *Turns[K]) Enter(ctx context.Context, owner K) (leave func(), err error) {
	own, forget := t.of(owner)
	leaveOwn, err := own.Enter(ctx)
	if err != nil {
		forget()
		return nil, err
	}
	leaveAll, err := t.all.Enter(ctx)
	if err != nil {
		leaveOwn()
		forget()
		return nil, err
	}
	return func() {
		leaveAll()
		leaveOwn()
		forget()
	}, nil
}

// of returns the gate of an owner, to be used until forget is called.
func (t *Turns[K]) of(owner K) (own Gate, forget func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.owners[owner]
	if o == nil {
		o = &turns{gate: make(Gate, t.each)}
		t.owners[owner] = o
	}
	o.users++
	return o.gate, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if o.users--; o.users == 0 {
			delete(t.owners, owner)
		}
	}
}
