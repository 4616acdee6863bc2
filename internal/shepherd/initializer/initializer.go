package initializer

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Initializer is the shepherd.Handler of the process agent-start.
type Initializer struct {
	db      *bmdb.DB
	sources map[fleet.ProviderName]Source
	dialer  *remote.Dialer
	payload Payload
	config  Config
	logger  *slog.Logger
}

// Options is what an Initializer is built with besides its configuration.
type Options struct {
	Sources []Source
	// Dialer reaches the machines; its connect timeout is Config.ConnectTimeout.
	Dialer  *remote.Dialer
	Payload Payload
	// Logger receives what an operator should know, the agents' standard error included. Nil: nothing
	// is logged.
	Logger *slog.Logger
}

// New returns the handler. It reports every fault of the configuration.
func New(db *bmdb.DB, config Config, options Options) (*Initializer, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	i := &Initializer{
		db: db, sources: make(map[fleet.ProviderName]Source, len(options.Sources)), dialer: options.Dialer,
		payload: options.Payload, config: config, logger: options.Logger,
	}
	if i.logger == nil {
		i.logger = slog.New(slog.DiscardHandler)
	}
	for _, source := range options.Sources {
		i.sources[source.Name] = source
	}
	return i, nil
}

// Scope covers the configured providers.
func (i *Initializer) Scope() shepherd.Scope {
	scope := shepherd.Scope{Process: fleet.ProcessAgentStart, Backoff: i.config.StartBackoff}
	for name := range i.sources {
		scope.Providers = append(scope.Providers, name)
	}
	return scope
}

// Act starts the agent of one machine.
func (i *Initializer) Act(ctx context.Context, work *bmdb.Work) (shepherd.Outcome, error) {
	source, ok := i.sources[work.Record.Machine.Provider]
	if !ok {
		return nil, fleet.Errorf(fleet.KindInvalid, "provider %q is not configured here", work.Record.Machine.Provider)
	}
	entry, failure := i.ask(ctx, source, work.Record.ProviderID)
	if failure != nil {
		return *failure, nil
	}
	target, err := i.target(ctx, source, work.Record.ID, entry)
	if err != nil {
		return nil, err
	}
	executing, cancel := context.WithTimeout(ctx, i.config.ExecuteTimeout)
	defer cancel()
	t := takeover{Initializer: i, work: work, target: target, logger: i.logger.With(slog.String("machine", string(work.Record.ID)))}
	started, err := t.run(executing)
	if err != nil {
		return nil, err
	}
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetAgentStarted(started)}}, nil
}

// ask asks the provider for the machine.
func (i *Initializer) ask(ctx context.Context, source Source, id fleet.ProviderID) (provider.Entry, *shepherd.Fail) {
	entry, err := source.Provider.Get(ctx, id)
	switch kind := fleet.KindOf(err); {
	case err == nil:
	case kind == fleet.KindNotFound, kind == fleet.KindInvalid:
		return entry, &shepherd.Fail{Err: fmt.Errorf("the provider does not know machine %q: %w", id, err), Backoff: i.config.IDBackoff}
	default:
		return entry, &shepherd.Fail{Err: fmt.Errorf("ask the provider for the address: %w", err), Backoff: i.config.ProviderBackoff}
	}
	var fault string
	switch {
	case entry.Invalid != "":
		fault = entry.Invalid
	case entry.Status != fleet.ProviderStatusActive:
		fault = fmt.Sprintf("the provider says that the machine is %s (%s)", entry.Status, entry.Detail)
	case !entry.Address.IsValid():
		fault = "the provider has no public address for the machine"
	default:
		return entry, nil
	}
	return entry, &shepherd.Fail{Err: fleet.Errorf(fleet.KindTemporary, "%s", fault), Backoff: i.config.ProviderBackoff}
}

// target is where the machine is reached, and what its host key must be.
func (i *Initializer) target(ctx context.Context, source Source, machine fleet.MachineID, entry provider.Entry) (remote.Target, error) {
	pinned, err := i.db.HostKeys(ctx, machine)
	if err != nil {
		return remote.Target{}, fmt.Errorf("read the pinned host keys: %w", err)
	}
	return remote.Target{
		Address: netip.AddrPortFrom(entry.Address, i.config.Port),
		User:    i.config.User,
		Trust:   remote.Trust{Attested: entry.HostKeys, Pinned: pinned, FirstUse: source.TrustFirstUse},
	}, nil
}
