package provisioner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Provisioner is the shepherd.Handler of the process provision.
type Provisioner struct {
	db      *bmdb.DB
	sources map[fleet.ProviderName]*source
	logger  *slog.Logger
}

// source is a provider instance with what is remembered of it from one pass to the next.
type source struct {
	Source
	limiter *rate.Limiter

	mu sync.Mutex
	// looks counts in how many complete lists after the settling time an open intent was seen to come
	// to nothing.
	looks map[fleet.MachineID]int
}

// New returns the handler for these sources. It reports every fault of their configurations.
func New(db *bmdb.DB, sources []Source, logger *slog.Logger) (*Provisioner, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	p := &Provisioner{db: db, sources: make(map[fleet.ProviderName]*source, len(sources)), logger: logger}
	var faults []error
	for _, s := range sources {
		if err := s.Config.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("provider %s: %w", s.Name, err))
			continue
		}
		p.sources[s.Name] = &source{
			Source: s, limiter: shepherd.EmptyLimiter(s.Config.CreateRate), looks: make(map[fleet.MachineID]int),
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return p, nil
}

// Scope covers the configured providers.
func (p *Provisioner) Scope() shepherd.Scope {
	scope := shepherd.Scope{Process: fleet.ProcessProvision, Backoff: DefaultConfig().Backoff}
	for name := range p.sources {
		scope.Providers = append(scope.Providers, name)
	}
	return scope
}

// Act is one pass.
func (p *Provisioner) Act(ctx context.Context, work *bmdb.Work) (shepherd.Outcome, error) {
	s, ok := p.sources[work.Subject.Provider]
	if !ok {
		return nil, fleet.Errorf(fleet.KindInvalid, "provider %q is not configured here", work.Subject.Provider)
	}
	run := &pass{db: p.db, source: s, work: work, logger: p.logger.With(slog.String("provider", string(s.Name)))}
	if err := run.run(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return shepherd.Fail{
			Err: err, Backoff: s.Config.Backoff, Changes: []bmdb.Change{bmdb.SetPassResult("the pass failed: " + shepherd.Cause(err))},
		}, nil
	}
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetPassResult(run.summary())}}, nil
}

// pass is one pass of one provider.
type pass struct {
	db     *bmdb.DB
	source *source
	work   *bmdb.Work
	logger *slog.Logger

	view   bmdb.ProviderView
	survey survey

	discrepancies int
	tally         tally
}

func (p *pass) run(ctx context.Context) error {
	entries, err := p.look(ctx)
	if err != nil {
		return err
	}
	if p.survey, err = take(entries, p.view, p.source.Config.SettlingTime); err != nil {
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

// look reads both sides at once.
func (p *pass) look(ctx context.Context) ([]provider.Entry, error) {
	var entries []provider.Entry
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if entries, err = p.source.Provider.List(both); err != nil {
			return fmt.Errorf("list the provider: %w", err)
		}
		return nil
	})
	group.Go(func() (err error) {
		if p.view, err = p.db.ViewProvider(both, p.source.Name); err != nil {
			return fmt.Errorf("view the BMDB: %w", err)
		}
		return nil
	})
	return entries, group.Wait()
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
		{p.tally.open, "%d creations unanswered"},
		{p.tally.waiting, "%d wait for a later pass"},
		{p.tally.full, "%d wait because max_machines is reached"},
		{p.survey.resting, "%d sit out a penalty"},
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
