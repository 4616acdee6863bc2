package fleetapi

import (
	"context"
	"errors"
	"slices"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/token"
)

const (
	// questionsAtATime is how many questions that ask the database are answered at a time, and
	// ofOneActor how many of them may be of one actor. With the one that the page may ask for all of
	// its viewers, and with plansAtATime, twice, there are fewer than the embedded database has
	// readers, so that loops and agents find one that is free.
	questionsAtATime = 2
	ofOneActor       = 1
	// plansAtATime is how many plans for several machines are made at a time, and of those that stop
	// something once more so many.
	plansAtATime = 1
	// turnPatience is how long a question, or a plan, waits for its turn.
	turnPatience = 10 * time.Second
)

var (
	errBusy = &fleet.Error{
		Kind: fleet.KindThrottled, RetryAfter: turnPatience,
		Message: "other questions were so many, or took so long, that this one has waited ten seconds for its turn in vain: ask again",
	}
	errBusyPlanning = &fleet.Error{
		Kind: fleet.KindThrottled, RetryAfter: turnPatience,
		Message: "other plans for several machines were so many, or took so long, that this one has waited ten seconds for its turn in vain: no plan was made; ask again",
	}
)

// turns are those of all actors. What has turns of its own waits for nothing else.
type turns struct {
	questions, plans, stops, page *server.Turns[string] // each by actor
}

func newTurns() turns {
	return turns{
		questions: server.NewTurns[string](questionsAtATime, ofOneActor), page: server.NewTurns[string](1, 1),
		plans: server.NewTurns[string](plansAtATime, plansAtATime), stops: server.NewTurns[string](plansAtATime, plansAtATime),
	}
}

// stops are the verbs whose plans call something off, or keep it away. These have turns of their
// own: whoever floods with plans, or asks for something slow, is to be stopped meanwhile.
var stops = []fleet.Verb{fleet.VerbWithdraw, fleet.VerbCancelInstall, fleet.VerbQuarantine, fleet.VerbBeginMaintenance}

// enter waits for the turn of a question, until leave is called. What changes something waits for
// none. It reads one machine or one provider at a time, as ConfirmPlan does, which lets others
// write after each of its machines: hundreds of such calls keep agents waiting for less than a
// second. So a stop gets through whatever else is asked. Only to make a plan may read much of the
// fleet: see enterPlanning. What the page asks for all of its viewers has a turn of its own.
func (s *Service) enter(ctx context.Context, procedure, actor string) (leave func(), err error) {
	if neededBy(procedure).Covers(token.Operator) {
		return func() {}, nil
	}
	of := s.turns.questions
	if actor == server.PageActor {
		of = s.turns.page
	}
	return enterTurn(ctx, of, actor, errBusy)
}

// enterPlanning waits for the turn of making a plan, until leave is called. Carrying it out is not
// to be part of that turn: it may last for minutes. One machine that is named costs what a look at
// it does, so such a plan waits for none. A selector may read all machines, and each of several
// that are named is read whole.
func (s *Service) enterPlanning(ctx context.Context, actor string, req *fleetv1.CreatePlanRequest) (leave func(), err error) {
	if !selects(req) && len(req.GetMachines()) <= 1 {
		return func() {}, nil
	}
	of := s.turns.plans
	if slices.Contains(stops, fleet.Verb(req.GetVerb())) {
		of = s.turns.stops
	}
	return enterTurn(ctx, of, actor, errBusyPlanning)
}

// enterTurn waits for a turn of an actor, for as long as one waits. Then the error is busy.
func enterTurn(ctx context.Context, of *server.Turns[string], actor string, busy error) (leave func(), err error) {
	patient, cancel := context.WithTimeoutCause(ctx, turnPatience, busy)
	defer cancel()
	leave, err = of.Enter(patient, actor)
	if errors.Is(err, busy) {
		server.CountRefusal(ctx, server.RefusedBusy)
	}
	return leave, err
}
