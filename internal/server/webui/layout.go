package webui

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/a-h/templ"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// layout is what is around every page.
type layout struct {
	Title string
	// Tab is the current part of the navigation: overview, machines or none.
	Tab string
	// Live is the address of the page's stream; empty: the page stays as it is.
	Live string

	build   string
	now     time.Time
	version *fleetv1.GetVersionResponse
}

func (l layout) milliseconds() string { return strconv.FormatInt(l.now.UnixMilli(), 10) }

// render writes a whole page, or, when it cannot be made, a plain sentence.
func (s *site) render(w http.ResponseWriter, r *http.Request, status int, l layout, body templ.Component) {
	l.build, l.now = s.assets.build, time.Now()
	l.version = s.knownVersion(r.Context())
	var html bytes.Buffer
	err := pageLayout(l, body).Render(live.CountFrom(r.Context(), l.now), &html)
	if err != nil {
		s.renderFailure(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(html.Bytes())
}

// renderFailure answers when a page could not be made. That is a fault here unless the request has
// ended: a visitor who has left is told nothing, and one whom this server has cut off is told why.
func (s *site) renderFailure(w http.ResponseWriter, r *http.Request, err error) {
	switch cause := context.Cause(r.Context()); {
	case errors.Is(cause, context.Canceled):
	case fleet.KindOf(cause) == fleet.KindTimeout:
		http.Error(w, "this page was not made in time: load it again", http.StatusGatewayTimeout)
	case cause != nil:
		http.Error(w, "this page could not be made: "+cause.Error(), http.StatusServiceUnavailable)
	default:
		s.logger.Error("a page could not be made", slog.String("path", r.URL.Path), slog.Any("err", err))
		http.Error(w, "this page could not be made; the log of the control plane says why", http.StatusInternalServerError)
	}
}

// knownVersion returns what the control plane says it is; nil while it does not.
func (s *site) knownVersion(ctx context.Context) *fleetv1.GetVersionResponse {
	a, err := s.source.version.Answer(ctx)
	if err != nil {
		return nil
	}
	return a.Value
}
