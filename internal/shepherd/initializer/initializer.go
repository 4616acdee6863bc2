package initializer

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Initializer is the shepherd.Handler of the process agent-start.
type Initializer struct {
	db      *bmdb.DB
	sources shepherd.Sources[Source]
	config  Config
	dialer  *remote.Dialer
	logger  *slog.Logger

	// agent is the executable that is brought to the machines.
	agent *remote.Content
	// authority is the PEM form of the certificates that the endpoint's certificate must chain to;
	// empty: the public roots of the machines.
	authority []byte
}

// Options is what an Initializer is built with besides sources, configuration and key.
type Options struct {
	// Logger receives what an operator should know, the agents' standard error included. Nil: nothing
	// is logged.
	Logger *slog.Logger
	// Authority takes the place of Config.EndpointCA where that names no file. It has certificates in
	// PEM form.
	Authority []byte
}

// New returns the handler, which reaches machines with the key. It reads the files that the
// configuration names and reports every fault of the configuration.
func New(db *bmdb.DB, sources []Source, config Config, key *remote.Key, options Options) (*Initializer, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	kept, err := shepherd.NewSources(sources, func(s Source) (Source, error) { return s, nil })
	if err != nil {
		return nil, err
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	i := &Initializer{db: db, sources: kept, config: config, logger: options.Logger, authority: options.Authority}
	i.dialer = remote.NewDialer(key, remote.Options{
		Logger: options.Logger, ConnectTimeout: config.ConnectTimeout, HandshakeTimeout: config.StepTimeout, StepTimeout: config.StepTimeout,
	})
	if i.agent, err = remote.ReadContent(config.AgentExecutable); err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "agent_executable: %w", err)
	}
	if config.EndpointCA != "" {
		if i.authority, err = readAuthority(config.EndpointCA); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// readAuthority reads certificates in PEM form. Errors are of kind Invalid and name the key.
func readAuthority(path string) ([]byte, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "endpoint_ca: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return nil, fleet.Errorf(fleet.KindInvalid, "endpoint_ca: %s holds no certificate in PEM form", path)
	}
	return pem, nil
}

// Scope covers the configured providers.
func (i *Initializer) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessAgentStart, Providers: i.sources.Names(), Backoff: i.config.StartBackoff}
}

// Act starts the agent of one machine.
func (i *Initializer) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	source, err := i.sources.Of(work)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	late := fleet.Errorf(fleet.KindTimeout, "the start was not done within %s", i.config.WorkTimeout)
	limited, cancel := context.WithTimeoutCause(ctx, i.config.WorkTimeout, late)
	defer cancel()
	outcome := i.start(limited, source, work)
	failure, failed := outcome.(shepherd.Fail)
	if failed && ctx.Err() == nil && limited.Err() != nil && !errors.Is(failure.Err, late) {
		failure.Err = fmt.Errorf("%w: %w", late, failure.Err)
		return failure
	}
	return outcome
}

// start starts the agent of a machine of the source.
func (i *Initializer) start(ctx context.Context, source Source, work *bmdb.Work) shepherd.Outcome {
	entry, backoff, err := i.ask(ctx, source, work.Record.ProviderID)
	if err != nil {
		return shepherd.Fail{Err: err, Backoff: backoff}
	}
	target, err := i.target(ctx, source, work.Record.ID, entry)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	t := takeover{Initializer: i, work: work, target: target, logger: i.logger.With(slog.String("machine", string(work.Record.ID)))}
	started, err := t.run(ctx)
	if wrong, ok := errors.AsType[*remote.HostKeyError](err); ok {
		return shepherd.Fail{
			Err:     fmt.Errorf("%w; if the new key is right: `ironherd machine host-key accept %s %s`", err, work.Record.ID, wrong.Presented),
			Changes: []bmdb.Change{bmdb.RefuseHostKey(wrong.Key, wrong.Presented)},
		}
	}
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.SetAgentStarted(started)}}
}

// ask asks the provider for the machine. An error comes with the backoff that it asks for.
func (i *Initializer) ask(ctx context.Context, source Source, id fleet.ProviderID) (provider.Entry, fleet.Backoff, error) {
	entry, err := source.Provider.Get(ctx, id)
	switch fleet.KindOf(err) {
	case fleet.KindNotFound, fleet.KindInvalid:
		return entry, i.config.IDBackoff, fmt.Errorf("the provider does not know machine %q: %w", id, err)
	}
	if err != nil {
		return entry, i.config.ProviderBackoff, fmt.Errorf("ask the provider for the address: %w", err)
	}
	if fault := unreachable(entry); fault != "" {
		return entry, i.config.ProviderBackoff, fleet.Errorf(fleet.KindTemporary, "%s", fault)
	}
	return entry, fleet.Backoff{}, nil
}

// unreachable says why a machine cannot be reached, as far as its provider knows; "" when it can.
func unreachable(entry provider.Entry) string {
	switch {
	case entry.Invalid != "":
		return entry.Invalid
	case entry.Status != fleet.ProviderStatusActive:
		return fmt.Sprintf("the provider says that the machine is %s (%s)", entry.Status, entry.Detail)
	case !entry.Address.IsValid():
		return "the provider has no public address for the machine"
	}
	return ""
}

// target is where the machine is reached, and what its host key must be.
func (i *Initializer) target(ctx context.Context, source Source, machine fleet.MachineID, entry provider.Entry) (remote.Target, error) {
	keys, err := i.db.HostKeys(ctx, machine)
	if err != nil {
		return remote.Target{}, fmt.Errorf("read the known host keys: %w", err)
	}
	trust := remote.Trust{Attested: entry.HostKeys, Pinned: keys.Known, FirstUse: source.Config.TrustFirstUse}
	if keys.Source == fleet.HostKeyInstalled || keys.Source == fleet.HostKeyAccepted {
		trust = remote.Trust{Pinned: keys.Known} // what the provider delivered is not there any more
	}
	return remote.Target{
		Address: netip.AddrPortFrom(entry.Address, i.config.Port),
		User:    i.config.User,
		Trust:   trust,
	}, nil
}
