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
	// questionsAtATime is how many questions that ask the database are answered at a time, with the
	// plans for several machines that are made, and ofOneShare how many of them may be of one share.
	// With the one that the page may ask for all of its viewers there are fewer than the embedded
	// database has readers, so that loops and agents find one that is free.
	questionsAtATime = 2
	ofOneShare       = 1
	// turnPatience is how long a question, or a plan, waits for its turn.
	turnPatience = 10 * time.Second
)

var (
	errBusy = &fleet.Error{
		Kind: fleet.KindThrottled, RetryAfter: turnPatience,
		Message: "too many questions are asked at the same time, and this one has waited for its turn in vain: ask again",
	}
	errBusyPlanning = &fleet.Error{
		Kind: fleet.KindThrottled, RetryAfter: turnPatience,
		Message: "too many plans for several machines are made at the same time, and this one has waited for its turn in vain: nothing was done; ask again, " +
			"or name one machine, which waits for no turn",
	}
)

// share is whose turns are counted together: those of what an actor asks for, of one kind.
type share struct {
	actor string
	kind  kind
}

// kind tells apart what does not wait for each other: a person and a script of theirs may be one
// actor.
type kind int

const (
	question kind = iota
	// planning is to make a plan for several machines.
	planning
	// stopping is planning where the plan calls something off, or keeps it away. Whoever floods with
	// plans is to be stopped by the same person.
	stopping
)

// stops are the verbs whose plans are made under stopping.
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
	if actor == server.PageActor {
		patient, cancel := context.WithTimeoutCause(ctx, turnPatience, errBusy)
		defer cancel()
		return s.page.Enter(patient)
	}
	return s.enterShare(ctx, share{actor, question}, errBusy)
}

// enterPlanning waits for the turn of making a plan, until leave is called. Carrying it out is not
// to be part of that turn: it may last for minutes. One machine that is named costs what a look at
// it does, so such a plan waits for none. A selector may read all machines, and each of several
// that are named is read whole.
func (s *Service) enterPlanning(ctx context.Context, actor string, req *fleetv1.CreatePlanRequest) (leave func(), err error) {
	if !selects(req) && len(req.GetMachines()) <= 1 {
		return func() {}, nil
	}
	of := share{actor, planning}
	if slices.Contains(stops, fleet.Verb(req.GetVerb())) {
		of.kind = stopping
	}
	return s.enterShare(ctx, of, errBusyPlanning)
}

// enterShare waits for a turn of a share, for as long as one waits. Then the error is busy.
func (s *Service) enterShare(ctx context.Context, of share, busy error) (leave func(), err error) {
	patient, cancel := context.WithTimeoutCause(ctx, turnPatience, busy)
	defer cancel()
	leave, err = s.turns.Enter(patient, of)
	if errors.Is(err, busy) {
		server.CountRefusal(ctx, server.RefusedBusy)
	}
	return leave, err
}
