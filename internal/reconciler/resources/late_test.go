package resources_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
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
