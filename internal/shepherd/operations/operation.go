package operations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// operation is a piece of work on one request.
type operation struct {
	*Operations
	work   *bmdb.Work
	source Source
	env    fleet.Environment
	// now is database time.
	now     time.Time
	request fleet.OperationRequest
	// attempt is the newest one at the request; nil: none was begun.
	attempt *fleet.OperationAttempt
	logger  *slog.Logger
	// moved: the list gives the host an address that is not recorded.
	moved bool
}

// accepted reports whether the provider has accepted the newest attempt.
func (o *operation) accepted() bool { return o.attempt != nil && o.attempt.AcceptedAt != nil }

func (o *operation) advance(ctx context.Context) shepherd.Outcome {
	r := o.work.Record
	if seen, ok := o.evidence(r); ok {
		return o.done(seen)
	}
	entry, err := o.source.Ask(ctx, r.ProviderID)
	switch {
	case fleet.KindOf(err) == fleet.KindNotFound:
		return o.gone(err)
	case err == nil && entry.Invalid != "" && !o.listed():
		err = fleet.Errorf(fleet.KindUnknown, "%s", entry.Invalid)
	case err == nil && o.source.Moved(r.Provided, entry) != "":
		o.moved = true
		err = fleet.Errorf(fleet.KindTemporary, "%s", o.source.Moved(r.Provided, entry))
	}
	if err != nil {
		return o.unanswered(fmt.Errorf("ask the provider for the machine: %w", err))
	}
	fact := entry.Provided(r.Provided, o.now)
	if entry.Invalid != "" { // a host is given back all the same; what is missing there says nothing
		fact = *r.Provided
	}
	seen := bmdb.SetProvided(r.ID, r.ProviderID, fact)
	if o.accepted() {
		return o.look(fact, seen)
	}
	if o.restartMayBeHeard() {
		if outcome := o.lookUnclear(fact, seen); outcome != nil {
			return outcome
		}
	}
	if o.recovered(fact) {
		return o.unwanted(fmt.Sprintf("the provider says that the machine is %s: the policy gives back only what the provider gave up", fact.Says()), seen)
	}
	if outcome := o.byPolicy(ctx, fact, seen); outcome != nil {
		return outcome
	}
	return o.begin(ctx, entry, fact, seen)
}

// recovered reports whether the policy would give back a machine that its provider does not give up
// any more. What was recorded of the provider may be older.
func (o *operation) recovered(fact fleet.Provided) bool {
	return o.request.Actor == fleet.ActorPolicy && fact.Status != fleet.ProviderStatusFailed && fact.Status != fleet.ProviderStatusDeleting
}

// evidence returns what shows that the operation had its effect. An attempt that was begun, and of
// which nobody knows whether the provider accepted it, is judged as if it had. But then only
// another boot ID shows that the call was heard, and that nothing is expected of the machine shows
// nothing.
func (o *operation) evidence(r fleet.Record) (string, bool) {
	if o.attempt == nil {
		return "", false
	}
	assumed := *o.attempt
	if assumed.AcceptedAt == nil {
		if !o.restartMayBeHeard() {
			return "", false
		}
		assumed.AcceptedAt, r.Installed, r.Quarantine = &assumed.At, nil, nil
	}
	r.OperationAttempt = &assumed
	return lifecycle.OperationEvidence(r, o.env, o.now)
}

// look is a look at an operation that the provider has accepted.
func (o *operation) look(fact fleet.Provided, seen bmdb.Change) shepherd.Outcome {
	r := o.work.Record
	r.Provided = &fact
	if why, ok := o.evidence(r); ok {
		return o.done(why, seen)
	}
	_, away := r.Backoffs[fleet.ProcessOperation] // it could not be asked before
	leaves := o.request.Operation.GivesBack() && fact.Status == fleet.ProviderStatusDeleting
	accepted := *o.attempt.AcceptedAt
	until := lifecycle.OperationShows(o.request.Operation, accepted, o.env)
	if until.IsZero() || o.now.Before(until) || away || leaves {
		return shepherd.Finish{Changes: []bmdb.Change{seen, bmdb.CheckOperation(o.request.Number)}}
	}
	within := o.within(accepted)
	if why := lifecycle.NotRestarted(r, o.env, o.now); why != "" {
		return o.fail(fmt.Sprintf("%s accepted it at %s, and within %s %s", o.source.Name, fleet.Instant(accepted), within, why), seen)
	}
	return o.fail(fmt.Sprintf("%s accepted it at %s, and %s was not seen within %s; the provider says that the machine is %s",
		o.source.Name, fleet.Instant(accepted), lifecycle.EvidenceOf(o.request.Operation), within, fact.Says()), seen)
}

