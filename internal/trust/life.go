package trust

import (
	"context"
	"sync"
)

// Life ends once, with one cause, and takes with it whatever runs under Guard. Safe for concurrent
// use.
type Life struct {
	over context.Context //nolint:containedctx // done when the life has ended
	end  context.CancelCauseFunc

	mu     sync.Mutex
	guards map[context.Context]context.CancelCauseFunc
}

// NewLife begins a life. It has the values of ctx, and cannot outlast it.
func NewLife(ctx context.Context) *Life {
	l := &Life{guards: make(map[context.Context]context.CancelCauseFunc)}
	l.over, l.end = context.WithCancelCause(ctx)
	return l
}

// End ends the life. When it returns, every context from Guard is done, with the cause. It does
// nothing to a life that has ended: only the first cause counts.
func (l *Life) End(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(cause)
	for _, cancel := range l.guards {
		cancel(cause)
	}
	l.guards = nil
}

// Guard returns ctx, cancelled when the life ends, with the cause of that. The caller calls the
// function when it no longer needs the context.
func (l *Life) Guard(ctx context.Context) (context.Context, context.CancelFunc) {
	guarded, cancel := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over.Err() != nil {
		cancel(context.Cause(l.over))
	} else {
		l.guards[guarded] = cancel
	}
	return guarded, func() {
		l.mu.Lock()
		delete(l.guards, guarded)
		l.mu.Unlock()
		cancel(context.Canceled)
	}
}
