package static

import (
	"context"

	"github.com/ironherd/ironherd/internal/fleet"
)

// flight is one reading of a list. It has a context of its own: who began it may give up before the
// others.
type flight struct {
	done chan struct{}
	// Set before done is closed.
	says  *list
	fault error

	// Of a list behind a URL, waiting counts those who wait. The last one who gives up cancels it.
	waiting int
	cancel  context.CancelFunc
	// slow: somebody's patience was over. It goes on though nobody waits.
	slow bool
}

// wait returns what the reading says. what is what one who gives up was waiting for.
func (f *flight) wait(ctx context.Context, what string) (*list, error) {
	select {
	case <-f.done:
		return f.says, f.fault
	case <-ctx.Done():
		return nil, &fleet.Error{Kind: fleet.KindTimeout, Message: what, Err: fleet.ContextError(ctx)}
	}
}
