package resources_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/test/cluster"
)

// TestDeletedBeforeTheAnswer: somebody deletes an object before the answer to its creation has
// arrived. The watch has told that by then, and does not tell it again; the next pass creates it.
func TestDeletedBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("ghost", "1"))
	over := &wire{before: pass, after: pass}
	a := w.startWith(w.wired(over), resources.Options{BuiltIn: []*object.Object{}})
	gone := sync.OnceFunc(func() {
		w.remove(configMaps, "default", "ghost")
		drain(a)
		// Two more signals at most are of the ghost, so one of three is of what came after it.
		w.create(configMaps, strings.TrimSuffix(strings.Replace(configMap("beacon", "0"), "namespace:", `labels: {`+object.Label+`: "true"}, namespace:`, 1), "---\n"))
		for n := range 3 {
			w.patch(configMaps, "default", "beacon", fmt.Sprintf(`{"data":{"key":"%d"}}`, n+1))
			w.await("a signal", func() bool { return len(a.Changed()) == 1 })
			drain(a)
		}
	})
	over.after = func(_ int, r *http.Request) error {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/configmaps/ghost") {
			gone()
		}
		return nil
	}
	if r, err := a.pass(); err != nil || r.Created != 1 || w.there(configMaps, "default", "ghost") {
		t.Errorf("the first pass: %+v, %v", r, err)
	}
	if r, err := a.pass(); err != nil || r.Created != 1 || !w.there(configMaps, "default", "ghost") {
		t.Errorf("the pass after it: %+v, %v", r, err)
	}
}

// TestCreateOnlyWithoutLabel: an object that is left alone once it is there, and that does not bear
// our label, is not in what the watches tell. What depends on it is applied; when it is gone, a
// later pass creates it.
func TestCreateOnlyWithoutLabel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"theirs", "bare"} {
		w.remove(configMaps, "default", name)
	}
	w.create(configMaps, strings.TrimSuffix(configMap("theirs", "x"), "---\n"))
	policy := func(name, annotations string) string {
		return strings.Replace(configMap(name, "1"), "namespace: default", "namespace: default, annotations: {"+annotations+"}", 1)
	}
	const once = "ironherd.dev/apply: create-only"
	w.write("a.yaml", policy("theirs", once)+policy("bare", once)+policy("after", "ironherd.dev/depends-on: ConfigMap default/theirs"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	if r, err := a.pass(); err != nil || r.Created != 2 {
		t.Errorf("the first pass: %+v, %v", r, err)
	}
	before := len(w.requests())
	w.patch(configMaps, "default", "bare", `{"metadata":{"labels":null}}`)
	w.await("a look at what has lost its label", func() bool {
		_, err := a.pass()
		return err == nil && slices.ContainsFunc(w.requests()[before:], func(r cluster.Request) bool {
			return r.Verb == "get" && strings.HasSuffix(r.RequestURI, "/configmaps/bare")
		})
	})
	a.silent() // they are not asked for in each pass
	a.stop()
	b := w.start(resources.Options{BuiltIn: []*object.Object{}, LookEvery: time.Nanosecond})
	b.done()
	for _, name := range []string{"theirs", "bare"} {
		w.remove(configMaps, "default", name)
		if r, err := b.pass(); err != nil || r.Created != 1 || !w.there(configMaps, "default", name) {
			t.Errorf("%s is gone: %+v, %v", name, r, err)
		}
	}
}
