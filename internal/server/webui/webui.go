package webui

import (
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// Options is what the page is made with besides its client. The zero value is valid: nothing is
// logged, questions of a kind are a second apart, and the control plane has 5 s to answer one.
type Options = live.Options

// New returns the handler of the whole site, to be mounted at "/". It starts nothing: pollers run
// only while somebody watches, and have ended when the last watching request has returned. What has
// been asked by then goes on until its timeout, or Options.Stopped. Who may read is the caller's to
// decide, for each request and for as long as it goes on.
func New(client fleetv1connect.FleetServiceClient, opts Options) http.Handler {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Interval <= 0 {
		opts.Interval = time.Second
	}
	if opts.Timeout <= 0 {
		opts.Timeout = 5 * time.Second
	}
	s := &site{source: newSource(client, opts), hub: live.NewHub(live.NewCache(opts), opts), assets: loadAssets(), logger: opts.Logger}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /machines", s.page)
	mux.HandleFunc("GET /machines/{machine...}", s.page)
	mux.HandleFunc("GET /live/{$}", s.stream)
	mux.HandleFunc("GET /live/machines", s.stream)
	mux.HandleFunc("GET /live/machines/{machine...}", s.stream)
	mux.HandleFunc("GET /go", s.search)
	mux.HandleFunc("GET /assets/{name}", s.asset)
	mux.HandleFunc("/", s.notFound)
	return secure(mux)
}

// site is what the handlers share.
type site struct {
	source *source
	hub    *live.Hub
	assets assets
	logger *slog.Logger
}

// policy lets a page load what this host serves and nothing else; no inline script or style runs.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// page serves any view as a whole page.
func (s *site) page(w http.ResponseWriter, r *http.Request) {
	v, err := parseView(r)
	if err != nil {
		s.renderProblem(w, r, http.StatusBadRequest, problem{Title: "This address makes no sense", Text: sentence(err.Error())})
		return
	}
	seen, err := s.hub.Look(r, sourced{v, s.source})
	if err != nil { // the request has ended
		s.renderFailure(w, r, err)
		return
	}
	if status, p := refusal(v, seen.Err); status != 0 {
		s.renderProblem(w, r, status, p)
		return
	}
	now, err := live.Compose(r.Context(), sourced{v, s.source}, seen)
	if err != nil {
		s.renderFailure(w, r, err)
		return
	}
	status := http.StatusOK
	if seen.Value == nil {
		status = http.StatusServiceUnavailable
	}
	s.render(w, r, status, layout{Title: now.Title, Tab: v.tab(), Live: liveURL(r.URL)}, pageBody(now.Fragments))
}

// stream serves the events that keep a page current.
func (s *site) stream(w http.ResponseWriter, r *http.Request) {
	v, err := parseView(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.hub.Serve(w, r, sourced{v, s.source}, s.assets.build)
}

// liveURL is the stream of the page at u.
func liveURL(u *url.URL) string {
	live := url.URL{Path: "/live" + u.Path, RawQuery: u.RawQuery}
	if u.RawPath != "" {
		live.RawPath = "/live" + u.RawPath
	}
	return live.String()
}

// search redirects from the search field to the machine's page.
func (s *site) search(w http.ResponseWriter, r *http.Request) {
	ref, err := machineReference(r.URL.Query().Get("machine"))
	if err != nil {
		s.renderProblem(w, r, http.StatusBadRequest, problem{Title: "No machine was named", Text: sentence(err.Error())})
		return
	}
	http.Redirect(w, r, machineURL(ref), http.StatusSeeOther)
}

func (s *site) notFound(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		s.renderProblem(w, r, http.StatusMethodNotAllowed, problem{Title: "This page only shows", Text: "It cannot change anything; the command line can."})
		return
	}
	s.renderProblem(w, r, http.StatusNotFound, problem{Title: "There is no such page", Text: "Nothing is served at this address."})
}
