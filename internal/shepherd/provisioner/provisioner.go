package provisioner

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Provisioner is the shepherd.Handler of the process provision.
type Provisioner struct {
	db      *bmdb.DB
	sources shepherd.Sources[*sourceState]
	logger  *slog.Logger
}

// sourceState is a provider with what the handler remembers from one pass to the next.
type sourceState struct {
	Source
	limiter *rate.Limiter

	mu sync.Mutex
	// looks counts, for an open intent, the complete lists in a row that say that another owner has
	// its capacity. Lists from before the end of the settling time do not count.
	looks map[fleet.MachineID]int
}

// Options is what a Provisioner is built with besides its sources.
type Options struct {
	// Logger receives what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
}

// New returns the handler for these sources. It reports every fault of their configurations.
func New(db *bmdb.DB, sources []Source, options Options) (*Provisioner, error) {
	kept, err := shepherd.NewSources(sources, func(s Source) (*sourceState, error) {
		limiter := shepherd.EmptyLimiter(s.Config.CreateRate)
		return &sourceState{Source: s, limiter: limiter, looks: make(map[fleet.MachineID]int)}, s.Config.Validate()
	})
	if err != nil {
		return nil, err
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	return &Provisioner{db: db, sources: kept, logger: options.Logger}, nil
}

// Scope covers the configured providers.
func (p *Provisioner) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessProvision, Providers: p.sources.Names(), Backoff: DefaultConfig().Backoff}
}

// Act is one pass.
func (p *Provisioner) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	s, err := p.sources.Of(work)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	run := &pass{db: p.db, source: s, work: work, logger: p.logger.With(slog.String("provider", string(s.Name)))}
	if err := run.run(ctx); err != nil {
		return shepherd.Fail{
			Err: err, Backoff: s.Config.Backoff, Changes: []bmdb.Change{bmdb.SetPassResult("the pass failed: " + shepherd.Cause(err))},
		}
	}
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetPassResult(run.summary())}}
}

// pass is one pass of one provider.
type pass struct {
	db     *bmdb.DB
	source *sourceState
	work   *bmdb.Work
	logger *slog.Logger

	view   bmdb.ProviderView
	survey survey

	discrepancies int
	tally         tally
}

func (p *pass) run(ctx context.Context) error {
	entries, view, err := p.source.Look(ctx, p.db)
	if err != nil {
		return err
	}
	p.view = view
	closed, err := p.db.ClosedTokens(ctx, p.source.Name, unexplained(entries, p.view))
	if err != nil {
		return fmt.Errorf("look up the tokens of the list: %w", err)
	}
	if p.survey, err = takeSurvey(entries, p.view, closed, p.source.Config.SettlingTime); err != nil {
		return err
	}
	for _, reason := range p.survey.unusable {
		p.logger.WarnContext(ctx, "entry is left alone", slog.String("reason", reason))
	}
	changes, err := p.settle(ctx)
	if err != nil {
		return err
	}
	discrepancies, err := p.compare(ctx)
	if err != nil {
		return err
	}
	p.discrepancies = len(discrepancies)
	if err := p.work.Note(ctx, append(changes, bmdb.SetDiscrepancies(discrepancies))...); err != nil {
		return fmt.Errorf("record what was found: %w", err)
	}
	if len(discrepancies) > 0 {
		p.logger.WarnContext(ctx, "creation is stopped by discrepancies", slog.Int("discrepancies", len(discrepancies)))
		return nil
	}
	return p.create(ctx)
}

// summary is the result of the pass, for people.
func (p *pass) summary() string {
	parts := []string{
		fmt.Sprintf("%d used, %d free", p.survey.used, len(p.survey.free)+len(p.survey.retry)),
	}
	for _, part := range []struct {
		count int
		text  string
	}{
		{p.tally.created, "%d created"},
		{p.tally.adopted, "%d found by token"},
		{p.tally.failed, "%d creations failed"},
		{p.tally.unanswered, "%d creations unanswered"},
		{p.tally.waiting, "%d wait for a later pass"},
		{p.tally.full, "%d wait because max_machines is reached"},
		{p.survey.penalized, "%d sit out a penalty"},
		{len(p.survey.unusable), "%d unusable"},
	} {
		if part.count > 0 {
			parts = append(parts, fmt.Sprintf(part.text, part.count))
		}
	}
	if p.discrepancies > 0 {
		parts = append(parts, fmt.Sprintf("creation is stopped: %d discrepancies", p.discrepancies))
	}
	return strings.Join(parts, ", ")
}
