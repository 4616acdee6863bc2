package recoverer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Config is how recovery works. When a step is due, and which, is policy.
type Config struct {
	// Backoff of a step that could not be taken.
	Backoff fleet.Backoff `yaml:"backoff"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{Backoff: fleet.Backoff{Initial: time.Minute, Exponent: 1.2, Maximum: time.Hour}}
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error { return shepherd.RequireBackoff("backoff", c.Backoff) }

// Source is a provider whose machines are recovered.
type Source = shepherd.Source[struct{}]

// Result is how a step went.
type Result string

// The results.
const (
	// ResultDone: the provider has accepted it, or the machine is in quarantine.
	ResultDone Result = "done"
	// ResultNotNeeded: the machine is well, somebody else acts on it, or recovery was stopped.
	ResultNotNeeded Result = "not-needed"
	// ResultRefused: the provider refused it for good; the next step follows.
	ResultRefused Result = "refused"
	// ResultSwitchedOn: a power cycle that had left the machine off is finished.
	ResultSwitchedOn Result = "switched-on"
	// ResultFailed: it could not be taken, or nobody knows whether it had its effect.
	ResultFailed Result = "failed"
)

// Options is what a Recoverer is built with besides its sources.
type Options struct {
	// Logger receives what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
	// Observed is told of every step. It must not block. What finishes a power cycle is told of that
	// rung, whichever would have been next. Nil: nobody is told.
	Observed func(rung fleet.Rung, result Result)
}

// Recoverer is the shepherd.Handler of the process recovery.
type Recoverer struct {
	db      *bmdb.DB
	sources shepherd.Sources[Source]
	config  Config
	options Options
}

// New returns the handler for these sources. It reports every fault of the configuration.
func New(db *bmdb.DB, sources []Source, config Config, options Options) (*Recoverer, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	return &Recoverer{db: db, sources: shepherd.Plain(sources), config: config, options: options}, nil
}

// Scope covers the configured providers.
func (r *Recoverer) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessRecovery, Providers: r.sources.Names(), Backoff: r.config.Backoff}
}

// Act takes the step that is due for one machine.
func (r *Recoverer) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	rung := work.Decision.Rung
	source, err := r.sources.Of(work)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	if rung == "" {
		return r.endStep(ctx, work)
	}
	s := step{
		Recoverer: r, work: work, source: source, rung: rung,
		logger: r.options.Logger.With(slog.String("machine", string(work.Record.ID)), slog.String("step", string(rung))),
	}
	outcome, result := s.take(ctx)
	if r.options.Observed != nil && ctx.Err() == nil {
		r.options.Observed(s.rung, result)
	}
	return outcome
}

// endStep ends a step whose time is over, and which has not restarted the machine: that is heard.
func (r *Recoverer) endStep(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	err := work.Note(ctx, bmdb.EndStep())
	switch {
	case fleet.KindOf(err) == fleet.KindConflict:
		return shepherd.Cancel{Reason: "no step is due: " + work.Decision.Reason}
	case err != nil:
		return shepherd.Fail{Err: fmt.Errorf("end the step: %w", err)}
	}
	return shepherd.Finish{}
}

// step is one step of the ladder, on its way.
type step struct {
	*Recoverer
	work   *bmdb.Work
	source Source
	rung   fleet.Rung
	logger *slog.Logger
}

func (s *step) take(ctx context.Context) (shepherd.Outcome, Result) {
	r := s.work.Record
	ctx, err := shepherd.Asking(ctx, s.db, s.work)
	if err != nil {
		return shepherd.Fail{Err: err}, ResultFailed
	}
	entry, err := s.source.Ask(ctx, r.ProviderID)
	switch {
	case fleet.KindOf(err) == fleet.KindNotFound:
		return shepherd.Finish{Changes: []bmdb.Change{gone(r)}}, ResultNotNeeded
	case err == nil && entry.Invalid != "":
		err = fleet.Errorf(fleet.KindUnknown, "%s", entry.Invalid)
	}
	if err != nil && s.rung != fleet.RungQuarantine { // that one needs no provider
		return shepherd.Fail{Err: fmt.Errorf("ask the provider for the machine: %w", err)}, ResultFailed
	}
	if err == nil && (r.Provided == nil || r.Provided.Status != entry.Status) {
		// What the step was decided from is not so any more: it is decided anew.
		now, err := s.db.Now(ctx)
		if err != nil {
			return shepherd.Fail{Err: err}, ResultFailed
		}
		return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetProvided(r.ID, r.ProviderID, entry.Provided(r.Provided, now))}}, ResultNotNeeded
	}
	if err == nil {
		leftOff, err := s.leftOff(ctx, entry)
		switch {
		case err != nil:
			return shepherd.Fail{Err: fmt.Errorf("read the machine: %w", err)}, ResultFailed
		case leftOff:
			s.rung = fleet.RungPowerCycle
			return s.switchOn(ctx)
		}
	}
	if s.rung == fleet.RungQuarantine {
		return s.quarantine(ctx)
	}
	return s.call(ctx, entry)
}

func gone(r fleet.Record) bmdb.Change {
	return bmdb.SetProvided(r.ID, r.ProviderID, provider.Gone(r.Provided))
}

// quarantine is the end of the ladder. It has no effect besides the facts.
func (s step) quarantine(ctx context.Context) (shepherd.Outcome, Result) {
	err := s.work.Note(ctx, bmdb.TakeStep(s.rung))
	switch {
	case fleet.KindOf(err) == fleet.KindConflict:
		return shepherd.Cancel{Reason: err.Error()}, ResultNotNeeded
	case err != nil:
		return shepherd.Fail{Err: fmt.Errorf("record the step: %w", err)}, ResultFailed
	}
	s.logger.WarnContext(ctx, "machine is quarantined", slog.String("reason", s.work.Decision.Reason))
	return shepherd.Finish{}, ResultDone
}

// call commits the step, makes sure that it is needed still, and pulls the provider's lever.
func (s step) call(ctx context.Context, entry provider.Entry) (shepherd.Outcome, Result) {
	lever := s.lever()
	if lever == nil {
		// The database knew better levers than this process: it is not the one to decide.
		return shepherd.Fail{Err: fleet.Errorf(fleet.KindUnsupported, "provider %s cannot %s machines in this process", s.source.Name, s.rung)},
			ResultFailed
	}
	was := bmdb.BeforeStep{Repair: s.work.Record.Repair, Install: s.work.Record.InstallRequest}
	if b, waits := s.work.Record.Backoffs[fleet.ProcessAgentStart]; waits {
		was.AgentStart = &b
	}
	var err error
	if was.HostKeys, err = s.db.HostKeys(ctx, s.work.Record.ID); err != nil {
		return shepherd.Fail{Err: fmt.Errorf("read the host keys: %w", err)}, ResultFailed
	}
	err = s.work.Note(ctx, s.changes(entry, was.HostKeys)...)
	switch {
	case fleet.KindOf(err) == fleet.KindConflict:
		return shepherd.Cancel{Reason: err.Error()}, ResultNotNeeded
	case fleet.KindOf(err) == fleet.KindThrottled: // the budget is spent: nothing has failed there
		return shepherd.Fail{Err: provider.Queued(err)}, ResultFailed
	case err != nil:
		return shepherd.Fail{Err: fmt.Errorf("record the step: %w", err)}, ResultFailed
	}
	if err := s.look(ctx); err != nil {
		return s.unneeded(ctx, was, err)
	}
	s.logger.WarnContext(ctx, "recovery acts", slog.String("reason", s.work.Decision.Reason))
	// The call may wait for its turn, and for a pause that the provider wants: the last look is in
	// front of what is sent.
	if err = lever(provider.WithBeforeFirstSend(ctx, s.look), s.work.Record.ProviderID); provider.NothingSent(err) {
		return s.unneeded(ctx, was, fmt.Errorf("%s: %w", s.rung, err))
	}
	return s.answered(ctx, was, err)
}

// What the step was decided from is not so any more.
var (
	errUnneeded = errors.New("the machine reports again, or nothing is expected of it")
	errStopped  = errors.New("recovery is stopped")
	errRestored = errors.New("the database looks restored or copied")
)

// notNow reports whether a look has found that.
func notNow(err error) bool {
	return errors.Is(err, errUnneeded) || errors.Is(err, errStopped) || errors.Is(err, errRestored)
}

// unneeded is the outcome of a step of which nothing was sent.
func (s step) unneeded(ctx context.Context, was bmdb.BeforeStep, err error) (shepherd.Outcome, Result) {
	if notNow(err) {
		return shepherd.Finish{Changes: []bmdb.Change{bmdb.UndoStep(s.rung, was)}}, ResultNotNeeded
	}
	return s.undo(ctx, was, err), ResultFailed
}

// changes are what is committed before the call. After a reinstall the machine has the host key
// again that it was created with, if it was created with one; that may not be the one that is
// known.
func (s step) changes(entry provider.Entry, known fleet.HostKeys) []bmdb.Change {
	changes := []bmdb.Change{bmdb.TakeStep(s.rung)}
	fingerprint := remote.Fingerprint(entry.InjectedKey)
	if s.rung != fleet.RungReinstall || fingerprint == "" || known.Source == fleet.HostKeyInjected {
		return changes
	}
	return append(changes, bmdb.InjectHostKey(s.work.Record.ID, entry.InjectedKey, fingerprint))
}

// lever is what the step does; nil when the provider cannot do it.
func (s step) lever() func(context.Context, fleet.ProviderID) error {
	switch s.rung {
	case fleet.RungReboot:
		if p, ok := s.source.Provider.(provider.Rebooter); ok {
			return p.Reboot
		}
	case fleet.RungPowerCycle:
		if p, ok := s.source.Provider.(provider.Powerer); ok {
			return p.PowerCycle
		}
	case fleet.RungReinstall:
		if p, ok := s.source.Provider.(provider.Reinstaller); ok {
			return p.Reinstall
		}
	case fleet.RungAgentStart, fleet.RungQuarantine:
	}
	return nil
}

// look reads the machine once more, after the step was committed, and fails when the step must not
// be taken.
func (s step) look(ctx context.Context) error {
	return s.lookUnless(ctx, lifecycle.HeardSinceStep)
}

// lookAtOff is look at a machine that an earlier step has left off. What was heard of it since was
// sent before it went off.
func (s step) lookAtOff(ctx context.Context) error {
	return s.lookUnless(ctx, func(fleet.Record) bool { return false })
}

// lookUnless is look, where over says that a sign of life ends the step.
func (s step) lookUnless(ctx context.Context, over func(fleet.Record) bool) error {
	d, err := s.db.MachineDetails(ctx, s.work.Record.ID)
	if err != nil {
		return fmt.Errorf("read the machine: %w", err)
	}
	// rule 8
	if hold := d.Record.Holds[fleet.LaneHost]; hold.Session != s.work.Session || hold.Epoch != s.work.Epoch {
		return fleet.ErrLeaseLost
	}
	if !lifecycle.Repairing(d.Record, d.Environment, d.Now) || over(d.Record) {
		return errUnneeded
	}
	if d.Environment.Restored != "" { // rule 11
		return errRestored
	}
	// The step may have spent the budget itself.
	if h := d.Environment.RecoveryHold; h != nil && h.Cause != fleet.StopBudget && (h.Until == nil || h.Until.After(d.Now)) {
		return errStopped
	}
	if ctx.Err() != nil { // rule 5: no effect after the trust in the lease
		return context.Cause(ctx)
	}
	return nil
}

// undo takes back the step, which had no effect. The work has failed, unless it was stopped.
func (s step) undo(ctx context.Context, was bmdb.BeforeStep, err error) shepherd.Outcome {
	changes := []bmdb.Change{bmdb.UndoStep(s.rung, was)}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, fleet.ErrLeaseLost) {
		return shepherd.Cancel{Reason: shepherd.Cause(cause), Changes: changes} // a Fail would lose them
	}
	return shepherd.Fail{Err: err, Changes: changes}
}

// answered is the outcome of a call.
func (s step) answered(ctx context.Context, was bmdb.BeforeStep, err error) (shepherd.Outcome, Result) {
	switch fleet.KindOf(err) {
	case fleet.KindThrottled, fleet.KindUnauthenticated, fleet.KindForbidden, fleet.KindInUse:
		// Nothing was done, and it says nothing of the machine: the step does not count.
		return s.undo(ctx, was, fmt.Errorf("%s: %w", s.rung, err)), ResultFailed
	case fleet.KindNotFound:
		return shepherd.Finish{Changes: []bmdb.Change{gone(s.work.Record)}}, ResultNotNeeded
	case fleet.KindConflict, fleet.KindUnsupported, fleet.KindInvalid:
		// It would be refused again. The step counts, and the next one follows in its time.
		s.logger.WarnContext(ctx, "the provider refused the step", slog.Any("err", err))
		return shepherd.Finish{Changes: []bmdb.Change{bmdb.RefuseStep(s.rung, was, shepherd.Cause(err))}}, ResultRefused
	}
	done := []bmdb.Change{bmdb.StepDone(s.rung)}
	if err != nil { // it may have had its effect, so it counts
		return shepherd.Fail{Err: fmt.Errorf("%s: %w", s.rung, err), Changes: done}, ResultFailed
	}
	return shepherd.Finish{Changes: done}, ResultDone
}

const (
	// switchOnTries bounds how often a machine is switched on again that a power cycle has left off.
	switchOnTries = 3
	// switchingOn and switchedOn begin the causes of the backoff that these tries leave, by which they
	// are counted: another version beside this one reads them, so they stay as they are.
	switchingOn = "switch the machine on, which the power cycle left off"
	switchedOn  = "the power cycle had left the machine off: it was switched on, and is waited for"
)

// leftOff reports whether a power cycle of ours ended half-way, and the machine is to be switched
// on before anything else is done. One after which the machine was well has not left it off, nor
// has one that the provider refused: what was off before it has the next step in its time.
func (s step) leftOff(ctx context.Context, entry provider.Entry) (bool, error) {
	r := s.work.Record
	_, can := s.source.Provider.(provider.Powerer)
	b := r.Backoffs[fleet.ProcessRecovery]
	// A provider that could not even be asked has failed, too, and was not told to switch it on.
	tried := strings.HasPrefix(b.Cause, switchingOn) || strings.HasPrefix(b.Cause, switchedOn)
	if !can || entry.Status != fleet.ProviderStatusOff || r.Repair == nil || r.Repair.Rung != fleet.RungPowerCycle ||
		r.Repair.Refused || b.Failures >= switchOnTries && tried {
		return false, nil
	}
	d, err := s.db.MachineDetails(ctx, r.ID)
	return err == nil && lifecycle.Repairing(d.Record, d.Environment, d.Now), err
}

// switchOn finishes a power cycle. Its attempt was committed with the cycle. Then the machine has
// the time of a step to show a sign of life. While recovery is stopped, the machine stays off.
func (s step) switchOn(ctx context.Context) (shepherd.Outcome, Result) {
	env, err := s.db.Environment(ctx)
	if err != nil {
		return shepherd.Fail{Err: fmt.Errorf("read the policy: %w", err)}, ResultFailed
	}
	if err := s.lookAtOff(ctx); notNow(err) {
		return shepherd.Cancel{Reason: shepherd.Cause(err)}, ResultNotNeeded
	} else if err != nil {
		return shepherd.Fail{Err: err}, ResultFailed
	}
	// It may wait for its turn, as in call.
	err = s.source.Provider.(provider.Powerer).PowerOn(provider.WithBeforeFirstSend(ctx, s.lookAtOff), s.work.Record.ProviderID)
	switch {
	case notNow(err) && provider.NothingSent(err): // the step is the power cycle of before, and stays
		return shepherd.Cancel{Reason: shepherd.Cause(err)}, ResultNotNeeded
	case err != nil:
		return shepherd.Fail{Err: fmt.Errorf(switchingOn+": %w", err)}, ResultFailed
	}
	return shepherd.Fail{Err: &fleet.Error{
		Kind: fleet.KindTemporary, Message: switchedOn,
		RetryAfter: env.Policy.RecoveryStepTimeout,
	}}, ResultSwitchedOn
}
