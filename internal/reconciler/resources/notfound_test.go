package resources_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
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

// cutter closes the bodies of what it has let through, when it is asked to.
type cutter struct {
	http.RoundTripper

	mu     sync.Mutex
	bodies []io.Closer
}

func (c *cutter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") != "" {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.bodies = append(c.bodies, response.Body)
	}
	return response, err
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, body := range c.bodies {
		_ = body.Close()
	}
	c.bodies = nil
}

// TestWatchOfNobody: a watch that finds nobody who serves it ends, as if its kind were gone. A
// pass after that begins another one, whatever the watch is for.
func TestWatchOfNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var hidden atomic.Value
	hidden.Store("nothing")
	watches := &cutter{}
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		watches.RoundTripper = next
		return absent{watches, func(r *http.Request) bool {
			return r.URL.Query().Get("watch") != "" && strings.HasSuffix(r.URL.Path, hidden.Load().(string))
		}}
	})
	w.write("a.yaml", configMap("kept", "1"))
	a := w.startWith(config, resources.Options{})
	for resource, why := range map[string]string{
		"/configmaps": "follow the inventory", "/storageclasses": "the storage classes cannot be followed", "/runtimeclasses": "they cannot be followed",
	} {
		a.done()
		hidden.Store(resource)
		watches.cut()
		w.await("failure", func() bool {
			r, err := a.pass()
			return err != nil && strings.Contains(fmt.Sprint(err, r.Failures), why)
		})
		hidden.Store("nothing")
		w.soon(resource+": everything as wanted", func() bool {
			_, err := a.pass()
			return err == nil
		})
	}
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

// TestInventoryOfNobody: where the question for the inventory finds nobody who serves it, what is
// ours is not known. A pass and a plan fail, and nothing is concluded.
func TestInventoryOfNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approving = true
	first := w.start(resources.Options{BuiltIn: small(t, 1)})
	w.write("a.yaml", configMap("dropped", "1"))
	first.done()
	first.stop()
	w.write("a.yaml", "")
	var hidden atomic.Bool
	hidden.Store(true)
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return absent{next, func(r *http.Request) bool {
			return hidden.Load() && strings.HasSuffix(r.URL.Path, "/configmaps/"+inventory.Name)
		}}
	})
	second := w.startWith(config, resources.Options{BuiltIn: small(t, 2)})
	if diff, err := second.Plan(t.Context()); err == nil || !strings.Contains(err.Error(), "read the inventory") {
		t.Errorf("the plan: %+v, %v", diff, err)
	}
	if r, err := second.pass(); err == nil || r.Ready || len(r.Failures) > 0 || r.Updated > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	hidden.Store(false)
	if diff, err := second.Plan(t.Context()); err != nil || len(diff.Failures) > 0 {
		t.Errorf("the plan: %+v, %v", diff, err)
	}
	second.done()
	if w.there(configMaps, "default", "dropped") {
		t.Error("it was not deleted")
	}
}