// begin makes one attempt: what it prepares has no effect, the attempt is committed, then comes the
// one call, and the answer is judged.
func (o *operation) begin(ctx context.Context, entry provider.Entry, fact fleet.Provided, seen bmdb.Change) shepherd.Outcome {
	begin := bmdb.BeginOperation(o.request.Number, lifecycle.BootID(o.work.Record))
	call, outcome := o.prepare(entry, fact, seen, begin)
	if outcome != nil {
		return outcome
	}
	// With the attempt goes what the provider says now, so that nothing older is taken for evidence.
	if err := o.work.Note(ctx, bmdb.UnlessRestored(o.request.Operation), seen, begin); err != nil {
		return notBegun(err)
	}
	if ctx.Err() != nil { // rule 5: no effect after the trust in the lease
		return o.unsent(ctx, context.Cause(ctx))
	}
	if err := o.stillWanted(ctx); errors.Is(err, errUnwanted) {
		return o.handBack(err)
	} else if err != nil {
		return shepherd.Fail{Err: err, Changes: []bmdb.Change{o.undo()}}
	}
	o.logger.InfoContext(ctx, "operation is begun", slog.String("actor", o.request.Actor))
	did, err := call(o.lastLook(ctx))
	switch {
	case waits(err):
		return o.handBack(err)
	case err == nil || ctx.Err() == nil:
		return o.judge(fact, did, err)
	case provider.NothingSent(err):
		return o.unsent(ctx, err)
	}
	return shepherd.Fail{Err: err} // it may have been heard
}

// notBegun is the outcome of an attempt that could not be committed. One that is not wanted any
// more, or that waits, has not failed.
func notBegun(err error) shepherd.Outcome {
	if fleet.KindOf(err) == fleet.KindConflict {
		return shepherd.Cancel{Reason: shepherd.Cause(err)}
	}
	return shepherd.Fail{Err: fmt.Errorf("record the attempt: %w", err)}
}

// unsent is the outcome of an attempt of which certainly nothing was sent when ctx ended. Without
// the lease, nothing more is recorded of it.
func (o *operation) unsent(ctx context.Context, err error) shepherd.Outcome {
	cause, counts := context.Cause(ctx), o.request.Operation.Restarts() || o.request.Operation.Switches()
	if !counts || errors.Is(cause, fleet.ErrLeaseLost) {
		return shepherd.Fail{Err: err}
	}
	// A Fail would lose the change.
	return shepherd.Cancel{Reason: shepherd.Cause(cause), Changes: []bmdb.Change{o.undo()}}
}

// undo takes back the newest attempt, which certainly had no effect. What was recorded before it
// counts again: also what was asked for before this operation, and may still come.
func (o *operation) undo() bmdb.Change {
	return bmdb.UndoAttempt(o.request.Number, o.work.Record.OperationAttempt)
}

// prepare returns what is to be asked for, or the outcome where nothing is.
func (o *operation) prepare(entry provider.Entry, fact fleet.Provided, seen, begin bmdb.Change) (call, shepherd.Outcome) {
	number := o.request.Number
	if already := o.already(fact); already != "" {
		if o.request.Operation != fleet.OperationPowerOn {
			return nil, o.done(already, begin, seen, bmdb.AcceptOperation(number))
		}
		return nil, o.done(already, seen) // an attempt would count as a restart
	}
	if o.request.Operation.GivesBack() && fact.Status == fleet.ProviderStatusDeleting {
		// The reply to a call was lost, or somebody else gives it back: a second call could only be
		// refused.
		o.observe(ResultAccepted)
		return nil, shepherd.Finish{Changes: []bmdb.Change{begin, seen, bmdb.AcceptOperation(number)}}
	}
	if b := o.work.Record.Backoffs[fleet.ProcessOperation]; !b.Since.IsZero() && o.releaseMayBeHeard() && !o.now.Before(o.limit()) {
		// The provider has the machine still, and does not delete it: no call was heard. A question that
		// only waited for its turn ends nothing.
		return nil, o.giveUp(b.Cause, seen)
	}
	if call := o.callFor(entry, fact); call != nil {
		return call, nil
	}
	// The database knows better levers than this process: another one may have them.
	return nil, o.again(fleet.Errorf(fleet.KindUnsupported, "provider %s cannot %s in this process", o.source.Name, o.request.Operation.Of("machines")))
}

