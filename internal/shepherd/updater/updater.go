// Package updater refreshes what the BMDB knows from providers: the process update, one pass of one
// provider at a time. A pass reads the list of machines instead of making a call for each.
//
// It writes what changed and nothing else: status, address, location, capacity. Lists lag. So it
// asks for a machine by its ID, a bounded number in a pass, when the list denies what is recorded:
// when the machine is not in the list any more, or when it is gone and is in the list again. The
// machine is gone, or back, only when the provider says so of that very machine; but a host is back
// when a list of hosts has it, which does not lag. What the list says is written before anything is
// asked, and a provider that hangs is not asked for more in that pass.
//
// When most of the machines that the list should have are missing at once, the updater doubts the
// list: it declares nothing gone, and the pass fails with that as its cause.
package updater

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Config is how facts are refreshed at one provider. How often is policy (update_interval,
// update_settled_interval).
type Config struct {
	// AsksPerPass bounds how many missing machines one pass asks for by their IDs.
	AsksPerPass int `yaml:"asks_per_pass"`
	// SettlingTime is how long the provider's lists may lag.
	SettlingTime time.Duration `yaml:"settling_time"`
	// Backoff of passes that failed.
	Backoff fleet.Backoff `yaml:"backoff"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		AsksPerPass:  20,
		SettlingTime: 15 * time.Minute,
		Backoff:      fleet.Backoff{Initial: 10 * time.Second, Exponent: 1.5, Maximum: 5 * time.Minute},
	}
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error {
	var faults []error
	if c.AsksPerPass < 1 {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "asks_per_pass must be at least 1, not %d", c.AsksPerPass))
	}
	return errors.Join(append(faults,
		shepherd.RequirePositive("settling_time", c.SettlingTime),
		shepherd.RequireBackoff("backoff", c.Backoff))...)
}

// Source is a provider whose facts are refreshed.
type Source = shepherd.Source[Config]

// Updater is the shepherd.Handler of the process update.
type Updater struct {
	db      *bmdb.DB
	sources shepherd.Sources[*sourceState]
	logger  *slog.Logger
}

// sourceState is a provider with what the handler remembers from one pass to the next.
type sourceState struct {
	Source

	mu sync.Mutex
	// asked is the last machine that a pass has asked for; the next pass goes on after it.
	asked fleet.MachineID
}

// Options is what an Updater is built with besides its sources.
type Options struct {
	// Logger receives what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
}

// New returns the handler for these sources. It reports every fault of their configurations.
func New(db *bmdb.DB, sources []Source, options Options) (*Updater, error) {
	kept, err := shepherd.NewSources(sources, func(s Source) (*sourceState, error) {
		return &sourceState{Source: s}, s.Config.Validate()
	})
	if err != nil {
		return nil, err
	}
	return &Updater{db: db, sources: kept, logger: cmp.Or(options.Logger, slog.New(slog.DiscardHandler))}, nil
}

// Scope covers the configured providers.
func (u *Updater) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessUpdate, Providers: u.sources.Names(), Backoff: DefaultConfig().Backoff}
}

// Act is one pass.
func (u *Updater) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	s, err := u.sources.Of(work)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	p := &pass{db: u.db, source: s, work: work, logger: u.logger.With(slog.String("provider", string(s.Name)))}
	if err := p.run(ctx); err != nil {
		return shepherd.Fail{Err: err, Backoff: s.Config.Backoff}
	}
	return shepherd.Finish{}
}

// batch is how many machines are written in one transaction.
const batch = 100

// pass is one pass of one provider.
type pass struct {
	db     *bmdb.DB
	source *sourceState
	work   *bmdb.Work
	logger *slog.Logger

	view    bmdb.ProviderView
	changes []bmdb.Change
}

func (p *pass) run(ctx context.Context) error {
	entries, view, err := p.source.Look(ctx, p.db, p.source.Provider.ListMachines)
	if err != nil {
		return err
	}
	p.view = view
	of, known := p.compare(ctx, entries)
	missing := len(of[provider.PresenceMissing])
	loss := provider.SuddenLoss(known, missing)
	doubtful := of[provider.PresenceBack]
	if !loss {
		doubtful = append(doubtful, of[provider.PresenceMissing]...)
	}
	if !loss && (missing == 0 || missing < known) { // else it may be the list of something else
		doubtful = append(doubtful, of[provider.PresenceLeft]...)
	}
	if err := p.record(ctx); err != nil { // the answers may take long
		return err
	}
	if err := p.ask(ctx, doubtful); err != nil {
		return err
	}
	if err := p.record(ctx); err != nil {
		return err
	}
	if loss {
		return fleet.Errorf(fleet.KindUnknown, "%d of %d machines are missing from the provider's list: the list is doubted, nothing is "+
			"declared gone", missing, known)
	}
	return nil
}

// compare notes what changed. It returns the machines that are not simply listed, by what the list
// says of them, and how many it should have.
func (p *pass) compare(ctx context.Context, entries []provider.Entry) (of map[provider.Presence][]bmdb.ProviderMachine, known int) {
	listed := make(map[fleet.ProviderID]provider.Entry, len(entries))
	for _, entry := range entries {
		listed[entry.ID] = entry
	}
	of = make(map[provider.Presence][]bmdb.ProviderMachine)
	for _, m := range p.view.Machines {
		if m.ProviderID == "" || m.Provided == nil {
			continue
		}
		entry, present := listed[m.ProviderID]
		is := provider.PresenceOf(*m.Provided, present, m.Releasing, p.view.Now, p.source.Config.SettlingTime)
		if is.Expected() {
			known++
		}
		if is == provider.PresenceBack && provider.Keeps(p.source.Provider) {
			is = provider.PresenceListed
		}
		if is == provider.PresenceListed && entry.Invalid == "" && !provider.Keeps(p.source.Provider) &&
			entry.Status == fleet.ProviderStatusCreating && m.Provided.Status != fleet.ProviderStatusCreating {
			is = provider.PresenceBack // an installed system would count as destroyed, and lists lag
		}
		if is != provider.PresenceListed { // which are nearly all
			of[is] = append(of[is], m)
		}
		switch {
		case is != provider.PresenceListed:
		case entry.Invalid != "":
			p.logger.WarnContext(ctx, "entry is left alone", slog.String("machine", string(m.ID)), slog.String("reason", entry.Invalid))
		default:
			p.note(m, entry)
		}
	}
	return of, known
}

// note writes an entry's facts when they differ from those that are recorded.
func (p *pass) note(m bmdb.ProviderMachine, entry provider.Entry) {
	fact := entry.Provided(m.Provided, p.view.Now)
	if !provider.SameFact(fact, *m.Provided) {
		p.changes = append(p.changes, bmdb.SetProvided(m.ID, m.ProviderID, fact))
	}
}

// record writes what was noted.
func (p *pass) record(ctx context.Context) error {
	for chunk := range slices.Chunk(p.changes, batch) {
		if err := p.work.Note(ctx, chunk...); err != nil {
			return fmt.Errorf("record what changed: %w", err)
		}
	}
	p.changes = nil
	return nil
}

// ask asks for machines by their IDs, and notes what the answers say. A provider that hangs is
// left: the next pass goes on after the machine whose answer did not come.
func (p *pass) ask(ctx context.Context, doubtful []bmdb.ProviderMachine) error {
	for _, m := range p.nextToAsk(doubtful) {
		entry, err := p.source.Ask(ctx, m.ProviderID)
		p.asked(m.ID)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("ask for a machine by its ID: %w", context.Cause(ctx))
		case err == nil && entry.Invalid != "":
			p.logger.WarnContext(ctx, "entry is left alone", slog.String("machine", string(m.ID)), slog.String("reason", entry.Invalid))
		case err == nil:
			p.note(m, entry)
		case fleet.KindOf(err) != fleet.KindNotFound:
			p.logger.WarnContext(ctx, "machine cannot be asked for", slog.String("machine", string(m.ID)), slog.Any("err", err))
			if fleet.KindOf(err) == fleet.KindTimeout {
				return nil
			}
		case m.Provided.Status != fleet.ProviderStatusGone:
			p.logger.WarnContext(ctx, "machine is gone", slog.String("machine", string(m.ID)), slog.Any("err", err))
			p.changes = append(p.changes, bmdb.SetProvided(m.ID, m.ProviderID, provider.Gone(m.Provided)))
		}
	}
	return nil
}

// nextToAsk picks the machines that this pass asks for: those after the last one that an earlier
// pass asked for, then from the beginning.
func (p *pass) nextToAsk(doubtful []bmdb.ProviderMachine) []bmdb.ProviderMachine {
	slices.SortFunc(doubtful, func(a, b bmdb.ProviderMachine) int { return cmp.Compare(a.ID, b.ID) })
	s := p.source
	s.mu.Lock()
	defer s.mu.Unlock()
	start := 0
	for start < len(doubtful) && doubtful[start].ID <= s.asked {
		start++
	}
	picked := append(slices.Clone(doubtful[start:]), doubtful[:start]...)
	return picked[:min(len(picked), s.Config.AsksPerPass)]
}

// asked remembers the machine that was asked for last.
func (p *pass) asked(id fleet.MachineID) {
	p.source.mu.Lock()
	defer p.source.mu.Unlock()
	p.source.asked = id
}
