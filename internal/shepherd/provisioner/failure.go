package provisioner

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// recordFailure records what a failed creation means for its intent and its capacity. calls counts
// the calls it made that could have created something.
//
//	what failed                               how it ends     its intent   the penalty
//	before a call, in use still (Conflict)    endNotBegun     closed ¹     at most settling_time
//	before a call, for good (final)           endNotBegun     closed ¹     as configured
//	before a call, and that may pass          endNotBegun     open ²       none
//	the request: Invalid, Unsupported         endRefused      closed ¹ ³   as configured
//	the request: Forbidden, Unauthenticated   endRefused      open         none
//	what was asked for, for good (final)      endFailed       closed ¹     as configured
//	what was asked for, and that may pass     endFailed       open         none
//	nobody knows: there is no answer          endUnanswered   open         none
//
// ¹ Where an earlier call has no answer, only as closeUnanswered does.
//
// ² Closed, with the penalty, once it lasts, and keeps other capacity from being tried.
//
// ³ The first one in a pass is held open until refusedAll has judged the pass.
func (p *pass) recordFailure(ctx context.Context, intent fleet.Intent, calls int, failure error) (creationResult, error) {
	p.logger.WarnContext(ctx, "creation failed", slog.String("machine", string(intent.Machine)),
		slog.String("capacity", string(intent.Capacity)), slog.Any("err", failure))
	cause, how, unanswered := shepherd.Cause(failure), howFailed(calls, failure), intent.Calls-intent.Rejected
	closes, penalty := final(failure), p.source.Config.Penalty
	switch how {
	case endNotBegun:
		closes = p.lasts(intent) || closes
		if fleet.KindOf(failure) == fleet.KindConflict { // the list lags, and has it as free
			penalty = min(penalty, p.source.Config.SettlingTime)
		}
	case endRefused:
		refused := &refusal{intent, failure, closes && unanswered == 0}
		if p.firstRefusal.CompareAndSwap(nil, refused) && refused.held {
			closes = false
		}
	}
	changes := append([]bmdb.Change{
		bmdb.RecordMachineHistory(intent.Machine, historyEvent(how), fmt.Sprintf("capacity %s: %s", intent.Capacity, cause)),
	}, answeredChanges(intent, calls, failure)...)
	if closes && unanswered == 0 {
		changes = append(changes, p.closeChanges(intent, cause, penalty)...)
	}
	if err := p.work.Note(ctx, changes...); err != nil {
		return how, fmt.Errorf("record the failure: %w", err)
	}
	if closes && unanswered > 0 {
		_, err := p.closeUnanswered(ctx, intent, cause, p.source.Config.Penalty)
		return how, err
	}
	return how, nil
}

// howFailed says how a creation ended that failed after so many calls.
func howFailed(calls int, failure error) creationResult {
	switch {
	case calls == 0:
		return endNotBegun
	case provider.MayHaveCreated(failure):
		return endUnanswered
	}
	switch fleet.KindOf(failure) {
	case fleet.KindInvalid, fleet.KindUnsupported, fleet.KindForbidden, fleet.KindUnauthenticated:
		return endRefused
	}
	return endFailed
}

// lasts reports whether an intent that came to no call is old enough to give way, and is to.
func (p *pass) lasts(intent fleet.Intent) bool {
	return p.view.Now.Sub(intent.OpenedAt) >= p.source.Config.SettlingTime && p.crowded() && p.wayLeft()
}

// answeredChanges returns the changes that record that each call of a creation was refused, if it
// was.
func answeredChanges(intent fleet.Intent, calls int, failure error) []bmdb.Change {
	if provider.MayHaveCreated(failure) {
		return nil
	}
	return slices.Repeat([]bmdb.Change{bmdb.IntentAnswered(intent.Machine, intent.CalledAt)}, calls)
}

