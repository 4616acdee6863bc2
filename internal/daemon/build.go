package daemon

import (
	"context"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/agentapi"
	"github.com/ironherd/ironherd/internal/service"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/janitor"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
	"github.com/ironherd/ironherd/internal/telemetry"
)

// components are the parts of a control plane, by its roles.
type components struct {
	all    []service.Component
	agents *agentapi.Server
}

func (c *components) add(name string, stage service.Stage, serve func(context.Context) error) {
	c.all = append(c.all, service.Component{Name: name, Stage: stage, Serve: serve})
}

// build makes everything but the operators' side.
func (d *Daemon) build(ctx context.Context) (components, error) {
	var parts components
	key, err := openKey(d.config.SSH.KeyFile, d.logger)
	if err != nil {
		return parts, err
	}
	instances, err := d.openProviders(ctx, key.Public())
	if err != nil {
		return parts, err
	}
	certificates, err := d.openCertificates()
	if err != nil {
		return parts, err
	}
	handlers, err := d.handlers(key, instances, certificates)
	if err != nil {
		return parts, err
	}
	for _, h := range handlers {
		loop, err := shepherd.New(d.db, h.handler, d.loopOptions(h.config))
		if err != nil {
			return parts, err
		}
		parts.add(h.name, service.Loops, loop.Run)
	}
	parts.all = append(parts.all, d.databaseHealth())
	if d.config.Has(config.RoleJanitor) {
		j, err := janitor.New(d.db, d.config.Janitor, janitor.Options{
			Logger: d.component("janitor"), Observer: janitorObserver{d.metrics},
		})
		if err != nil {
			return parts, err
		}
		parts.add("janitor", service.State, j.Run)
	}
	if d.config.Has(config.RoleAgentAPI) {
		parts.agents = agentapi.New(d.db, d.config.AgentAPI, agentapi.Options{
			Logger: d.component("agent-api"), Certificates: certificates, Observer: d.metrics.AgentAPI(),
		})
		d.metrics.ConnectedAgents(parts.agents.Agents)
		parts.add("agent-api", service.Listeners, serveOn(d.agents, parts.agents.Serve))
		parts.add("certificates", service.State, certificates.Serve)
	}
	return parts, nil
}

// databasePatience is how long whoever asks for health waits for the database.
const databasePatience = 2 * time.Second

// databaseHealth stands for what everything rests on: it only answers for its health.
func (d *Daemon) databaseHealth() service.Component {
	return service.Component{
		Name: "database", Stage: service.State,
		Serve: func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		},
		Check: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, databasePatience)
			defer cancel()
			_, err := d.db.Environment(ctx) // one row
			return err
		},
	}
}

func (d *Daemon) component(name string) *slog.Logger {
	return d.logger.With(slog.String("component", name))
}

// openCertificates returns the certificates of the agent API; nil where neither it nor the
// initializer runs.
func (d *Daemon) openCertificates() (*server.Certificates, error) {
	c := d.config
	if !c.Has(config.RoleAgentAPI) && (!c.Has(config.RoleInitializer) || c.Initializer.EndpointCA != "") {
		return nil, nil
	}
	return c.AgentAPI.TLS.Open(c.Dir, c.AgentAPI.Hosts(), d.component("agent-api"))
}

// loop is a handler with how eagerly it works.
type loop struct {
	name    string
	handler shepherd.Handler
	config  shepherd.Config
}

// handlers makes the loops that the roles ask for.
func (d *Daemon) handlers(key *remote.Key, instances []instance, certificates *server.Certificates) ([]loop, error) {
	c := d.config
	var loops []loop
	if c.Has(config.RoleProvisioner) {
		sources := make([]provisioner.Source, len(instances))
		for n, i := range instances {
			sources[n] = provisioner.Source{Name: i.name, Provider: i.provider, Config: i.Provisioner, Install: i.install}
		}
		h, err := provisioner.New(d.db, sources, d.component("provisioner"))
		if err != nil {
			return nil, err
		}
		loops = append(loops, loop{"provisioner", h, c.Loops.Provisioner})
	}
	if c.Has(config.RoleInitializer) {
		h, err := d.initializer(key, instances, certificates)
		if err != nil {
			return nil, err
		}
		loops = append(loops, loop{"initializer", h, c.Loops.Initializer})
	}
	if c.Has(config.RoleUpdater) {
		sources := make([]updater.Source, len(instances))
		for n, i := range instances {
			sources[n] = updater.Source{Name: i.name, Provider: i.provider, Config: i.Updater}
		}
		h, err := updater.New(d.db, sources, d.component("updater"))
		if err != nil {
			return nil, err
		}
		loops = append(loops, loop{"updater", h, c.Loops.Updater})
	}
	return loops, nil
}

// initializer gives agents the authority of the agent API, unless the configuration names another.
func (d *Daemon) initializer(key *remote.Key, instances []instance, certificates *server.Certificates) (shepherd.Handler, error) {
	c := d.config.Initializer
	payload, err := initializer.ReadPayload(c)
	if err != nil {
		return nil, err
	}
	if c.EndpointCA == "" && certificates != nil {
		payload.CA = certificates.Authority()
	}
	options := initializer.Options{
		Dialer:  remote.NewDialer(key, remote.Options{Logger: d.component("initializer"), ConnectTimeout: c.ConnectTimeout}),
		Payload: payload,
		Logger:  d.component("initializer"),
	}
	for _, i := range instances {
		options.Sources = append(options.Sources, initializer.Source{Name: i.name, Provider: i.provider, TrustFirstUse: i.TrustFirstUse})
	}
	return initializer.New(d.db, c, options)
}

func (d *Daemon) loopOptions(c shepherd.Config) shepherd.Options {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return shepherd.Options{
		Config: c, SessionInterval: d.config.Session.Interval, Host: host, PID: os.Getpid(), Logger: d.logger,
		Observer: d.metrics.Shepherd(),
	}
}

// serveOn adapts a server of listeners to a component.
func serveOn(l *server.Listener, serve func(context.Context, net.Listener) error) func(context.Context) error {
	return func(ctx context.Context) error { return l.Serve(ctx, serve) }
}

// janitorObserver binds the janitor to its metrics.
type janitorObserver struct{ metrics *telemetry.Metrics }

// Done implements janitor.Observer.
func (o janitorObserver) Done(duty janitor.Duty, rows int, took time.Duration, err error) {
	o.metrics.JanitorDone(string(duty), rows, took, err)
}
