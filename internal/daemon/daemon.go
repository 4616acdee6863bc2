package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/service"
	"github.com/ironherd/ironherd/internal/telemetry"
	"github.com/ironherd/ironherd/internal/token"
)

// Options is what a control plane is built with besides its configuration.
type Options struct {
	// Logger gets the control plane's log. Nil: nothing is logged.
	Logger *slog.Logger
	// Version is told to operators.
	Version string
	// Unsynced lets the operating system decide when commits reach the disk. It is for rehearsals in a
	// directory that is deleted afterwards.
	Unsynced bool
	// OperatorsKey is what a person sets where operators reach it, in errors. "": operator_api.listen.
	OperatorsKey string
}

// Addresses are where a control plane is reached; empty where it does not listen.
type Addresses struct {
	// AgentAPI is where it listens for agents, and Endpoint what they are told.
	AgentAPI string
	Endpoint string
	// OperatorURL is the base URL of the operator API, the page, metrics and health.
	OperatorURL string
	// Socket is the operators' Unix socket, as "unix:///PATH".
	Socket string
}

// Daemon is a control plane that is ready to run.
type Daemon struct {
	config  config.Config
	options Options
	logger  *slog.Logger
	metrics *telemetry.Metrics

	agents, operators, socket *server.Listener

	db        *bmdb.DB
	database  string
	schema    int64
	providers []instance
	tree      *service.Tree

	closeOnce sync.Once
	closeErr  error
}

