package operations

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// errRestored says that a call waits, because the database looks restored.
var errRestored = fleet.Errorf(fleet.KindConflict, "it waits for `ironherd db accept-restore`")

// unlessRestored returns a context for a call, which may wait for its turn. It has the call fail
// with errRestored, and nothing sent, where the database looks restored by then (rule 11).
func (o operation) unlessRestored(ctx context.Context) context.Context {
	return provider.WithBeforeFirstSend(ctx, func(ctx context.Context) error {
		env, err := o.db.Environment(ctx)
		if err != nil {
			return fmt.Errorf("read whether the database looks restored: %w", err)
		}
		if env.Restored != "" {
			return fmt.Errorf("the database looks restored or copied (%s): %w", env.Restored, errRestored)
		}
		return nil
	})
}

// handBack is the outcome of an attempt that waits, of which nothing was sent. Nothing has failed.
func (o operation) handBack(err error) shepherd.Outcome {
	return shepherd.Cancel{Reason: shepherd.Cause(err), Changes: []bmdb.Change{o.undo()}}
}

// waits reports whether a call was not sent because the database looks restored.
func waits(err error) bool { return errors.Is(err, errRestored) && provider.NothingSent(err) }
