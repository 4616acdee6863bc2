package fleetapi

import (
	"context"
	"errors"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/token"
)

const (
	// answeredAtATime is how many calls that ask the database are answered at a time, and ofOneActor
	// how many of them may be the questions, or the changes, of one actor. There are fewer than the
	// embedded database has readers, so that loops and agents find one that is free.
	answeredAtATime = 3
	ofOneActor      = 2
	// turnPatience is how long a call waits for its turn.
	turnPatience = 10 * time.Second
)

// owner is who has turns: what an actor changes does not wait for what the actor asks.
type owner struct {
	actor   string
	changes bool
}

var errBusy = &fleet.Error{
	Kind: fleet.KindThrottled, RetryAfter: turnPatience,
	Message: "too many calls are under way, and this one has waited for its turn in vain: nothing was done, so call again",
}

// enter waits for the turn of a call, until leave is called.
func (s *Service) enter(ctx context.Context, procedure, actor string) (leave func(), err error) {
	patient, cancel := context.WithTimeoutCause(ctx, turnPatience, errBusy)
	defer cancel()
	leave, err = s.turns.Enter(patient, owner{actor: actor, changes: neededBy(procedure).Covers(token.Operator)})
	if errors.Is(err, errBusy) {
		server.CountRefusal(ctx, server.RefusedBusy)
	}
	return leave, err
}
