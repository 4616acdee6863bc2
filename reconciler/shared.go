package reconciler

import (
	"context"
	"sync"
)

// sharedAnswer lets those who wait at the same time share an answer. Everybody gets one to a
// question that began after he asked: so one question is under way, and at most one waits.
type sharedAnswer[T any] struct {
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
func (q *sharedAnswer[T]) ask(ctx context.Context) (answer T, ok bool) {
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
func (q *sharedAnswer[T]) run() {
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
