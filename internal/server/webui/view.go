package webui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/a-h/templ"

	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// view is one thing that can be looked at. It is a value: requests for the same thing make equal
// views.
type view interface {
	// Key and Name are those of live.View: what tells views apart, and the title while there is no
	// content yet.
	Key() string
	Name() string
	// tab is the part of the navigation that the view belongs to.
	tab() string
	// load asks the control plane.
	load(ctx context.Context, s *source) (*live.Content, error)
	// unknown is what is said when the control plane knows no such thing; its own words come first.
	unknown() problem
}

// sourced is a view with the source that it is loaded from: what package live keeps current.
type sourced struct {
	view
	source *source
}

// Load implements live.View.
func (v sourced) Load(ctx context.Context) (*live.Content, error) { return v.load(ctx, v.source) }

// Notice implements live.View: the banner while the control plane does not answer.
func (v sourced) Notice(a live.Answer[*live.Content]) templ.Component {
	return noticeBody(outageOf(v.view, a))
}

// parseView reads what is asked for from the path and the query, of a page or of its live stream.
func parseView(r *http.Request) (view, error) {
	path := strings.TrimPrefix(r.URL.Path, "/live")
	switch {
	case path == "/machines":
		return parseMachines(r.URL.Query())
	case strings.HasPrefix(path, "/machines/"):
		ref, err := machineReference(strings.TrimPrefix(path, "/machines/"))
		return machineView{ref: ref}, err
	}
	return overviewView{}, nil
}

// maximumReference bounds how a machine may be named, in bytes.
const maximumReference = 512

var (
	errUnnamed = errors.New("name a machine: by its ID or the beginning of it, by host name, or by provider/provider-ID")
	errLong    = fmt.Errorf("a machine's name is UTF-8 text of at most %d bytes", maximumReference)
)

func machineReference(s string) (string, error) {
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return "", errUnnamed
	case len(s) > maximumReference || !utf8.ValidString(s):
		return "", errLong
	}
	return s, nil
}

// machineURL is the page of a machine, by any of its names.
func machineURL(ref string) string {
	parts := strings.Split(ref, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return "/machines/" + strings.Join(parts, "/")
}
