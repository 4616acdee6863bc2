// Package watch has values that are watched: whoever watches is given the latest value first, and
// then what it becomes.
//
// The contract, held for every kind by watchtest:
//
//   - The first thing received is the value as it is, as soon as there is one. Then comes every
//     change, coalesced: who is slow misses what was between, never what came last.
//   - A value that was received is never followed by an older one.
//   - The channel is closed when the context has ended, and only then. Whatever stands in the way
//     meanwhile (an etcd that does not answer) delays, and is told to the value's logger.
//   - Any number of watchers, each at its own pace; none can hold up another one, or the writer.
package watch

import (
	"context"
	"sync"
)

// Value is what can be watched. Safe for concurrent use. What is received is shared: nobody may
// change it.
type Value[T any] interface {
	// Watch returns a channel as the package says. It holds resources until ctx ends.
	Watch(ctx context.Context) <-chan T
}

// Memory is a value in memory. The zero value is one that has not been set yet. It must not be
// copied.
type Memory[T any] struct {
	mu      sync.Mutex
	value   T
	set     bool
	changed chan struct{} // closed at the next Set; nil when nobody waits
}

// Set changes the value. It never waits for a watcher.
func (m *Memory[T]) Set(value T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value, m.set = value, true
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// Get returns the value; ok is false when it has not been set yet.
func (m *Memory[T]) Get() (value T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.value, m.set
}

// next returns the value and what is closed when it is no longer the latest.
func (m *Memory[T]) next() (value T, ok bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.value, m.set, m.changed
}

// Watch implements Value.
func (m *Memory[T]) Watch(ctx context.Context) <-chan T {
	out := make(chan T)
	go func() {
		defer close(out)
		for {
			value, ok, changed := m.next()
			if ok {
				select {
				case out <- value:
				case <-changed:
					continue
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
