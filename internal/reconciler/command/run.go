package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/service"
	"github.com/ironherd/ironherd/reconciler"
)

// drain is how long all components together may take to stop. The leadership ends at once in any
// case.
const drain = 10 * time.Second

func (a *app) runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the service until it is told to stop",
		Long: `Run the service until SIGTERM or SIGINT. It registers this node if it has no record, stands for election while no newer release is
present, and keeps the base resources while it leads. A leader that is told to stop gives its leadership up at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
				return a.run(cmd.Context(), c, client, logger)
			})
		},
	}
}

func (a *app) run(ctx context.Context, c config, client *clientv3.Client, logger *slog.Logger) error {
	if err := c.checkRun(); err != nil {
		return err
	}
	defer service.OutliveHangups(logger)()
	presents, _ := resources.ClientCertificate(c.kubeconfig) // openResources tells what is wrong
	applier, err := openResources(c, logger)
	if err != nil {
		return err
	}
	defer applier.Close()
	if err := c.exposed(); err != nil {
		logger.WarnContext(ctx, "the credentials for the API server are not kept as they ought to be", slog.Any("err", err))
	}
	m := newMetrics(a.env.Version)
	settings := c.service()
	settings.Logger, settings.Observer = logger, m
	s, err := reconciler.NewService(settings, client, applier)
	if err != nil {
		return err
	}
	m.watch(s, c, presents)
	components := append(supervised(s.Components()), service.Component{
		Name: "certificates", Stage: service.State, Serve: func(ctx context.Context) error { return c.tellEnds(ctx, presents, logger) },
	})
	mux := http.NewServeMux()
	if c.listen != "" {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", c.listen)
		if err != nil {
			return fleet.Errorf(fleet.KindInUse, "listen: %w", err)
		}
		logger.InfoContext(ctx, "listening", slog.String("address", ln.Addr().String()))
		components = append(components, listener(c.listen, ln, mux, logger))
	}
	tree, err := service.New(service.Options{Logger: logger, Drain: drain}, components...)
	if err != nil {
		return err
	}
	mux.Handle("GET /metrics", m.handler())
	mux.Handle("GET /healthz", tree.HealthHandler())
	mux.Handle("GET /readyz", readyHandler(tree))
	door := reconciler.NewDoor(reconciler.Ready{Client: client, Layout: c.layout, Node: c.node, Build: c.build, Logger: logger})
	mux.Handle("GET /servez", serveHandler(door.Serving(ctx, applier.Ready)))
	logger.InfoContext(ctx, "starting", slog.String("node", c.node), slog.String("release", c.build.Release.String()),
		slog.String("minReconciler", c.build.MinReconciler.String()), slog.String("minAPIServer", c.build.MinAPIServer.String()),
		slog.String("version", a.env.Version))
	return tree.Run(ctx)
}

// supervised returns the components of a service as those of a supervision tree.
func supervised(of []reconciler.Component) (all []service.Component) {
	for _, c := range of {
		stage := service.Loops
		if c.Base {
			stage = service.State
		}
		all = append(all, service.Component{Name: c.Name, Stage: stage, Serve: c.Serve, Check: c.Check})
	}
	return all
}

// readyHandler serves /readyz: 200 while every component runs and etcd can be followed. Passes that
// fail, which /healthz tells, do not make the process less ready: it goes on trying.
func readyHandler(tree *service.Tree) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		w.Header().Set("Cache-Control", "no-store")
		if tree.Draining() {
			http.Error(w, "stopping", http.StatusServiceUnavailable)
			return
		}
		for _, h := range tree.Health(ctx) {
			blind := strings.HasPrefix(h.Name, "watch-") && h.Error != "" && h.Restarts == 0
			if blind || h.Condition != service.Running && h.Condition != service.Restarting {
				http.Error(w, h.Name+": "+string(h.Condition)+" "+h.Error, http.StatusServiceUnavailable)
				return
			}
		}
		_, _ = w.Write([]byte("ready\n"))
	})
}

// httpLimit bounds the connections that load balancers, probes and metrics hold. Beyond it, the one
// that has been idle for the longest makes room.
var httpLimit = server.Limit{Total: 512, PerSource: 128}

// listener returns the component that serves HTTP. Its first start uses ln, which is open already.
func listener(address string, ln net.Listener, handler http.Handler, logger *slog.Logger) service.Component {
	h := server.NewHTTP(handler, server.HTTPOptions{
		Logger: logger, Drain: time.Second, Limit: httpLimit, Refusals: server.NewRefusals(logger, nil),
	})
	return service.Component{Name: "http", Stage: service.Listeners, Serve: func(ctx context.Context) error {
		if ln == nil {
			var err error
			if ln, err = new(net.ListenConfig).Listen(ctx, "tcp", address); err != nil {
				return fmt.Errorf("listen: %w", err)
			}
		}
		current := ln
		ln = nil // Serve closes it
		return h.Serve(ctx, current)
	}}
}

// options say what is kept.
func (c config) options() resources.Options {
	return resources.Options{Manifests: c.manifests, Force: c.force, MaxPrune: c.maxPrune, Selection: c.selection}
}

func openResources(c config, logger *slog.Logger) (*resources.Applier, error) {
	applier, err := resources.Open(c.kubeconfig, c.options(), logger)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "%w", err)
	}
	return applier, nil
}

func (a *app) exposeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "expose",
		Short: "Let clients reach this node's API server while it may serve",
		Long: `Listen at the address of the key expose, and forward connections to the API server that the kubeconfig names, while the API server may
