package provisioner

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Provisioner is the shepherd.Handler of the process provision.
type Provisioner struct {
	db      *bmdb.DB
	sources shepherd.Sources[*sourceState]
	options Options
}

// sourceState is a provider with what the handler remembers from one pass to the next.
type sourceState struct {
	Source
	// sending is when requests may be sent, and limiter when creations may begin.
	sending *sending
	limiter *shepherd.Limiter

	// mu guards the rest. A pass that has lost its lease may not have returned when the next one
	// begins.
	mu sync.Mutex
	// epoch is that of the newest pass of this process.
	epoch fleet.Epoch
	// looks counts, for an open intent, the complete lists in a row that say that another owner has
	// its capacity. Lists from before the end of the settling time do not count.
	looks map[fleet.MachineID]int
	// tried says which pass has tried an open intent last.
	tried map[fleet.MachineID]fleet.Epoch
	// refusals are the refusals since the provider created a machine.
	refusals refusals
	// hung are machines, by ID or token, that are not asked about for now: see askFor.
	hung map[string]bool
}

// Options is what a Provisioner is built with besides its sources.
type Options struct {
	// HostKey makes the host key of a machine from its creation token, always the same. Nil: none is
	// put into machines.
	HostKey func(fleet.Token) (provider.HostKey, error)
	// Logger receives what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
}

// New returns the handler for these sources. It reports every fault of their configurations.
func New(db *bmdb.DB, sources []Source, options Options) (*Provisioner, error) {
	kept, err := shepherd.NewSources(sources, func(s Source) (*sourceState, error) {
		empty := func() *shepherd.Limiter { return shepherd.EmptyLimiter(s.Config.CreateRate, db.Clock()) }
		return &sourceState{Source: s, sending: newSending(empty(), s.Config.CreateRate.Every), limiter: empty(), looks: make(map[fleet.MachineID]int), hung: make(map[string]bool)}, s.Config.Validate()
	})
	if err != nil {
		return nil, err
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	return &Provisioner{db: db, sources: kept, options: options}, nil
}

// Scope covers the configured providers.
func (p *Provisioner) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessProvision, Providers: p.sources.Names(), Backoff: DefaultConfig().Backoff}
}

// begins starts the pass of that epoch. What other processes created since the last pass of this
// one is not known here: then the buckets begin empty.
func (s *sourceState) begins(epoch fleet.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch+1 {
		s.sending.limiter.Drain()
		s.limiter.Drain()
	}
	s.epoch = epoch
}

// hangsAbout reports whether no questions about a machine are asked for now.
func (s *sourceState) hangsAbout(machine string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hung[machine]
}

// hangs notes that the provider did not answer a question about a machine.
func (s *sourceState) hangs(machine string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung[machine] = true
}

// answersAll notes that a pass had an answer to all that it asked.
func (s *sourceState) answersAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.hung)
}

// refuses takes in what a pass did and the first refusal in it, if there was one. It reports
// whether all refusals were of one piece of capacity.
func (s *sourceState) refuses(t tally, first *refusal) (alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.ended[endCreated] > 0 {
		s.refusals = refusals{}
	}
	return first != nil && s.refusals.add(first.intent.Capacity, t.ended[endRefused])
}

// refusals are which pieces of capacity were refused.
type refusals struct {
	capacity fleet.CapacityID
	// several pieces of capacity were refused.
	several bool
}

// add adds those of a pass, and reports whether all were of that piece of capacity alone.
func (r *refusals) add(first fleet.CapacityID, n int) (alone bool) {
	r.several = r.several || n > 1 || r.capacity != "" && r.capacity != first
	r.capacity = first
	return !r.several
}

// Act is one pass.
func (p *Provisioner) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	s, err := p.sources.Of(work)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	s.begins(work.Epoch)
	run := &pass{
		db: p.db, sources: p.sources, source: s, work: work, logger: p.options.Logger.With(slog.String("provider", string(s.Name))), makeHostKey: p.options.HostKey,
		apart: make(map[fleet.CapacityID][]fleet.MachineID), moved: make(map[fleet.MachineID]string), othersFail: make(map[fleet.ProviderName]bool),
	}
	if err := run.run(ctx); err != nil {
		failed, change := "the pass failed: "+shepherd.Cause(err), bmdb.FailPass
		if run.surveyed {
			failed, change = failed+run.leftAlone(), bmdb.SetPassResult
		}
		return shepherd.Fail{Err: err, Backoff: s.Config.Backoff, Changes: []bmdb.Change{change(failed)}}
	}
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetPassResult(run.result())}}
}

