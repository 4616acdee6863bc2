package daemon

import (
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/fleetapi"
	"github.com/ironherd/ironherd/internal/server/webui"
	"github.com/ironherd/ironherd/internal/service"
)

// buildOperators makes the operators' side: API, page, metrics and health on one mux, served on the
// socket and on TCP.
func (d *Daemon) buildOperators(parts *components) error {
	if !d.config.Has(config.RoleOperatorAPI) {
		return nil
	}
	token, err := readToken(d.config.OperatorAPI.TokenFile)
	if err != nil {
		return err
	}
	options := fleetapi.Options{
		Logger: d.loggerOf("operator-api"), Version: d.options.Version, Database: d.database, Schema: d.schema,
	}
	if parts.agents != nil {
		options.Progress = parts.agents.Progress
	}
	fleetService := fleetapi.New(d.db, options)
	mux := http.NewServeMux()
	fleetService.Register(mux)
	mux.Handle("GET /metrics", server.RequireRead(d.metrics.Handler()))
	mux.Handle("/", server.RequireRead(webui.New(fleetService, webui.Options{Logger: d.loggerOf("web")})))
	mux.Handle("GET /healthz", d.health((*service.Tree).HealthHandler))
	mux.Handle("GET /readyz", d.health((*service.Tree).ReadyHandler))
	handler := server.NewAccess(token).Identify(mux)
	logger := d.loggerOf("operator-api")
	http := server.NewHTTP(handler, server.HTTPOptions{
		Logger: logger, Limit: operatorLimit, Refusals: server.NewRefusals(logger, d.metrics.OperatorRefused),
	})
	parts.add("operator-socket", service.Listeners, serveOn(d.socket, http.Serve))
	if d.operators != nil {
		parts.add("operator-api", service.Listeners, serveOn(d.operators, http.Serve))
	}
	return nil
}

// operatorLimit bounds the connections of operators, their programs and their browsers.
var operatorLimit = server.Limit{
	Total: 1000, PerSource: 500, Unadmitted: 128, UnadmittedPerSource: 64, AdmitWithin: 10 * time.Second,
}

// health serves a question for health. It looks at the tree when it is asked, because the tree is
// made after the mux.
func (d *Daemon) health(of func(*service.Tree) http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { of(d.tree).ServeHTTP(w, r) })
}

// readToken reads the operators' token; "" when no file is named.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fleet.Errorf(fleet.KindInvalid, "operator_api.token_file: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if len(token) < 16 || strings.ContainsAny(token, " \t\r\n") {
		return "", fleet.Errorf(fleet.KindInvalid, "operator_api.token_file: %s must hold one token of at least 16 characters and nothing else", path)
	}
	return token, nil
}
