package resources

import (
	"context"
	"sync"
	"sync/atomic"
)

// parallel is how many objects are worked on at a time.
const parallel = 8

// each calls work with every element, a few at a time. After an error it begins no more, and waits
// for those that it has begun.
func each[T any](ctx context.Context, all []T, work func(context.Context, T) error) error {
	var (
		wg      sync.WaitGroup
		next    atomic.Int64
		stopped atomic.Bool
		once    sync.Once
		first   error
	)
	for range min(parallel, len(all)) {
		wg.Go(func() {
			for n := next.Add(1) - 1; int(n) < len(all) && ctx.Err() == nil && !stopped.Load(); n = next.Add(1) - 1 {
				if err := work(ctx, all[n]); err != nil {
					once.Do(func() { first = err })
					stopped.Store(true)
				}
			}
		})
	}
	wg.Wait()
	if first == nil && ctx.Err() != nil {
		first = context.Cause(ctx)
	}
	return first
}