// pass is one pass of one provider.
type pass struct {
	db *bmdb.DB
	// sources are all providers, and source is the one of the pass.
	sources shepherd.Sources[*sourceState]
	source  *sourceState
	work    *bmdb.Work
	logger  *slog.Logger
	// makeHostKey is Options.HostKey.
	makeHostKey func(fleet.Token) (provider.HostKey, error)

	view   bmdb.ProviderView
	survey survey
	// surveyed: it is known which entries are left alone.
	surveyed bool
	// apart are, for a host that could become a machine, those of other providers that have its
	// address and are other hosts.
	apart map[fleet.CapacityID][]fleet.MachineID
	// moved are machines of this list whose address a host has that could become another one, with
	// what to do about it.
	moved map[fleet.MachineID]string

	// hangs: the provider did not answer a question about one machine.
	hangs bool
	// othersFail are providers that could not be asked how another host is reached.
	othersFail map[fleet.ProviderName]bool

	discrepancies int
	tally         tally
	// tokenAsks counts the intents that are given up and whose machines were looked for.
	tokenAsks atomic.Int32
	// gaveWay counts the intents that gave way, or would have.
	gaveWay atomic.Int32
	// firstRefusal is the first request of the pass that the provider refused as such.
	firstRefusal atomic.Pointer[refusal]
}

func (p *pass) run(ctx context.Context) error {
	entries, view, err := p.source.Look(ctx, p.db, p.source.Provider.List)
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
	if err := p.takeElsewhere(ctx, entries); err != nil {
		return err
	}
	if err := p.takeTwins(ctx); err != nil {
		return err
	}
	p.surveyed = true
	p.logUnusable(ctx)
	if err := p.refresh(ctx, entries); err != nil {
		return err
	}
	changes, err := p.settle(ctx)
	if err != nil {
		return err
	}
	discrepancies, provided, err := p.compare(ctx)
	if err != nil {
		return err
	}
	if !p.hangs {
		p.source.answersAll()
	}
	p.discrepancies = len(discrepancies)
	changes = append(append(changes, provided...), bmdb.SetDiscrepancies(p.bounded(discrepancies)))
	if err := p.work.Note(ctx, changes...); err != nil {
		return fmt.Errorf("record what was found: %w", err)
	}
	if len(discrepancies) > 0 {
		p.logger.WarnContext(ctx, "creation is stopped by discrepancies", slog.Int("discrepancies", len(discrepancies)))
		return nil
	}
	return p.create(ctx)
}

// reasonLength bounds the reason why an entry is left alone, in bytes.
const reasonLength = 300

// result is what is kept of the pass, for people: the summary, and then a line for each entry that
// is left alone, with the reason.
func (p *pass) result() string {
	return p.summary() + p.leftAlone()
}

// leftAlone is a line for each entry that is left alone.
func (p *pass) leftAlone() string {
	var lines strings.Builder
	for i, reason := range p.survey.unusable {
		if i == bmdb.UnusableNamed {
			fmt.Fprintf(&lines, "\nand %d more", len(p.survey.unusable)-i)
			break
		}
		lines.WriteString("\n" + fleet.Clip(strings.Join(strings.Fields(reason), " "), reasonLength))
	}
	return lines.String()
}

// summary is the result of the pass in one clause.
func (p *pass) summary() string {
	parts := []string{
		fmt.Sprintf("%d used, %d free", p.survey.used, len(p.survey.free)+len(p.survey.retry)+len(p.survey.held)),
	}
	for _, part := range []struct {
		count int
		text  string
	}{
		{p.tally.ended[endCreated], "%d created"},
		{p.tally.adopted, "%d found by token"},
		{p.tally.takenIn, "%d adopted"},
		{p.tally.failed(), "%d creations failed"},
		{p.tally.ended[endUnanswered], "%d creations unanswered"},
		{p.tally.waiting, "%d wait for a later pass"},
		{p.tally.full, "%d wait because max_machines is reached"},
		{p.survey.penalized, "%d sit out a penalty"},
		{len(p.survey.unusable), "%d unusable"},
	} {
		if part.count > 0 {
			parts = append(parts, fmt.Sprintf(part.text, part.count))
		}
	}
	if p.tally.unlisted > 0 {
		parts = append(parts, p.unlisted())
	}
	if kept := p.survey.keptOut; len(kept) > 0 {
		parts = append(parts, fmt.Sprintf("%d kept out (`ironherd provider show %s` names all, and what uses one again): %s", len(kept), p.source.Name, someOf(kept)))
	}
	if kept := p.survey.keptOutAt; len(kept) > 0 {
		parts = append(parts, fmt.Sprintf("%d kept out by address: %s", len(kept), someOf(kept)))
	}
	if p.tally.paused() {
		parts = append(parts, "creation is stopped: the provider was paused meanwhile")
	}
	switch {
	case p.discrepancies == 1:
		parts = append(parts, "creation is stopped: 1 discrepancy")
	case p.discrepancies > 1:
		parts = append(parts, fmt.Sprintf("creation is stopped: %d discrepancies", p.discrepancies))
	}
	return strings.Join(parts, ", ")
}

// unlisted says that the list lacks machines which the provider has. For a while that is how lists
// are; one that stays so is no list to judge by.
func (p *pass) unlisted() string {
	missing, there := len(p.survey.missing), p.tally.unlisted
	if there < missing { // gone, not asked for in this pass, or without an answer
		return fmt.Sprintf("%d not in its list, of which %d are there when asked for by ID", missing, there)
	}
	return fmt.Sprintf("%d not in its list, and there when asked for by ID", missing)
}

// shownKeptOut is how much of what is kept out a summary names.
const shownKeptOut = 3

func someOf(all []string) string {
	if rest := len(all) - shownKeptOut; rest > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:shownKeptOut], "; "), rest)
	}
	return strings.Join(all, "; ")
}