// Open takes the addresses, opens the database and makes every part. The configuration is valid, as
// config.Load returns it; an endpoint with port 0 means the port that was chosen for the agent API.
// The caller calls Close. An error is KindTemporary also where it comes from a secret's file that
// may be there, or can be read, by and by, and where PostgreSQL refuses the role, its password or
// the database's name, which may be about to change: a process that is started again finds it then.
func Open(ctx context.Context, c config.Config, options Options) (*Daemon, error) {
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	for _, caveat := range c.Caveats() {
		options.Logger.WarnContext(ctx, "the configuration has a caveat", slog.String("caveat", caveat))
	}
	d := &Daemon{config: c, options: options, logger: options.Logger, metrics: telemetry.New(options.Version)}
	if err := d.open(ctx); err != nil {
		if secret.Passes(err) || postgres.Refuses(err) {
			err = fleet.Errorf(fleet.KindTemporary, "%w", err)
		}
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Daemon) open(ctx context.Context) error {
	if err := secret.MakeDir(d.config.Dir); err != nil {
		return fmt.Errorf("dir: %w", err)
	}
	if err := d.listen(ctx); err != nil {
		return err
	}
	if err := d.checkFiles(); err != nil {
		return err
	}
	if err := d.openDatabase(ctx); err != nil {
		return err
	}
	components, err := d.build(ctx)
	if err != nil {
		return err
	}
	if err := d.buildOperators(&components); err != nil {
		return err
	}
	mayRead := func(r *http.Request) bool { return server.CallerFrom(r.Context()).May(token.Viewer) == nil }
	d.tree, err = service.New(service.Options{Logger: d.logger, Drain: d.config.DrainTimeout, MayRead: mayRead}, components.all...)
	if err != nil {
		return err
	}
	return d.join(ctx)
}

// join makes the policy of the configuration the fleet's, and its providers known. It comes last:
// every control plane follows the newest policy (rule 10), so one that is refused must not set it,
// nor bring a forgotten provider back. Providers that are new are judged under that policy.
func (d *Daemon) join(ctx context.Context) error {
	if _, err := d.db.SetPolicy(ctx, d.config.Policy); err != nil {
		return fmt.Errorf("store the policy: %w", err)
	}
	return d.registerProviders(ctx)
}

// listen takes the addresses. It comes before the database, because an address in use is the
// clearest sign that another control plane runs here.
func (d *Daemon) listen(ctx context.Context) error {
	c := d.config
	var err error
	if c.Has(fleet.RoleOperatorAPI) {
		if err := os.MkdirAll(filepath.Dir(c.OperatorAPI.Socket), 0o700); err != nil {
			return fleet.Errorf(fleet.KindInvalid, "make the directory of the socket: %w", err)
		}
		if d.socket, err = server.Listen(ctx, "unix:"+c.OperatorAPI.Socket); err != nil {
			return err
		}
		if c.OperatorAPI.Listen != "" {
			if d.operators, err = server.Listen(ctx, c.OperatorAPI.Listen); err != nil {
				return notListening("operator API", cmp.Or(d.options.OperatorsKey, "operator_api.listen"), err)
			}
		}
	}
	if c.Has(fleet.RoleAgentAPI) {
		if d.agents, err = server.Listen(ctx, c.AgentAPI.Listen); err != nil {
			return notListening("agent API", "agent_api.listen", err)
		}
		d.config.AgentAPI.Endpoint = withPort(c.AgentAPI.Endpoint, d.agents.Address())
		d.config.Initializer.Endpoint = withPort(c.Initializer.Endpoint, d.agents.Address())
	}
	return nil
}

// notListening is the error of an address that the key gives to a part of the control plane.
func notListening(part, key string, err error) error {
	if fleet.KindOf(err) == fleet.KindInUse {
		return fmt.Errorf("%s: %w: stop that process, or set %s to another address", part, err, key)
	}
	return fmt.Errorf("%s: %w", part, err)
}

// withPort replaces the port 0 of an endpoint by that of the address.
func withPort(endpoint, address string) string {
	host, ok := strings.CutSuffix(endpoint, ":0")
	_, port, err := net.SplitHostPort(address)
	if !ok || err != nil {
		return endpoint
	}
	return host + ":" + port
}

func (d *Daemon) openDatabase(ctx context.Context) error {
	engine, err := openEngine(ctx, d.config, sqlite.Options{Logger: d.logger, Unsynced: d.options.Unsynced})
	if err != nil {
		return err
	}
	d.database = engine.Name()
	if _, d.schema, err = engine.Schema(ctx); err != nil {
		return errors.Join(err, engine.Close())
	}
	if d.db, err = bmdb.Open(ctx, engine, bmdb.Options{Logger: d.logger, Observer: d.metrics.Database()}); err != nil {
		return err
	}
	d.metrics.Fleet(d.db, d.logger)
	return nil
}

// Addresses returns where the control plane is reached.
func (d *Daemon) Addresses() Addresses {
	a := Addresses{Endpoint: d.config.AgentAPI.Endpoint}
	if d.agents != nil {
		a.AgentAPI = d.agents.Address()
	}
	if d.operators != nil {
		a.OperatorURL = d.operators.URL("https")
	}
	if d.socket != nil {
		a.Socket = "unix://" + strings.TrimPrefix(d.socket.Address(), "unix:")
	}
	return a
}

// Run serves until ctx ends, and then drains. It returns nil after an orderly end. It calls ready,
// which may be nil, when the listeners are open and everything is about to be started; /readyz
// tells when it has. A Daemon runs once, and Run closes it.
func (d *Daemon) Run(ctx context.Context, ready func()) error {
	if ready != nil {
		ready()
	}
	err := d.tree.Run(ctx)
	return errors.Join(err, d.Close())
}

// Running reports whether everything has been started and nothing is being stopped. A part that
// fails and is started again counts, which /readyz sees otherwise.
func (d *Daemon) Running(ctx context.Context) bool { return d.tree.Started(ctx) }

// Alive returns nil when the control plane answers: on the operators' socket where it has one. What
// the answer says does not count, because another start would not help against what is ill
// elsewhere.
func (d *Daemon) Alive(ctx context.Context) error {
	if d.socket == nil {
		d.tree.Health(ctx)
		return ctx.Err()
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(d.socket.Address(), "unix:"))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://ironherd/readyz", http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("the operators' socket does not answer: %w", err)
	}
	return response.Body.Close()
}

// Close frees addresses and database, and ends the connections that were kept for the next call of
// a provider. It does not drain; Run does.
func (d *Daemon) Close() error {
	d.closeOnce.Do(func() {
		for _, i := range d.providers {
			if kept, ok := i.provider.(interface{ CloseIdleConnections() }); ok {
				kept.CloseIdleConnections()
			}
		}
		var errs []error
		for _, l := range []*server.Listener{d.agents, d.operators, d.socket} {
			if l != nil {
				errs = append(errs, l.Close())
			}
		}
		if d.db != nil {
			errs = append(errs, d.db.Close())
		}
		d.closeErr = errors.Join(errs...)
	})
	return d.closeErr
}