// judge returns what the answer to a call means: what was done, where it says so, or its error.
func (o *operation) judge(fact fleet.Provided, did string, err error) shepherd.Outcome {
	number := o.request.Number
	switch {
	case err == nil && did != "":
		return o.done(did, bmdb.AcceptOperation(number))
	case err == nil:
		o.observe(ResultAccepted)
		return shepherd.Finish{Changes: []bmdb.Change{bmdb.AcceptOperation(number)}}
	}
	switch fleet.KindOf(err) {
	case fleet.KindNotFound:
		return o.gone(err)
	case fleet.KindInvalid, fleet.KindConflict, fleet.KindUnsupported, fleet.KindForbidden:
		if !o.listed() && !o.passes(fact) { // what a host says may pass
			var changes []bmdb.Change
			// It will not come; nor is a refused power-off what the machine goes off by.
			if o.attempt == nil || o.request.Operation == fleet.OperationPowerOff {
				changes = append(changes, o.undo())
			}
			return o.fail(o.besides(shepherd.Cause(err)), changes...)
		}
	}
	switch restarts := o.request.Operation.Restarts(); {
	case restarts && unclear(err): // the next look finds the attempt
		o.observe(ResultRepeated)
		return shepherd.Fail{Err: err}
	case !unclear(err) && (restarts || o.request.Operation.Switches()):
		return o.again(err, o.undo())
	}
	return o.again(err)
}

// passes reports whether what the provider says of the machine may pass, and with it a refusal.
func (o *operation) passes(fact fleet.Provided) bool {
	switch q := o.request.Operation; {
	case fact.Status == fleet.ProviderStatusPowering:
		return true
	case q == fleet.OperationPowerOn || o.leftOff(fact):
		return fact.Status == fleet.ProviderStatusOff // it may have been on its way off meanwhile
	case q.GivesBack():
		return fact.Status == fleet.ProviderStatusCreating // or it is being reinstalled
	}
	return false
}

// already says that nothing is to be done; "" when something is.
func (o *operation) already(fact fleet.Provided) string {
	switch o.request.Operation {
	case fleet.OperationPowerOn:
		if fact.Status == fleet.ProviderStatusActive {
			return "the provider says that it is on already"
		}
	case fleet.OperationPowerOff:
		if fact.Status == fleet.ProviderStatusOff {
			return "the provider says that it is off already"
		}
	case fleet.OperationRelease, fleet.OperationReplace:
		if o.listed() && onlyInstalled(o.work.Record) {
			return "the host runs an installed system, on which no agent of ours is"
		}
	case fleet.OperationReboot, fleet.OperationPowerCycle:
	}
	return ""
}

// onlyInstalled reports whether a system that we have installed runs on a host, and no agent of
// ours. A reinstall that was asked for since has not reached the host before an agent is started.
func onlyInstalled(r fleet.Record) bool {
	up, s := r.Installed, r.AgentStarted
	if up == nil || up.Attempt == 0 || agentTried(r) {
		return false
	}
	untaken := up.ErasedAt == nil && (s == nil || !s.At.After(up.At))
	return untaken || lifecycle.Installed(r)
}

// agentTried reports whether the start of an agent was tried on the installed system of a machine,
// for a reinstall, and nobody knows whether it is there.
func agentTried(r fleet.Record) bool {
	var started fleet.TakeoverGeneration
	if r.AgentStarted != nil {
		started = r.AgentStarted.TakeoverGeneration
	}
	return r.InstallRequest != nil && r.Installed.Generation < r.InstallRequest.Generation && started < r.TakeoverGeneration
}

// listed reports whether the provider is a list of hosts, which stay where they are.
func (o *operation) listed() bool { return provider.Keeps(o.source.Provider) }

// call asks the provider, or the host, for the operation. What a host has done is said at once; a
// provider only accepts the call.
type call func(context.Context) (did string, err error)

// callFor returns the call for the operation; nil where nobody can make it.
func (o *operation) callFor(entry provider.Entry, fact fleet.Provided) call {
	id := o.work.Record.ProviderID
	with := func(do func(context.Context, fleet.ProviderID) error) call {
		return func(ctx context.Context) (string, error) { return "", do(ctx, id) }
	}
	rebooter, reboots := o.source.Provider.(provider.Rebooter)
	powerer, powers := o.source.Provider.(provider.Powerer)
	releaser, releases := o.source.Provider.(provider.Releaser)
	switch q := o.request.Operation; {
	case q == fleet.OperationReboot && reboots:
		return with(rebooter.Reboot)
	case powers && (q == fleet.OperationPowerOn || o.leftOff(fact)):
		return with(powerer.PowerOn)
	case q == fleet.OperationPowerOff && powers:
		return with(powerer.PowerOff)
	case q == fleet.OperationPowerCycle && powers:
		return with(powerer.PowerCycle)
	case q.GivesBack() && releases:
		return with(releaser.Release)
	case q.GivesBack() && o.listed() && o.options.Cleaner != nil:
		return func(ctx context.Context) (string, error) { return o.options.Cleaner.Clean(ctx, o.work, entry) }
	}
	return nil
}

