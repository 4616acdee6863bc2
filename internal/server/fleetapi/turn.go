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
	// questionsAtATime is how many questions that ask the database are answered at a time, and
	// ofOneActor how many of them may be of one actor. With the one that the page may ask for all of
	// its viewers there are fewer than the embedded database has readers, so that loops and agents
	// find one that is free.
	questionsAtATime = 2
	ofOneActor       = 1
	// turnPatience is how long a question waits for its turn.
	turnPatience = 10 * time.Second
)

var errBusy = &fleet.Error{
	Kind: fleet.KindThrottled, RetryAfter: turnPatience,
	Message: "too many questions are asked at the same time, and this one has waited for its turn in vain: ask again",
}

// enter waits for the turn of a question, until leave is called. What changes something waits for
// none: few may ask for it, and it may last for as long as a plan is carried out. What the page
// asks for all of its viewers has a turn of its own.
func (s *Service) enter(ctx context.Context, procedure, actor string) (leave func(), err error) {
	if neededBy(procedure).Covers(token.Operator) {
		return func() {}, nil
	}
	patient, cancel := context.WithTimeoutCause(ctx, turnPatience, errBusy)
	defer cancel()
	if actor == server.PageActor {
		return s.page.Enter(patient)
	}
	leave, err = s.turns.Enter(patient, actor)
	if errors.Is(err, errBusy) {
		server.CountRefusal(ctx, server.RefusedBusy)
	}
	return leave, err
}
