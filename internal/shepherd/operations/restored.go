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

// lastLook returns a context for a call, which may wait for its turn. It has the call fail, and
// nothing sent, with errRestored where the database looks restored by then (rule 11), and with
// errUnwanted where the policy has asked for it, and does not want it by then (rule 8).
func (o *operation) lastLook(ctx context.Context) context.Context {
	return provider.WithBeforeFirstSend(ctx, func(ctx context.Context) error {
		env, err := o.db.Environment(ctx)
		if err != nil {
			return fmt.Errorf("read whether the database looks restored: %w", err)
		}
		if env.Restored != "" {
			return fmt.Errorf("the database looks restored or copied (%s): %w", env.Restored, errRestored)
		}
		return o.stillWanted(ctx)
	})
}

// handBack is the outcome of an attempt that waits, of which nothing was sent. Nothing has failed.
func (o *operation) handBack(err error) shepherd.Outcome {
	return shepherd.Cancel{Reason: shepherd.Cause(err), Changes: []bmdb.Change{o.undo()}}
}

// waits reports whether a call was not sent because the database looks restored, or because the
// policy does not want it now.
func waits(err error) bool {
	return (errors.Is(err, errRestored) || errors.Is(err, errUnwanted)) && provider.NothingSent(err)
}
