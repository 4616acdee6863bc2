package resources_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/reconciler"
)

// hanging is a server that does not answer some requests.
type hanging struct {
	http.RoundTripper
	hangs func(*http.Request) bool
	// takes is after how long the caller gives up.
	takes time.Duration
}

func (h hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	if response := alive(r); response != nil {
		return response, nil
	}
	if !h.hangs(r) {
		return h.RoundTripper.RoundTrip(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.takes)
	defer cancel()
	<-ctx.Done()
	return nil, ctx.Err()
}

// alive is the answer to the question whether the server answers at all; nil: that is not what is
// asked. A busy server may take longer for it than a pass waits.
func alive(r *http.Request) *http.Response {
	if r.URL.Path != "/version" {
		return nil
	}
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader("{}")),
	}
}

// turnsBudget is shorter than what one request that hangs takes in some of these tests, and as long
// as two in others.
const turnsBudget = time.Second

// hangingAt starts one whose requests hang where hangs says so.
func (w *world) hangingAt(takes time.Duration, hangs func(*http.Request) bool) *applier {
	w.Helper()
	return w.hangingWithin(turnsBudget, takes, hangs)
}

// hangingWithin is hangingAt with a budget of its own.
func (w *world) hangingWithin(budget, takes time.Duration, hangs func(*http.Request) bool) *applier {
	w.Helper()
	c := rest.CopyConfig(w.cluster.Config(""))
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return hanging{next, hangs, takes} })
	return w.startWith(c, resources.Options{Budget: budget})
}

// within makes passes until something is so, and fails if a few do not lead to it: those that it
// takes, and twice as many that a server with much to do wastes.
func (a *applier) within(passes int, what string, so func() bool) {
	a.Helper()
	passes *= 3
	n := 0
	a.until(what, func(r reconciler.Report, err error) bool {
		n++
		if so() {
			return true
		}
		if n >= passes {
			a.Fatalf("%s did not come within %d passes: %v, %+v", what, n, err, r.Failures)
		}
		return false
	})
}

func account(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: default}\n---\n", name)
}

// annotated is configMap with an annotation.
func annotated(name, annotation string) string {
	return strings.Replace(configMap(name, "1"), "namespace: default", "namespace: default, annotations: {"+annotation+"}", 1)
}

func kept() (all string) {
	for n := range 5 {
		all += configMap(fmt.Sprint("kept-", n), "1")
	}
	return all
}

// TestTurnOfWhatWaits: what waits for dependencies whose look hangs does not keep other objects
// from their turn, nor what is no longer wanted from being deleted. One of the others depends on
// what changes whenever a look begins, so that it has to be looked at anew.
func TestTurnOfWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", account("gone")+kept())
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	all := kept()
	for n := range 6 {
		all += annotated(fmt.Sprint("hangs-", n), "ironherd.dev/healthy-when: 'true'")
		all += annotated(fmt.Sprint("dep-", n), fmt.Sprint("ironherd.dev/depends-on: ConfigMap default/hangs-", n))
	}
	all += annotated("busy", "ironherd.dev/healthy-when: 'true'") + annotated("dep-z", "ironherd.dev/depends-on: ConfigMap default/busy")
	w.write("a.yaml", all+annotated("later", "ironherd.dev/depends-on: ConfigMap default/kept-0"))
	var looks atomic.Int32
	a := w.hangingAt(turnsBudget*3/5, func(r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/configmaps/hangs-") {
			return false
		}
		w.patch(configMaps, "default", "busy", fmt.Sprintf(`{"metadata":{"annotations":{"looks":"%d"}}}`, looks.Add(1)))
		return true
	})
	a.within(12, "what comes after them", func() bool {
		return w.there(configMaps, "default", "later") && w.there(configMaps, "default", "dep-z") && !w.there(accounts, "default", "gone")
	})
}

// TestTurnOfWhatIsLost: an object that is no longer wanted, and about which no watch tells, does
// not keep the others from being deleted when the server does not answer what is asked of it.
func TestTurnOfWhatIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("bare", "1")+account("gone")+kept())
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	w.patch(configMaps, "default", "bare", `{"metadata":{"labels":null}}`)
	defer w.remove(configMaps, "default", "bare")
	w.write("a.yaml", kept())
	a := w.hangingAt(turnsBudget+100*time.Millisecond, func(r *http.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps/bare")
	})
	a.within(5, "the deletion of the others", func() bool { return !w.there(accounts, "default", "gone") })
}

// TestTurnOfWhatChanges: an object that hangs, and that changes whenever it is tried, is not tried
// again before the others had their turn.
func TestTurnOfWhatChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("busy", "1")+account("gone")+kept())
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	w.write("a.yaml", configMap("busy", "2")+kept())
	tries := 0
	a := w.hangingAt(turnsBudget+100*time.Millisecond, func(r *http.Request) bool {
		if r.Method == http.MethodGet || !strings.HasSuffix(r.URL.Path, "/configmaps/busy") {
			return false
		}
		tries++
		w.patch(configMaps, "default", "busy", fmt.Sprintf(`{"metadata":{"annotations":{"tries":"%d"}}}`, tries))
		return true
	})
	a.within(5, "what comes after it", func() bool { return !w.there(accounts, "default", "gone") })
	before := tries
	a.within(5, "another try of it", func() bool { return tries > before })
}

// TestOneLookThatHangs: a pass looks once at a dependency whose look hangs, however many objects
// wait for it.
func TestOneLookThatHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := annotated("hangs", "ironherd.dev/healthy-when: 'true'") + configMap("kept-0", "1")
	for n := range 5 {
		all += annotated(fmt.Sprint("dep-", n), "ironherd.dev/depends-on: ConfigMap default/hangs")
	}
	w.write("a.yaml", all+annotated("later", "ironherd.dev/depends-on: ConfigMap default/kept-0"))
	looks := 0
	a := w.hangingWithin(time.Minute, 250*time.Millisecond, func(r *http.Request) bool {
		hangs := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps/hangs")
		if hangs {
			looks++
		}
		return hangs
	})
	if r, err := a.pass(); err == nil || looks != 1 || !w.there(configMaps, "default", "later") {
		t.Errorf("%d looks: %+v, %v", looks, r, err)
	}
}
