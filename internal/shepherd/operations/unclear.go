package operations

import (
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// unclearCalls is how often a restart is called at most without knowing whether it was heard.
const unclearCalls = 2

// restartMayBeHeard reports whether the provider may have heard of a restart that it has not
// accepted, as far as we know. An attempt that certainly had no effect was taken back.
func (o *operation) restartMayBeHeard() bool {
	return o.attempt != nil && !o.accepted() && o.request.Operation.Restarts()
}

// leftOff reports whether a power cycle that may have been heard has left the machine off. To
// switch it on is idempotent, and restarts nothing.
func (o *operation) leftOff(fact fleet.Provided) bool {
	_, powers := o.source.Provider.(provider.Powerer)
	return o.restartMayBeHeard() && powers && o.request.Operation == fleet.OperationPowerCycle && fact.Status == fleet.ProviderStatusOff
}

// mayShow reports whether a restart that may have been heard can show its effect yet.
func (o *operation) mayShow() bool {
	until := lifecycle.OperationShows(o.request.Operation, o.attempt.At, o.env)
	return until.IsZero() || o.now.Before(until)
}

// within is the time that an operation had to show its effect which was accepted at an instant, or
// may have been.
func (o *operation) within(at time.Time) string {
	timeout := o.env.Policy.OperationTimeout
	if lifecycle.OperationShows(o.request.Operation, at, o.env).After(at.Add(timeout)) {
		return timeout.String() + " of agents being heard again"
	}
	return timeout.String()
}

// lookUnclear is a look at a restart that may have been heard, and of which nothing is seen; nil:
// it is to be called once more.
func (o *operation) lookUnclear(fact fleet.Provided, seen bmdb.Change) shepherd.Outcome {
	switch {
	case o.leftOff(fact):
		if o.now.Before(o.limit()) {
			return nil
		}
	case o.mayShow():
		cause := o.work.Record.Backoffs[fleet.ProcessOperation].Cause
		if cause == "" {
			cause = "the reply to the call is not known"
		}
		o.observe(ResultRepeated)
		return shepherd.Fail{
			Err: fleet.Errorf(fleet.KindTemporary, "%s", cause), Changes: []bmdb.Change{seen},
		}
	case o.attempt.Attempt < unclearCalls && o.now.Before(o.limit()):
		return nil
	}
	return o.fail(o.mayBeDone(fact), seen)
}

// mayBeDone says how a restart ends of which nobody knows whether it was heard.
func (o *operation) mayBeDone(fact fleet.Provided) string {
	known, why := "may have done it", o.notRestarted()
	if why != "" {
		known = "has not done it in its time"
	} else {
		why = fmt.Sprintf("%s was not seen; the provider says that the machine is %s", lifecycle.EvidenceOf(o.request.Operation), fact.Says())
	}
	when := "within " + o.within(o.attempt.At)
	if o.leftOff(fact) { // that ends in the time of the call, whoever could be heard
		when = "since then"
	}
	text := fmt.Sprintf("%s %s, and is not called again: it was called last at %s, without a clear reply, and %s %s",
		o.source.Name, known, fleet.Instant(o.attempt.At), when, why)
	if cause := o.work.Record.Backoffs[fleet.ProcessOperation].Cause; cause != "" {
		text += "; the last failure: " + cause
	}
	return text
}

// notRestarted says that a machine runs on after a call that may have been heard, as
// lifecycle.NotRestarted says it after one that was accepted.
func (o *operation) notRestarted() string {
	r, assumed := o.work.Record, *o.attempt
	assumed.AcceptedAt = &assumed.At
	r.OperationAttempt = &assumed
	return lifecycle.NotRestarted(r, o.env, o.now)
}

// besides adds to how an operation failed that an earlier call may have been heard.
func (o *operation) besides(why string) string {
	if o.attempt == nil || o.accepted() || !o.request.Operation.Restarts() && !o.request.Operation.Switches() {
		return why
	}
	return fmt.Sprintf("%s; %s may have done it all the same: the reply to an earlier call, at %s, was not clear",
		why, o.source.Name, fleet.Instant(o.attempt.At))
}

// unclear reports whether a call that failed so may have had its effect.
func unclear(err error) bool {
	switch fleet.KindOf(err) {
	case fleet.KindThrottled, fleet.KindUnauthenticated, fleet.KindForbidden, fleet.KindInUse, fleet.KindUnsupported,
		fleet.KindConflict, fleet.KindInvalid:
		return false
	}
	return !provider.NothingSent(err)
}
