package initializer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Initializer is the shepherd.Handler of the process agent-start.
type Initializer struct {
	db      *bmdb.DB
	sources shepherd.Sources[Source]
	config  Config
	dial    func(context.Context, remote.Target) (Host, error)
	logger  *slog.Logger

	// agents are the executables that are brought to the machines, one for each architecture.
	agents []*remote.Content
	// authority is the PEM form of the certificates that the endpoint's certificate must chain to;
	// empty: the public roots of the machines.
	authority []byte
}

// Options is what an Initializer is built with besides sources, configuration and key.
type Options struct {
	// Logger receives what an operator should know, the agents' standard error included. Nil: nothing
	// is logged.
	Logger *slog.Logger
	// JumpHosts are those of the process. Nil: nobody else uses them.
	JumpHosts *remote.JumpHosts
	// Dial takes the place of SSH where no machine is to be reached: in a simulation. Then there need
	// be no key.
	Dial func(context.Context, remote.Target) (Host, error)
	// Authority takes the place of Config.EndpointCA where that names no file. It has certificates in
	// PEM form.
	Authority []byte
}

// Host is a machine that was reached. What it promises is told at remote.Host.
type Host interface {
	HostKey() remote.HostKey
	Choose(ctx context.Context, contents ...*remote.Content) (*remote.Content, error)
	Upload(ctx context.Context, content *remote.Content, base string, mode fs.FileMode) (remote.Uploaded, error)
	Run(ctx context.Context, command remote.Command) ([]byte, error)
	Close() error
}

// New returns the handler, which reaches machines with the key. It reads the files that the
// configuration names and reports every fault of the configuration.
func New(db *bmdb.DB, sources []Source, config Config, key *remote.Key, options Options) (*Initializer, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	i := &Initializer{db: db, sources: shepherd.Plain(sources), config: config, logger: options.Logger, authority: options.Authority, dial: options.Dial}
	if i.dial == nil {
		dialer := remote.NewDialer(key, remote.Options{
			Logger: options.Logger, ConnectTimeout: config.ConnectTimeout, HandshakeTimeout: config.StepTimeout, StepTimeout: config.StepTimeout,
			JumpHosts: options.JumpHosts,
		})
		i.dial = func(ctx context.Context, target remote.Target) (Host, error) {
			host, err := dialer.Dial(ctx, target)
			if err != nil {
				return nil, err
			}
			return host, nil
		}
	}
	var err error
	if i.agents, err = readAgents(config); err != nil {
		return nil, err
	}
	if config.EndpointCA != "" {
		if i.authority, err = secret.ReadAuthority(config.EndpointCA); err != nil {
			return nil, fleet.Errorf(fleet.KindInvalid, "endpoint_ca: %w", err)
		}
	}
	return i, nil
}

// readAgents reads the agent's executables. Two for one architecture are a fault: the second would
// never be used.
func readAgents(config Config) ([]*remote.Content, error) {
	first, err := remote.ReadContent(config.AgentExecutable)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "agent_executable: %w", err)
	}
	agents := []*remote.Content{first}
	for n, path := range config.OtherAgentExecutables {
		key := fmt.Sprintf("other_agent_executables[%d]", n)
		agent, err := remote.ReadContent(path)
		if err != nil {
			return nil, fleet.Errorf(fleet.KindInvalid, "%s: %w", key, err)
		}
		if agent.Architecture() == "" {
			return nil, fleet.Errorf(fleet.KindInvalid, "%s: %s is no executable of an architecture", key, path)
		}
		for _, before := range agents {
			if before.Architecture() == agent.Architecture() {
				return nil, fleet.Errorf(fleet.KindInvalid, "%s: %s is built for %s, as one before it is: name one executable for each architecture",
					key, path, agent.Architecture())
			}
		}
		agents = append(agents, agent)
	}
	return agents, nil
}

// Scope covers the configured providers.
func (i *Initializer) Scope() shepherd.Scope {
	return shepherd.Scope{Process: fleet.ProcessAgentStart, Providers: i.sources.Names(), Backoff: i.config.StartBackoff}
}

// Act starts the agent of one machine, or takes it off one that is to be what it was before a
// reinstall that was called off.
func (i *Initializer) Act(ctx context.Context, work *bmdb.Work) shepherd.Outcome {
	source, err := i.sources.Of(work)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	late := fleet.Errorf(fleet.KindTimeout, "the start was not done within %s", i.config.WorkTimeout)
	limited, cancel := context.WithTimeoutCause(ctx, i.config.WorkTimeout, late)
	defer cancel()
	do := i.start
	if lifecycle.Returning(work.Record) {
		do = i.takeOff
	}
	outcome := do(limited, source, work)
	failure, failed := outcome.(shepherd.Fail)
	if failed && ctx.Err() == nil && limited.Err() != nil && !errors.Is(failure.Err, late) {
		failure.Err = fmt.Errorf("%w: %w", late, failure.Err)
		return failure
	}
	return outcome
}

