package resources_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// absent answers 404 to what it is asked not to let through, as a load balancer does that knows no
// backend, or an API server that does not serve the kind yet.
type absent struct {
	http.RoundTripper
	hides func(*http.Request) bool
}

func (a absent) RoundTrip(r *http.Request) (*http.Response, error) {
	if !a.hides(r) {
		return a.RoundTripper.RoundTrip(r)
	}
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return &http.Response{
		Status: "404 Not Found", StatusCode: http.StatusNotFound, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, Body: io.NopCloser(strings.NewReader("404 page not found\n")),
	}, nil
}

// TestNotFoundByNobody: that a request finds nobody who serves it does not say that an object is
// gone. It stays ours: it is kept, and deleted when it is no longer wanted.
func TestNotFoundByNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approving = true
	var hidden atomic.Bool
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return absent{next, func(r *http.Request) bool {
			return hidden.Load() && (strings.HasSuffix(r.URL.Path, "/configmaps/kept") || strings.HasSuffix(r.URL.Path, "/configmaps/dropped"))
		}}
	})
	both := configMap("kept", "1") + configMap("dropped", "1")
	w.write("a.yaml", both)
	a := w.startWith(config, resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	before := w.inventory().Entries
	hidden.Store(true)
	for _, name := range []string{"kept", "dropped"} { // the watch tells that they are gone
		drain(a)
		w.patch(configMaps, "default", name, `{"metadata":{"labels":null}}`)
		w.await("the news", func() bool { return len(a.Changed()) == 1 })
	}
	w.write("a.yaml", configMap("kept", "1"))
	for range 2 {
		if r, err := a.pass(); err == nil || r.Created+r.Pruned != 0 || len(r.Failures) != 2 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	for key, entry := range w.inventory().Entries {
		if before[key] != entry {
			t.Errorf("%s: the inventory has %+v, and had %+v", key, entry, before[key])
		}
	}
	hidden.Store(false)
	a.until("everything as wanted", func(_ reconciler.Report, err error) bool { return err == nil })
	if w.there(configMaps, "default", "dropped") || len(w.inventory().Entries) != 1 {
		t.Errorf("what is no longer wanted is there: %v", w.inventory().Entries)
	}
	w.write("a.yaml", "")
	a.done()
	if w.there(configMaps, "default", "kept") {
		t.Error("it is ours no more")
	}
}