// closeUnanswered closes an intent that is given up, and which has a call that was never answered.
// The settling time must have passed since that call, and the provider must find no machine that
// carries the token; otherwise it stays open. If one turns up all the same, it is adopted. It is
// not to be tried in this pass where it was closed, nor where its machine was found. Without a
// penalty, its capacity is free again.
func (p *pass) closeUnanswered(ctx context.Context, intent fleet.Intent, cause string, penalty time.Duration) (done bool, err error) {
	if !p.isSettled(intent) || p.tokenAsks.Add(1) > asksPerPass {
		return false, nil
	}
	_, err = p.source.Provider.FindByToken(ctx, intent.Capacity, intent.Token)
	switch {
	case ctx.Err() != nil:
		return false, fmt.Errorf("look for the machine of an intent: %w", context.Cause(ctx))
	case err == nil: // the next pass takes it in
		return true, nil
	case fleet.KindOf(err) != fleet.KindNotFound:
		p.logger.WarnContext(ctx, "machine of an intent cannot be looked for", slog.String("machine", string(intent.Machine)), slog.Any("err", err))
		return false, nil
	}
	evidence := fmt.Sprintf("%s; no machine carries the token, more than the settling time of %s after the call that was not answered",
		cause, p.source.Config.SettlingTime)
	changes := []bmdb.Change{bmdb.CloseIntentNothingMade(intent.Machine, evidence)}
	if penalty > 0 {
		changes = append(changes, bmdb.SetPenalty(intent.Capacity, penalty, cause))
	}
	if err := p.work.Note(ctx, changes...); err != nil {
		return false, fmt.Errorf("close an intent that is given up: %w", err)
	}
	return true, nil
}

// historyEvent is how a machine's history names a creation that failed.
func historyEvent(how creationResult) fleet.Event {
	switch how {
	case endNotBegun:
		return fleet.EventCreationNotBegun
	case endUnanswered:
		return fleet.EventCreationUnanswered
	}
	return fleet.EventCreationRefused
}

// final reports whether a definite failure by a piece of capacity, or of the call for it, will be
// the same next time. If it is not (throttled, not allowed), the next pass tries the same capacity
// again.
func final(failure error) bool {
	switch fleet.KindOf(failure) {
	case fleet.KindNoCapacity, fleet.KindRaceLost, fleet.KindConflict, fleet.KindInvalid, fleet.KindNotFound, fleet.KindUnsupported:
		return true
	}
	return false
}

// closeChanges returns the changes that close an intent which was refused for good, and that keep
// its capacity out for a while.
func (p *pass) closeChanges(intent fleet.Intent, cause string, penalty time.Duration) []bmdb.Change {
	return []bmdb.Change{
		bmdb.CloseIntentRejected(intent.Machine, cause),
		bmdb.SetPenalty(intent.Capacity, penalty, cause),
	}
}

// refusal is a request that the provider refused as such, or did not allow.
type refusal struct {
	intent fleet.Intent
	err    error
	// held: its intent was not closed.
	held bool
}

// refusedAll judges a pass in which the provider refused a request as such, or did not allow it. It
// fails where the configuration is at fault, or the project has its quota.
//
//	besides the refusals                       the intent that was held   the pass
//	something was created, has no answer, or
//	failed otherwise                           closed                     ends well
//	nothing, and all are of one capacity ¹     closed                     ends well
//	nothing, and other capacity waits          closed                     fails
//	nothing                                    stays open ²               fails
//
// ¹ Of a provider that has created machines: that piece of capacity may be at fault itself.
//
// ² So that the next pass asks again.
func (p *pass) refusedAll(ctx context.Context) error {
	first, t := p.firstRefusal.Load(), p.tally
	alone := p.source.refuses(t, first) && len(p.view.Machines) > 0
	if first == nil {
		return nil
	}
	all := !alone && t.ended[endCreated]+t.ended[endUnanswered]+t.ended[endFailed] == 0
	if first.held && (!all || t.waiting+t.full > 0) {
		if err := p.work.Note(ctx, p.closeChanges(first.intent, shepherd.Cause(first.err), p.source.Config.Penalty)...); err != nil {
			return fmt.Errorf("close an intent that was refused: %w", err)
		}
	}
	if !all {
		return nil
	}
	if !final(first.err) {
		return fmt.Errorf("nothing was created, because the provider refused each request: %w", first.err)
	}
	return fmt.Errorf("nothing was created, because the provider refused each request (`ironherd provider retry %s` ends the penalties of the capacity): %w",
		p.source.Name, first.err)
}
