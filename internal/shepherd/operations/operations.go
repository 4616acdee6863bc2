package operations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Config is how operations are carried out. How long they may take to show their effect is policy
// (operation_timeout).
type Config struct {
	// Backoff between two attempts at an operation that the provider has not accepted.
	Backoff fleet.Backoff `yaml:"backoff"`
	// GiveUpAfter is how long an operation is tried, from the first try that failed, that the provider
	// does not accept for reasons that may pass.
	GiveUpAfter time.Duration `yaml:"give_up_after"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		Backoff:     fleet.Backoff{Initial: 10 * time.Second, Exponent: 1.5, Maximum: 5 * time.Minute},
		GiveUpAfter: time.Hour,
	}
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error {
	return errors.Join(shepherd.RequireBackoff("backoff", c.Backoff), shepherd.RequirePositive("give_up_after", c.GiveUpAfter))
}

// ProviderConfig is what the configuration of a provider says to operations.
type ProviderConfig struct {
	// Penalty is how long the capacity of a machine stays unused that the provider gave up and
	// that was replaced.
	Penalty time.Duration
}

// Source is a provider at whose machines operations are carried out.
type Source = shepherd.Source[ProviderConfig]

// Result is how far a piece of work has brought an operation.
type Result string

// The results.
const (
	// ResultAccepted: the provider has accepted it.
	ResultAccepted Result = "accepted"
	// ResultRepeated: the attempt failed, and is to be repeated.
	ResultRepeated Result = "repeated"
	// ResultDone: it ended with evidence of its effect.
	ResultDone Result = "done"
	// ResultFailed: it was given up.
	ResultFailed Result = "failed"
	// ResultUnwanted: the policy, which had asked for it, does not want it any more.
	ResultUnwanted Result = "unwanted"
)

// Cleaner leaves hosts of a list clean that are given back.
type Cleaner interface {
	// Clean stops our agent on the host of a machine and removes its files. It succeeds where there is
	// none, and where the host belongs to another machine now. It says in words what was done.
	Clean(ctx context.Context, work *bmdb.Work, entry provider.Entry) (did string, err error)
}

// Options is what the handler is built with besides its sources.
type Options struct {
	// Cleaner of hosts. Nil: hosts of a list cannot be given back here.
	Cleaner Cleaner
	// Logger receives what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
	// Observed is told how operations get on. It must not block. Nil: nobody is told.
	Observed func(operation fleet.Operation, result Result)
}

// Operations is the shepherd.Handler of the process operation.
type Operations struct {
	db      *bmdb.DB
	sources shepherd.Sources[Source]
	config  Config
	options Options
}

// New returns the handler for these sources. It reports every fault of the configuration.
func New(db *bmdb.DB, sources []Source, config Config, options Options) (*Operations, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	return &Operations{db: db, sources: shepherd.Plain(sources), config: config, options: options}, nil
}

// Scope covers the configured providers.
func (o *Operations) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessOperation, Providers: o.sources.Names(), Backoff: o.config.Backoff}
}

// Act brings one machine's operation on by one step.
func (o *Operations) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	source, err := o.sources.Of(work)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	r := work.Record
	request := r.OpenOperation()
	if request == nil {
		return o.unasked(ctx, source, work)
	}
	env, err := o.db.Environment(ctx)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	now, err := o.db.Now(ctx)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	run := &operation{
		Operations: o, work: work, source: source, env: env, now: now, request: *request, attempt: r.CurrentOperationAttempt(),
		logger: o.options.Logger.With(slog.String("machine", string(r.ID)), slog.String("operation", string(request.Operation))),
	}
	// The machine may have come back since the provider had learned last that it was gone.
	return run.advance(provider.WithAskedFor(ctx, now.Sub(request.At)))
}

// unasked is what is done without anybody's request. The policy has a machine replaced only if its
// provider, asked once more, gives it up still: what is recorded may be older than its repair.
func (o *Operations) unasked(ctx context.Context, source Source, work *bmdb.Work) shepherd.Outcome {
	r := work.Record
	if m := r.Maintenance; m != nil && m.Until != nil && !m.Over {
		return shepherd.Finish{Changes: []bmdb.Change{bmdb.MaintenanceOver()}}
	}
	asking, err := shepherd.Asking(ctx, o.db, work)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	entry, err := source.Ask(asking, r.ProviderID)
	if err == nil && entry.Invalid != "" {
		err = fleet.Errorf(fleet.KindUnknown, "the provider's answer cannot be used: %s", entry.Invalid)
	}
	if err == nil && entry.Status != fleet.ProviderStatusFailed {
		now, err := o.db.Now(ctx)
		if err != nil {
			return shepherd.Fail{Err: err}
		}
		return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetProvided(r.ID, r.ProviderID, entry.Provided(r.Provided, now))}}
	}
	if err != nil && fleet.KindOf(err) != fleet.KindNotFound {
		return shepherd.Fail{Err: fmt.Errorf("ask the provider for the machine: %w", err)}
	}
	if err := o.tooMany(ctx, source.Name); err != nil {
		return shepherd.Fail{Err: provider.Queued(err)}
	}
	err = work.Note(ctx, bmdb.ReplaceByPolicy())
	switch {
	case fleet.KindOf(err) == fleet.KindConflict:
		return shepherd.Cancel{Reason: shepherd.Cause(err)}
	case err != nil:
		return shepherd.Fail{Err: fmt.Errorf("record what the policy asks for: %w", err)}
	}
	return shepherd.Finish{}
}
