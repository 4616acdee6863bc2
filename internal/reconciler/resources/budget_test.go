package resources_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/reconciler"
)

// TestBudget: what hangs in the manifests takes a bounded time of a pass. It says what is left, and
// deletes nothing. The passes after it try each object once before they try one again.
func TestBudget(t *testing.T) {
	t.Parallel()
	const hanging = 40
	w := newWorld(t)
	w.write("a.yaml", configMap("gone", "1")+configMap("kept", "1")+configMap("also", "1"))
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	var all strings.Builder
	for n := range hanging {
		fmt.Fprintf(&all, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: hangs-%d, namespace: default}\n---\n", n)
	}
	w.write("a.yaml", all.String()+configMap("kept", "1")+configMap("also", "1")+configMap("new", "1"))
	var mu sync.Mutex
	tries, again := map[string]int{}, 0
	over := &wire{before: pass, after: pass}
	over.before = func(_ int, r *http.Request) error {
		if !strings.Contains(r.URL.Path, "/serviceaccounts/hangs-") {
			return nil
		}
		mu.Lock()
		if tries[r.URL.Path]++; tries[r.URL.Path] > 1 && len(tries) < hanging {
			again++
		}
		mu.Unlock()
		ctx, cancel := context.WithTimeout(r.Context(), turnsBudget*3/5)
		defer cancel()
		<-ctx.Done() // as if the server did not answer
		return ctx.Err()
	}
	a := w.startWith(w.wired(over), resources.Options{Budget: turnsBudget})
	r, err := a.pass()
	if err == nil || !r.Ready || r.Pruned != 0 || len(tries) >= hanging || !strings.Contains(fmt.Sprint(r.Failures), "the rest is left to the next pass") {
		t.Errorf("%d of %d were tried: %+v, %v", len(tries), hanging, r, err)
	}
	a.until("what comes after them", func(reconciler.Report, error) bool {
		return w.there(configMaps, "default", "new") && !w.there(configMaps, "default", "gone")
	})
	if again > 0 || len(tries) < hanging {
		t.Errorf("%d were tried again before others were, of %d", again, len(tries))
	}
}
