package rehearsal

import (
	"context"

	"github.com/ironherd/ironherd/internal/provider"
)

// mayCreate returns when the request may be sent, or why it may not.
func (s *source) mayCreate(ctx context.Context, request provider.CreateRequest) error {
	for {
		err := request.BeforeCall(ctx)
		wait, off := provider.PutOffBy(err)
		if !off {
			return err
		}
		if s.world.park(wait); s.world.current.owner.dead {
			return errDead
		}
	}
}
