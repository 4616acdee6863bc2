package provisioner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// tally counts what a pass did.
type tally struct {
	created, adopted, failed, open int
	// waiting is capacity beyond the chunk, full what max_machines does not allow.
	waiting, full int
}

// creation is how one creation ended.
type creation int

const (
	created creation = iota
	failed
	// unanswered: a request was made, and nobody knows what became of it.
	unanswered
)

func (t *tally) count(c creation) {
	switch c {
	case created:
		t.created++
	case failed:
		t.failed++
	case unanswered:
		t.open++
	}
}

// create is the chunk of a pass.
func (p *pass) create(ctx context.Context) error {
	intents := p.survey.retry
	room := p.source.Config.ChunkSize
	if len(intents) > room {
		p.tally.waiting = len(intents) - room
		intents = intents[:room]
	}
	opened, err := p.open(ctx, room-len(intents), len(intents))
	if err != nil {
		return err
	}
	return p.createAll(ctx, append(intents[:len(intents):len(intents)], opened...))
}

// open opens up to room intents on free capacity, in one commit. ahead is how many creations come
// before them.
func (p *pass) open(ctx context.Context, room, ahead int) ([]fleet.Intent, error) {
	free := p.survey.free
	if len(free) > room {
		p.tally.waiting += len(free) - room
		free = free[:room]
	}
	if len(free) == 0 {
		return nil, nil
	}
	wanted := make([]bmdb.NewIntent, len(free))
	for i, capacity := range free {
		wanted[i] = bmdb.NewIntent{
			Capacity: capacity, Machine: fleet.NewMachineID(), Token: fleet.NewToken(), PlannedAt: p.turn(ahead + i), Install: p.source.Install,
		}
	}
	var opened []fleet.Intent
	if err := p.work.Note(ctx, bmdb.OpenIntents(p.source.Config.MaxMachines, wanted, &opened)); err != nil {
		return nil, fmt.Errorf("open intents: %w", err)
	}
	p.tally.full = len(wanted) - len(opened)
	return opened, nil
}

// turn is when the creation with n others before it is about to begin.
func (p *pass) turn(n int) time.Time {
	short := float64(n+1) - p.source.limiter.Tokens()
	return p.view.Now.Add(time.Duration(max(0, short) * float64(p.source.Config.CreateRate.Every)))
}

// createAll creates in order, paced, and goes on after one that failed.
func (p *pass) createAll(ctx context.Context, intents []fleet.Intent) error {
	var mu sync.Mutex // of the tally
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(p.source.Config.CreateParallelism)
	for _, intent := range intents {
		if err := p.source.limiter.Wait(working); err != nil {
			break
		}
		group.Go(func() error {
			result, err := p.createOne(working, intent)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			p.tally.count(result)
			return nil
		})
	}
	err := group.Wait()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// createOne makes one machine. An error means that the pass cannot go on.
func (p *pass) createOne(ctx context.Context, intent fleet.Intent) (creation, error) {
	calls := 0
	entry, failure := p.source.Provider.Create(ctx, provider.CreateRequest{
		Capacity: intent.Capacity, Token: intent.Token, Machine: intent.Machine,
		BeforeCall: func(ctx context.Context) error {
			if err := p.work.Note(ctx, bmdb.IntentCalled(intent.Machine)); err != nil {
				return fmt.Errorf("record the call: %w", err)
			}
			calls++
			return nil
		},
	})
	if failure == nil && entry.Invalid != "" {
		failure = fleet.Errorf(fleet.KindUnknown, "the provider's answer cannot be used: %s", entry.Invalid)
	}
	switch {
	case failure == nil:
		return created, p.recordCreated(ctx, intent, entry)
	case ctx.Err() != nil:
		// the intent is open; the next pass finds out
		return failed, fmt.Errorf("create: %w", context.Cause(ctx))
	case errors.Is(failure, fleet.ErrLeaseLost):
		return failed, failure
	}
	return p.recordFailure(ctx, intent, calls, failure)
}

func (p *pass) recordCreated(ctx context.Context, intent fleet.Intent, entry provider.Entry) error {
	now, err := p.db.Now(ctx)
	if err == nil {
		err = p.work.Note(ctx, bmdb.CloseIntentProvided(intent.Machine, entry.ID, entry.Provided(nil, now)))
	}
	if err != nil {
		return fmt.Errorf("record the machine: %w", err)
	}
	p.logger.InfoContext(ctx, "machine created",
		slog.String("machine", string(intent.Machine)), slog.String("provider_id", string(entry.ID)))
	return nil
}

// recordFailure records what a failed creation means for its intent and its capacity. calls is how
// many calls that could create something it made.
func (p *pass) recordFailure(ctx context.Context, intent fleet.Intent, calls int, failure error) (creation, error) {
	p.logger.WarnContext(ctx, "creation failed", slog.String("machine", string(intent.Machine)),
		slog.String("capacity", string(intent.Capacity)), slog.Any("err", failure))
	cause := shepherd.Cause(failure)
	changes := []bmdb.Change{bmdb.RecordMachineHistory(intent.Machine, event(calls, failure),
		fmt.Sprintf("capacity %s: %s", intent.Capacity, cause))}
	result, open := failed, intent.Calls-intent.Rejected
	switch {
	case !provider.MayHaveCreated(failure):
		for range calls {
			changes = append(changes, bmdb.IntentAnswered(intent.Machine))
		}
		if open == 0 && blames(failure) {
			changes = append(changes,
				bmdb.CloseIntentRejected(intent.Machine, cause),
				bmdb.SetPenalty(intent.Capacity, p.source.Config.Penalty, cause))
		}
	case calls > 0:
		result = unanswered
	}
	if err := p.work.Note(ctx, changes...); err != nil {
		return result, fmt.Errorf("record the failure: %w", err)
	}
	return result, nil
}

// event returns what history calls a failed creation that made so many calls.
func event(calls int, failure error) fleet.Event {
	switch {
	case calls == 0:
		return fleet.EventCreationNotBegun
	case provider.MayHaveCreated(failure):
		return fleet.EventCreationUnanswered
	}
	return fleet.EventCreationRefused
}

// blames says whether a definite failure is about the piece of capacity. If not (throttled, not
// allowed), the same capacity is tried again by the next pass.
func blames(failure error) bool {
	switch fleet.KindOf(failure) {
	case fleet.KindNoCapacity, fleet.KindRaceLost, fleet.KindConflict, fleet.KindInvalid, fleet.KindNotFound, fleet.KindUnsupported:
		return true
	}
	return false
}