// gone is the outcome when the provider does not have the machine. One that it has elsewhere was
// not given back.
func (o *operation) gone(err error) shepherd.Outcome {
	moved := ""
	switch {
	case provider.WasMoved(err):
		moved = ": " + shepherd.Cause(err)
	case o.request.Operation.GivesBack():
		return o.done("the provider does not have it any more")
	}
	r := o.work.Record
	return o.fail(fmt.Sprintf("the provider does not have the machine any more%s; `ironherd machine forget %s --reason WHY` removes it here", moved, r.ID),
		bmdb.SetProvided(r.ID, r.ProviderID, provider.Gone(r.Provided)))
}

// limit is until when an operation is tried that the provider does not accept. Its time begins with
// the first try that failed, or whose reply is not known. That may be long after the request.
func (o *operation) limit() time.Time {
	since := o.work.Record.Backoffs[fleet.ProcessOperation].Since
	switch {
	case !since.IsZero():
	case o.attempt != nil:
		since = o.attempt.At
	default:
		since = o.now
	}
	return since.Add(o.config.GiveUpAfter)
}

// releaseMayBeHeard reports whether the provider may have heard a call to give the machine back:
// then the machine may be gone at any time.
func (o *operation) releaseMayBeHeard() bool {
	return o.attempt != nil && o.request.Operation.GivesBack() && !o.listed()
}

// unanswered is the outcome when the provider cannot be asked for the machine. That says nothing of
// an operation that it has accepted, or may have: this one goes on until the provider answers.
func (o *operation) unanswered(err error) shepherd.Outcome {
	if o.accepted() || o.releaseMayBeHeard() {
		o.observe(ResultRepeated)
		return shepherd.Fail{Err: err}
	}
	return o.again(err)
}

// again fails the attempt, or the operation when its time is over. Where the call may have been
// heard, the provider is asked for the machine once more before the operation is given up. A call
// that had no turn ends nothing, nor does a database that is not available.
func (o *operation) again(err error, changes ...bmdb.Change) shepherd.Outcome {
	mayBeHeard := o.request.Operation.GivesBack() && !o.listed() && unclear(err)
	mayShow := o.restartMayBeHeard() && o.mayShow()
	if o.now.Before(o.limit()) || mayBeHeard || mayShow || shepherd.WasQueued(err) {
		o.observe(ResultRepeated)
		return shepherd.Fail{Err: err, Changes: changes}
	}
	return o.giveUp(shepherd.Cause(err), changes...)
}

// giveUp ends an operation that the provider has not accepted in its time.
func (o *operation) giveUp(cause string, changes ...bmdb.Change) shepherd.Outcome {
	remedy := ""
	if o.listed() && o.request.Operation.GivesBack() && !o.moved {
		remedy = fmt.Sprintf("; to give up a host that cannot be reached, take it off the list, and then `ironherd machine forget %s --reason WHY` removes it here",
			o.work.Record.ID)
	}
	return o.fail(o.besides(fmt.Sprintf("it was not accepted until %s: %s%s", fleet.Instant(o.now), cause, remedy)), changes...)
}

// done ends the operation with its evidence.
func (o *operation) done(seen string, changes ...bmdb.Change) shepherd.Outcome {
	o.observe(ResultDone)
	return shepherd.Finish{Changes: append(changes, bmdb.EndOperation(o.request.Number, true, seen, o.source.Config.Penalty))}
}

// fail gives the operation up.
func (o *operation) fail(why string, changes ...bmdb.Change) shepherd.Outcome {
	o.observe(ResultFailed)
	o.logger.Warn("operation has failed", slog.String("actor", o.request.Actor), slog.String("reason", why))
	return shepherd.Finish{Changes: append(changes, bmdb.EndOperation(o.request.Number, false, why, 0))}
}

// unwanted gives up what the policy had asked for and does not want any more: nobody has to look.
func (o *operation) unwanted(why string, changes ...bmdb.Change) shepherd.Outcome {
	o.observe(ResultUnwanted)
	o.logger.Info("operation is not wanted any more", slog.String("reason", why))
	return shepherd.Finish{Changes: append(changes, bmdb.EndOperation(o.request.Number, false, why, 0))}
}

func (o *operation) observe(result Result) {
	if o.options.Observed != nil {
		o.options.Observed(o.request.Operation, result)
	}
}