// start starts the agent of a machine of the source.
func (i *Initializer) start(ctx context.Context, source Source, work *bmdb.Work) shepherd.Outcome {
	entry, backoff, err := i.ask(ctx, source, work.Record)
	if err != nil {
		return shepherd.Fail{Err: err, Backoff: backoff}
	}
	if host, _, err := net.SplitHostPort(i.config.Endpoint); err == nil && secret.StaysHere(host) && !entry.StaysHere() {
		return shepherd.Fail{Err: fleet.Errorf(fleet.KindInvalid, "machines are told to call %s, where each finds itself: "+
			"set agent_api.endpoint (or initializer.endpoint) to an address that they can reach, and start ironherd again", i.config.Endpoint)}
	}
	target, err := i.target(ctx, source, work.Record.ID, entry)
	if err != nil {
		return shepherd.Fail{Err: err}
	}
	if !work.Failing() {
		target.Silence = i.config.FirstSilence
	}
	t := takeover{Initializer: i, work: work, target: target, way: source.Config.Takeover, logger: i.logger.With(slog.String("machine", string(work.Record.ID)))}
	started, err := t.run(ctx)
	if errors.Is(err, errUnwanted) || errors.Is(err, errRestored) {
		return shepherd.Cancel{Reason: err.Error()}
	}
	if changes, refused := refusal(work.Record.ID, err); changes != nil {
		return shepherd.Fail{Err: refused, Changes: changes, Answer: fleet.AnswerOtherKey}
	}
	if err != nil {
		return shepherd.Fail{Err: err, Answer: t.answered(ctx, err)}
	}
	return shepherd.Finish{Changes: append(t.notes, bmdb.SetAgentStarted(started))}
}

// refusal returns what to record of a host with another key, so that a person can accept the key,
// and the error with what to do about it; nil and the error itself for any other error.
func refusal(machine fleet.MachineID, err error) ([]bmdb.Change, error) {
	wrong, ok := errors.AsType[*remote.HostKeyError](err)
	if !ok {
		return nil, err
	}
	why := ""
	if wrong.Source == remote.SourceInjected {
		why = "; an image that ignores user data makes a key of its own: the provider's inject_host_key is not for such images"
	}
	return []bmdb.Change{bmdb.RefuseHostKey(wrong.Key, wrong.Presented)},
		fmt.Errorf("%w%s; %s", err, why, wrong.Remedy(machine))
}

// ask asks the provider for the machine. An error comes with the backoff that it asks for. One that
// is recorded as not on, or without an address, is asked for ever more seldom: the backoff ends
// when another status or an address is recorded.
func (i *Initializer) ask(ctx context.Context, source Source, r fleet.Record) (provider.Entry, fleet.Backoff, error) {
	id := r.ProviderID
	entry, err := source.Ask(ctx, id)
	if fleet.KindOf(err) == fleet.KindNotFound {
		backoff := i.config.IDBackoff
		if provider.Keeps(source.Provider) { // a list costs nothing to ask, and may be right again soon
			backoff = i.config.ProviderBackoff
		}
		return entry, backoff, fmt.Errorf("the provider does not know machine %q: %w", id, err)
	}
	if err != nil {
		return entry, i.config.ProviderBackoff, fmt.Errorf("ask the provider for the address: %w", err)
	}
	if moved := source.Moved(r.Provided, entry); moved != "" {
		return entry, i.config.ProviderBackoff, fleet.Errorf(fleet.KindTemporary, "%s", moved)
	}
	if fault := unreachable(entry); fault != "" {
		backoff := i.config.ProviderBackoff
		if p := r.Provided; p != nil && (p.Status != fleet.ProviderStatusActive || !p.Address.IsValid() && addressless(entry)) {
			backoff = i.config.StartBackoff
		}
		return entry, backoff, fleet.Errorf(fleet.KindTemporary, "%s", fault)
	}
	return entry, fleet.Backoff{}, nil
}

// addressless says whether a machine is on, and its provider has no address for it.
func addressless(entry provider.Entry) bool {
	return entry.Invalid == "" && entry.Status == fleet.ProviderStatusActive && !entry.Address.IsValid()
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
	if keys.Source == fleet.HostKeyInjected { // what we made is known, so there is no first use
		trust = remote.Trust{Attested: entry.HostKeys, Injected: keys.Known}
	}
	if keys.Source == fleet.HostKeyInstalled || keys.Source == fleet.HostKeyAccepted {
		trust = remote.Trust{Pinned: keys.Known} // what the provider delivered is not there any more
	}
	target := remote.Target{
		Address: netip.AddrPortFrom(entry.Address, cmp.Or(entry.Access.Port, i.config.Port)),
		User:    cmp.Or(entry.Access.User, i.config.User),
		Trust:   trust,
	}
	if jump := entry.Access.Jump; jump != nil {
		target.Via = &remote.Target{
			Address: jump.Address, User: cmp.Or(jump.User, i.config.User), Trust: remote.Trust{Attested: []string{jump.HostKey}},
		}
	}
	return target, nil
}