serve and answers. Else the port is closed. The API server itself listens where only this node reaches it, such as 127.0.0.1. So it can
start, and the reconciler can work with it, before clients can. Run expose of the release that the API server is of, and restart it with it.
Connections are forwarded as they are: TLS is between client and API server, which sees them come from this node.`,
		Example: `  ironherd-reconciler expose --expose 192.0.2.11:6443 --config /etc/ironherd/reconciler.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
				if err := c.checkExpose(); err != nil {
					return err
				}
				applier, err := openResources(c, logger)
				if err != nil {
					return err
				}
				defer applier.Close()
				if err := c.checkServer(applier.Address()); err != nil {
					return err
				}
				return reconciler.Expose{
					Address: c.expose, Target: applier.Address(), Probe: applier.Ready, Logger: logger,
					Door: reconciler.NewDoor(reconciler.Ready{Client: client, Layout: c.layout, Node: c.node, Build: c.build, Logger: logger}),
				}.Run(cmd.Context())
			})
		},
	}
}

func (a *app) waitReadyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait-ready",
		Short: "Wait until an API server of this release may serve on this node",
		Long: `Wait until the status admits an API server of this release on this node. Whatever runs after this command, such as expose, may let clients
reach it. The API server has to run already, where only this node reaches it: the leader may need this very API server to get there. Never
wait with its start. Each reason for waiting is logged as it changes.

First it registers this node with this release, as "node register" does. That may be done only while no API server runs on this node. Where
"node register" runs before the API server starts, which is the usual way, give --register=false.

With --exposed it also waits until clients can connect at the address of the key expose.

Exit codes: 0 the API server may serve; 2 the configuration is wrong; 7 it may not serve yet, and the time is up.`,
		Example: `  ironherd-reconciler wait-ready --register=false --config /etc/ironherd/reconciler.yaml --timeout 10m`,
		Args:    cobra.NoArgs,
	}
	timeout := timeoutFlag(cmd, 0, "how long to wait; 0: without end")
	register := cmd.Flags().Bool("register", true, "register this node with this release first; false: it has been registered")
	exposed := cmd.Flags().Bool("exposed", false, "wait, too, until clients can connect at the address of the key expose")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withEtcd(cmd.Context(), func(c config, client *clientv3.Client, logger *slog.Logger) error {
			ctx := cmd.Context()
			if *exposed {
				if err := c.checkExpose(); err != nil {
					return err
				}
			}
			if *timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, *timeout, errTimeIsUp)
				defer cancel()
			}
			err := reconciler.WaitReady(ctx, reconciler.Ready{
				Client: client, Layout: c.layout, Node: c.node, Build: c.build, Register: *register, Logger: logger,
			})
			if err == nil && *exposed {
				err = awaitPort(ctx, c.expose)
			}
			return err
		})
	}
	return cmd
}

// awaitPort waits until somebody listens at the address.
func awaitPort(ctx context.Context, address string) error {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return &fleet.Error{
				Kind: fleet.KindTimeout, Message: "the API server may serve, but clients cannot connect; does expose run? " + err.Error(),
				Err: context.Cause(ctx),
			}
		}
	}
}

var errTimeIsUp = errors.New("the time is up")
