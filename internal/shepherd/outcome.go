package shepherd

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// Handler says what a piece of work of one process means.
type Handler interface {
	// Scope says what the handler works on. It is asked once.
	Scope() Scope

	// Act does one piece of work and says how it ended. It is called from many goroutines at once,
	// each with work of its own.
	//
	// ctx ends with the trust in the lease, or when the loop stops: nothing may take effect
	// afterwards. A handler that cannot go on returns Fail, whatever the reason; the engine tells a
	// failure from the end of ctx. Facts that must be recorded in the middle of work are written with
	// work.Note.
	Act(ctx context.Context, work *bmdb.Work) Outcome
}

// Scope says what a handler works on.
type Scope struct {
	Process fleet.Process
	// Providers whose work the loop claims: those that this process was configured with.
	Providers []fleet.ProviderName
	// Backoff of a failure that does not name its own.
	Backoff fleet.Backoff
}

// Outcome is how a piece of work ended: Finish, Fail or Cancel.
type Outcome interface {
	commit(ctx context.Context, work *bmdb.Work) error
	result() Result
}

// Finish says that the work is done. It resets the backoff.
type Finish struct{ Changes []bmdb.Change }

// Fail says that the work failed: it is tried again after a backoff.
//
// The engine records it as something else where the work had no chance: as lost where Err or the
// end of the context says that the lease is, and as handed back where the loop stops. Changes are
// left out then.
type Fail struct {
	// Err is the cause. People are shown it as it is, and the wait is never shorter than its
	// RetryAfter.
	Err error
	// Backoff that the wait grows by. Zero: the default of the handler's scope.
	Backoff fleet.Backoff
	// Answer is what the failure says of the machine's host.
	Answer fleet.Answer
	// Changes are facts to be recorded all the same.
	Changes []bmdb.Change
}

// Cancel hands the work back: nothing failed, and it is due again as if it had not been started.
type Cancel struct {
	// Reason in one clause.
	Reason  string
	Changes []bmdb.Change
}

func (o Finish) commit(ctx context.Context, work *bmdb.Work) error {
	return work.Finish(ctx, o.Changes...)
}

// queuedBackoff is that of work whose call to the provider had no turn in time, or that the
// database could not take down. It does not grow, because nothing has failed.
var queuedBackoff = fleet.Backoff{Initial: 15 * time.Second}

// WasQueued reports whether an error tells of a call that only waited for its turn, or of a
// database that is not available: nothing about its subject has failed.
func WasQueued(err error) bool {
	return provider.WasQueued(err) || errors.Is(err, bmdb.ErrUnavailable)
}

func (o Fail) commit(ctx context.Context, work *bmdb.Work) error {
	return work.Fail(ctx, o.failure(), o.Changes...)
}

// failure is what the BMDB is told.
func (o Fail) failure() bmdb.Failure {
	queued := WasQueued(o.Err)
	if queued {
		o.Backoff = queuedBackoff
	}
	return bmdb.Failure{
		Cause: Cause(o.Err), Backoff: o.Backoff, RetryAfter: max(0, fleet.RetryAfter(o.Err)), Answer: o.Answer, Queued: queued,
	}
}

func (o Cancel) commit(ctx context.Context, work *bmdb.Work) error {
	return work.Cancel(ctx, o.Reason, o.Changes...)
}

// lost is the outcome of work whose lease is lost. There is nothing to commit.
type lost struct{}

func (lost) commit(context.Context, *bmdb.Work) error { return fleet.ErrLeaseLost }

// Result is the short form of how work ended, for metrics and logs.
type Result string

// The results.
const (
	ResultFinished  Result = "finished"
	ResultFailed    Result = "failed"
	ResultCancelled Result = "cancelled"
	// ResultLost: the lease was lost; nothing was recorded.
	ResultLost Result = "lost"
	// ResultUncommitted: the outcome could not be recorded.
	ResultUncommitted Result = "uncommitted"
)

func (Finish) result() Result { return ResultFinished }
func (Fail) result() Result   { return ResultFailed }
func (Cancel) result() Result { return ResultCancelled }
func (lost) result() Result   { return ResultLost }

// causeLimit is how long a cause may be, in bytes: it is stored with the machine and shown in
// tables.
const causeLimit = 500

// Cause renders an error as a cause to be stored and shown: one line of valid UTF-8, of bounded
// length.
func Cause(err error) string {
	text := strings.ToValidUTF8(err.Error(), "�")
	return fleet.Clip(strings.Join(strings.Fields(text), " "), causeLimit)
}

// The causes of work whose handler is at fault.
var (
	errPanicked  = fleet.Errorf(fleet.KindUnknown, "internal error: the handler panicked")
	errNoOutcome = fleet.Errorf(fleet.KindUnknown, "internal error: the handler gave no outcome")
	errNoCause   = fleet.Errorf(fleet.KindUnknown, "internal error: the handler gave no cause of its failure")
)

// commitPatience bounds how long the engine tries to commit one outcome, and commitAttempt how long
// one attempt may take.
const (
	commitPatience = 30 * time.Second
	commitAttempt  = 5 * time.Second
)
