package live

import (
	"context"
	"fmt"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
)

// Parallel asks questions side by side and returns the first failure; it cancels the others then. A
// question that panics has failed: whoever answers may run in this process, and a page must not end
// it.
func Parallel(ctx context.Context, questions ...func(ctx context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, ask := range questions {
		group.Go(func() (err error) {
			defer func() {
				if v := recover(); v != nil {
					err = &panicError{value: fmt.Sprint(v), stack: string(debug.Stack())}
				}
			}()
			return ask(ctx)
		})
	}
	return group.Wait()
}

// panicError is a panic as an error. Its text is for the page; value and stack are for the log.
type panicError struct{ value, stack string }

func (*panicError) Error() string { return "something failed in the control plane; its log says what" }
