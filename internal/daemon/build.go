package daemon

import (
	"context"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/agentapi"
	"github.com/ironherd/ironherd/internal/server/fleetapi"
	"github.com/ironherd/ironherd/internal/service"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/janitor"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/prober"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// components are the parts that the roles of a control plane ask for.
type components struct {
	all    []service.Component
	agents *agentapi.Server
	// operators is what they are told of the other parts.
	operators fleetapi.Options
}

func (c *components) add(name string, stage service.Stage, serve func(context.Context) error) {
	c.all = append(c.all, service.Component{Name: name, Stage: stage, Serve: serve})
}

// build makes every component but those of the operators (buildOperators).
func (d *Daemon) build(ctx context.Context) (components, error) {
	var parts components
	if err := d.refuseAnotherKey(ctx); err != nil {
		return parts, err
	}
	key, err := openKey(d.config.SSH.KeyFile, d.logger)
	if err != nil {
		return parts, err
	}
	providers, err := d.openProviders(ctx, key.Public())
	if err != nil {
		return parts, err
	}
	d.providers = providers
	parts.operators.Pacing = func(name fleet.ProviderName) string { return pacingOf(providers, name) }
	certificates, err := d.openCertificates(ctx)
	if err != nil {
		return parts, err
	}
	if err := d.buildLoops(&parts, providers, key, certificates); err != nil {
		return parts, err
	}
	health := newDatabaseHealth(d.db)
	parts.all = append(parts.all, health.component())
	parts.operators.Writable = health.writable
	d.metrics.Writable(func() bool { return health.writable(context.WithoutCancel(ctx)) == nil })
	if d.config.Has(fleet.RoleJanitor) {
		process := d.loopOptions()
		j, err := janitor.New(d.db, d.config.Janitor, janitor.Options{
			Logger: d.loggerOf("janitor"), Host: process.Host, PID: process.PID,
			Observed: func(duty janitor.Duty, rows int, took time.Duration, err error) {
				d.metrics.JanitorDone(string(duty), rows, took, err)
			},
		})
		if err != nil {
			return parts, err
		}
		parts.add("janitor", service.State, j.Run)
		parts.operators.Findings, parts.operators.Failing = j.Findings, j.Failing
		d.metrics.DatabaseFaults(func() int { return len(j.Findings()) })
		if !d.config.Has(fleet.RoleOperatorAPI) {
			d.loggerOf("janitor").Warn("what the checks of the database find, and what the janitor fails at, is in this log alone, and neither in /metrics nor in `ironherd status`: " +
				"give the process that has the role janitor the role operator-api, too")
		}
	}
	if d.config.Has(fleet.RoleAgentAPI) {
		parts.agents = agentapi.New(d.db, d.config.AgentAPI, agentapi.Options{
			Logger: d.loggerOf("agent-api"), Certificates: certificates, Observer: d.metrics.AgentAPI(),
		})
		parts.operators.Progress = parts.agents.Progress
		d.metrics.ConnectedAgents(parts.agents.Agents)
		parts.add("agent-api", service.Listeners, serveOn(d.agents, parts.agents.Serve))
		parts.add("certificates", service.State, certificates.Serve)
		parts.operators.Certificates = append(parts.operators.Certificates, certificates)
		d.metrics.Certificate(certificates.Listener(), certificates.Expires, certificates.ExpiresSoon, certificates.Trouble)
	}
	return parts, nil
}

// loggerOf returns the logger of a component.
func (d *Daemon) loggerOf(name string) *slog.Logger {
	return d.logger.With(slog.String("component", name))
}

// openCertificates returns the certificates of the agent API; nil where neither it nor the
// initializer runs.
func (d *Daemon) openCertificates(ctx context.Context) (*server.Certificates, error) {
	c := d.config
	if !d.needsCertificates() {
		return nil, nil
	}
	if c.AgentAPI.TLS.Certificate == "" {
		if err := d.refuseAnotherAuthority(ctx); err != nil {
			return nil, err
		}
		// Where this is set, it says what agents are given, by whichever process starts them.
		if c.Initializer.EndpointCA == "" {
			if err := d.keepAuthority(ctx); err != nil {
				return nil, err
			}
		}
	}
	return c.AgentAPI.TLS.Open(c.Dir, c.AgentAPI.Hosts(c.Initializer.Endpoint), c.GivenToAgents(), d.loggerOf("agent-api"))
}

// buildLoops makes the loops that the roles ask for.
func (d *Daemon) buildLoops(
	parts *components, providers []instance, key *remote.Key, certificates *server.Certificates,
) error {
	c := d.config
	var starter *initializer.Initializer
	jumpHosts := new(remote.JumpHosts)
	for _, l := range []struct {
		role   fleet.Role
		config shepherd.Config
		open   func(*slog.Logger) (shepherd.Handler, error)
	}{
		{fleet.RoleProvisioner, c.Loops.Provisioner, func(logger *slog.Logger) (shepherd.Handler, error) {
			return provisioner.New(d.db, sources(providers, instance.forProvisioner), provisioner.Options{Logger: logger, HostKey: hostKeys(key)})
		}},
		{fleet.RoleInitializer, c.Loops.Initializer, func(logger *slog.Logger) (shepherd.Handler, error) {
			options := initializer.Options{Logger: logger, JumpHosts: jumpHosts}
			if certificates != nil { // the agent API's own, unless the configuration names others
				options.Authority = certificates.Authority()
			}
			var err error
			starter, err = initializer.New(d.db, sources(providers, instance.forInitializer), c.Initializer, key, options)
			return starter, err
		}},
		{fleet.RoleUpdater, c.Loops.Updater, func(logger *slog.Logger) (shepherd.Handler, error) {
			return updater.New(d.db, sources(providers, instance.forUpdater), updater.Options{Logger: logger})
		}},
		{fleet.RoleRecoverer, c.Loops.Recoverer, func(logger *slog.Logger) (shepherd.Handler, error) {
			return recoverer.New(d.db, sources(providers, instance.forRecoverer), c.Recoverer, recoverer.Options{
				Logger: logger, Observed: func(rung fleet.Rung, result recoverer.Result) { d.metrics.RecoveryStep(rung, string(result)) },
			})
		}},
		{fleet.RoleOperations, c.Loops.Operations, func(logger *slog.Logger) (shepherd.Handler, error) {
			options := operations.Options{
				Logger: logger, Observed: func(o fleet.Operation, result operations.Result) { d.metrics.Operation(o, string(result)) },
			}
			if starter != nil { // it knows how hosts are reached
				options.Cleaner = starter
			}
			return operations.New(d.db, sources(providers, instance.forOperations), c.Operations, options)
		}},
		{fleet.RoleProber, c.Loops.Prober, func(logger *slog.Logger) (shepherd.Handler, error) {
			return prober.New(d.db, sources(providers, instance.forProber), c.Prober, key, prober.Options{
				Port: c.Initializer.Port, User: c.Initializer.User, Logger: logger, JumpHosts: jumpHosts,
				Observed: func(by fleet.SeenBy, result prober.Result) { d.metrics.Probed(by, string(result)) },
			})
		}},
	} {
		if !c.Has(l.role) {
			continue
		}
		handler, err := l.open(d.loggerOf(string(l.role)))
		if err != nil {
			return err
		}
		loop, err := shepherd.New(d.db, handler, l.config, d.loopOptions())
		if err != nil {
			return err
		}
		parts.add(string(l.role), service.Loops, loop.Run)
	}
	return nil
}

// hostKeys returns what makes the host key of a machine that is created, from the key that machines
// are reached with.
func hostKeys(key *remote.Key) func(fleet.Token) (provider.HostKey, error) {
	return func(token fleet.Token) (provider.HostKey, error) {
		public, private, err := key.DeriveHostKey(string(token))
		if err != nil {
			return provider.HostKey{}, err
		}
		return provider.NewHostKey(public, remote.Fingerprint(public), private), nil
	}
}

func (d *Daemon) loopOptions() shepherd.Options {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return shepherd.Options{
		SessionLease: d.config.Session.Lease, Host: host, PID: os.Getpid(), Logger: d.logger, Observer: d.metrics.Shepherd(),
	}
}

// serveOn adapts a server of listeners to a component.
func serveOn(l *server.Listener, serve func(context.Context, net.Listener) error) func(context.Context) error {
	return func(ctx context.Context) error { return l.Serve(ctx, serve) }
}
