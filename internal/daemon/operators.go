package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/fleetapi"
	"github.com/ironherd/ironherd/internal/server/webui"
	"github.com/ironherd/ironherd/internal/service"
	"github.com/ironherd/ironherd/internal/token"
)

// buildOperators makes the operators' side: API, page, metrics and health on one mux, served on the
// socket and on TCP.
func (d *Daemon) buildOperators(parts *components) error {
	if !d.config.Has(fleet.RoleOperatorAPI) {
		return nil
	}
	tokens, err := token.Open(d.config.OperatorAPI.TokensFile, d.loggerOf("operator-api"))
	if err != nil && !token.Damaged(err) { // a damaged file was logged, and keeps callers over TCP out
		return fmt.Errorf("operator_api.tokens_file: %w", err)
	}
	exposed := d.config.OperatorAPI.Exposed()
	if counts, err := tokens.Counts(time.Now()); !counts && err == nil && exposed {
		d.loggerOf("operator-api").Warn("no token counts: nobody can call from other hosts until one is made with `ironherd token create NAME --role ROLE`; "+
			"the Unix socket works", slog.String("address", d.config.OperatorAPI.Listen))
	}
	var certificates *server.Certificates
	if d.operators != nil {
		if certificates, err = d.openOperatorCertificates(); err != nil {
			return fmt.Errorf("operator API: %w", err)
		}
		parts.operators.Certificates = append(parts.operators.Certificates, certificates)
		d.metrics.Certificate(certificates.Listener(), certificates.Expires, certificates.ExpiresSoon, certificates.Trouble)
	}
	options := parts.operators
	options.Logger, options.Version, options.Database, options.Schema = d.loggerOf("operator-api"), d.options.Version, d.database, d.schema
	options.Images = d.config.Catalogue()
	if d.operators != nil {
		options.Tokens, options.Exposed = tokens, exposed
		for _, role := range token.Roles() {
			d.metrics.Tokens(string(role), func(now time.Time) bool { return tokens.RunsOut(role, now) })
		}
		d.metrics.TokensMissing(func(now time.Time) bool {
			counts, err := tokens.Counts(now)
			return err != nil || !counts && exposed
		})
	}
	if d.config.Has(fleet.RoleAgentAPI) || d.config.Has(fleet.RoleInitializer) {
		options.Endpoint = d.config.Initializer.Endpoint
	}
	fleetService := fleetapi.New(d.db, options)
	mux := http.NewServeMux()
	fleetService.Register(mux)
	mux.Handle("/metrics", readOnly("metrics are asked for with GET or HEAD", d.metrics.Handler()))
	access := server.NewAccess(tokens, d.loggerOf("operator-api"))
	stopped := make(chan struct{})
	parts.add("web", service.State, func(ctx context.Context) error { // it ends after the listeners
		<-ctx.Done()
		close(stopped)
		return nil
	})
	mux.Handle("/", page(access, fleetService, d.loggerOf("web"), stopped))
	mux.Handle("/healthz", d.health((*service.Tree).HealthHandler))
	mux.Handle("/readyz", d.health((*service.Tree).ReadyHandler))
	handler := access.Identify(server.Guard(fleetapi.Needs(), mux))
	logger := d.loggerOf("operator-api")
	socket := server.NewHTTP(handler, server.HTTPOptions{Logger: logger})
	parts.add("operator-socket", service.Listeners, serveOn(d.socket, socket.Serve))
	if d.operators == nil {
		return nil
	}
	tcp := server.NewHTTP(handler, server.HTTPOptions{
		Logger: logger, TLS: certificates.ServerTLS(), Limit: operatorLimit, Refusals: server.NewRefusals(logger, d.metrics.OperatorRefused),
	})
	parts.add("operator-api", service.Listeners, serveOn(d.operators, tcp.Serve))
	parts.add("operator-certificates", service.State, certificates.Serve)
	return nil
}

// severalViewers is for whom the page asks what several watch. It is not server.PageActor, whose
// turn is for the few questions that all pages have in common: what is watched may be dozens of
// views that read much, and no page would come to its turn. All that several watch, up to
// live.MaxViews, have one place among the questions in turn. One that waits for it long, and reads
// much, is asked for the more rarely: live.Content.Cost has the wait in it.
const severalViewers = "the page for several viewers"

// page returns the web page. A live view of it does not outlast what lets its viewer read, and no
// token keeps the live views from the others. What it asks for one viewer does not wait for what
// that one asks elsewhere. What it asks for several does not wait for what one of them asks alone,
// and what it asks for all of them waits for none of theirs.
func page(access *server.Access, client fleetv1connect.FleetServiceClient, logger *slog.Logger, stopped <-chan struct{}) http.Handler {
	site := webui.New(client, webui.Options{
		Logger: logger, Stopped: stopped, Allowed: func(r *http.Request) bool { return access.May(r, fleetapi.Needs()) == nil },
		Caller: func(r *http.Request) string { return server.CallerFrom(r.Context()).Actor },
		Ours:   func(ctx context.Context) context.Context { return server.AsReader(ctx, server.PageActor) },
		Shared: func(ctx context.Context) context.Context { return server.AsReader(ctx, severalViewers) },
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		viewer := "the page for " + server.CallerFrom(r.Context()).Actor
		site.ServeHTTP(w, r.WithContext(server.AsReader(r.Context(), viewer)))
	})
}

// operatorLimit bounds the connections of operators, their programs and their browsers: no token
// takes the room of all others.
var operatorLimit = server.Limit{
	Total: 1000, PerSource: 500, PerOwner: 200, Unadmitted: 128, UnadmittedPerSource: 64, AdmitWithin: 10 * time.Second,
}

// openOperatorCertificates returns the certificates of the operator API. It leaves the authority
// of those that are made here, without its key, in a file for the callers. A start needs no room
// where the file is there, and goes on where it cannot be written.
func (d *Daemon) openOperatorCertificates() (*server.Certificates, error) {
	c, logger := d.config.OperatorAPI, d.loggerOf("operator-api")
	if c.TLS.Certificate != "" {
		return server.LoadCertificates(server.ForOperators, c.TLS.Certificate, c.TLS.Key, "", logger)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	certificates, err := server.OpenCertificates(server.ForOperators, d.config.Dir, c.Hosts(host), logger)
	if err != nil {
		return nil, err
	}
	path, authority := filepath.Join(d.config.Dir, config.OperatorCAName), certificates.Authority()
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, authority) {
		return certificates, nil
	}
	if err := secret.Write(path, authority, true); err != nil {
		logger.Error("cannot store the certificate of the operator CA; callers may not be able to verify the operator API", slog.String("path", path), slog.Any("err", err))
	}
	return certificates, nil
}

// health serves a question for health. It looks at the tree when it is asked, because the tree is
// made after the mux.
func (d *Daemon) health(of func(*service.Tree) http.Handler) http.Handler {
	return readOnly("health is asked for with GET or HEAD", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of(d.tree).ServeHTTP(w, r)
	}))
}

// readOnly serves GET and HEAD, and answers other methods itself: whoever may ask at this path may
// not always see the page, to which the mux would hand what the path leaves.
func readOnly(refusal string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, refusal, http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}
