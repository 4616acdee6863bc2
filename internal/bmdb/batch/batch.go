// Package batch commits together what comes while something else is being committed.
//
// Whoever finds nobody at work commits for itself at once: one that is alone waits for nobody.
// Those who come meanwhile wait, and the first of them then commits for all. A member of a batch
// may be left: it was not committed with the others, for whatever reason, and is to be dealt with
// alone by the one who brought it, outside of the queue. So nobody waits for what only one of them
// needs.
package batch

import (
	"context"
	"fmt"
	"sync"
)

// Queue is where those wait who want to be committed. The zero value is ready. Safe for concurrent
// use.
type Queue[T any] struct {
	mu      sync.Mutex
	busy    bool
	waiting []*member[T]
}

type member[T any] struct {
	item T
	done bool
	// turn gets the batch that this member is to commit, or is closed when its batch is over.
	turn chan []*member[T]
}

// Do commits item, with others or alone, and returns whether it was; an item that was not is for
// the caller to deal with. commit gets at most limit items and returns for each whether it was
// committed. It gets the context of one of the callers, without its end. Do returns an error when
// ctx ends while it waits: then nobody has begun to commit the item.
func (q *Queue[T]) Do(ctx context.Context, item T, limit int, commit func(ctx context.Context, items []T) []bool) (committed bool, err error) {
	m := &member[T]{item: item, turn: make(chan []*member[T], 1)}
	batch := []*member[T]{m}
	if !q.first(m) {
		var lead bool
		select {
		case batch, lead = <-m.turn:
		case <-ctx.Done():
			if q.withdraw(m) {
				return false, fmt.Errorf("wait for others to be committed: %w", context.Cause(ctx))
			}
			batch, lead = <-m.turn
		}
		if !lead {
			return m.done, nil
		}
	}
	defer q.next(limit)
	defer func() {
		for _, other := range batch[1:] {
			close(other.turn)
		}
	}()
	items := make([]T, len(batch))
	for i, other := range batch {
		items[i] = other.item
	}
	for i, done := range commit(context.WithoutCancel(ctx), items) {
		batch[i].done = done
	}
	return m.done, nil
}

// first says whether nobody commits at the moment, and makes the caller the one who does; else the
// caller waits.
func (q *Queue[T]) first(m *member[T]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.busy {
		q.busy = true
		return true
	}
	q.waiting = append(q.waiting, m)
	return false
}

// next hands over to the first of those who wait, with those who are to be committed with it.
func (q *Queue[T]) next(limit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), limit)
	if n == 0 {
		q.busy = false
		return
	}
	batch := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	batch[0].turn <- batch
}

// withdraw takes out one who gave up waiting; false: it is in a batch already.
func (q *Queue[T]) withdraw(m *member[T]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, other := range q.waiting {
		if other == m {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			return true
		}
	}
	return false
}
