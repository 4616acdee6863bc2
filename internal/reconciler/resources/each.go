package resources

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// parallel is how many objects are worked on at a time.
const parallel = 8

// each calls work with every element, a few at a time. After an error it begins no more, and waits
// for those that it has begun.
func each[T any](ctx context.Context, all []T, work func(context.Context, T) error) error {
	var group errgroup.Group // without a context: what has begun is not broken off
	group.SetLimit(parallel)
	var failed atomic.Bool
	for _, one := range all {
		group.Go(func() error {
			if !failed.Load() && ctx.Err() == nil {
				if err := work(ctx, one); err != nil {
					failed.Store(true)
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}
