package resources_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// declare has another manager declare the value of a ConfigMap.
func (w *world) declare(name string) {
	w.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "default"}, "data": map[string]any{"key": "theirs"},
	}}
	if _, err := w.in(configMaps, "default").Apply(w.Context(), name, o, metav1.ApplyOptions{FieldManager: "gitops", Force: true}); err != nil {
		w.Fatal(err)
	}
}

// inInventory reports whether what is stored has a ConfigMap.
func (w *world) inInventory(name string) bool {
	w.Helper()
	_, entered := w.inventory().Entries[object.Key{Kind: "ConfigMap", Namespace: "default", Name: name}]
	return entered
}

// TestNeverDeletedThoughNotApplied: that an object is never deleted counts in its manifest alone,
// too, where nothing puts the annotation on the live object: others have a field of it, it is
// paused, it waits for another one, its manifest is refused, or the server refuses the change. It
// counts also for a leader that has never seen that manifest.
func TestNeverDeletedThoughNotApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	others := configMap("one", "1") + configMap("two", "1") + configMap("three", "1")
	names := []string{"conflict", "paused", "waits", "refused", "denied"}
	created := others + configMap("gone", "1")
	for _, name := range names {
		created += configMap(name, "1")
	}
	w.write("a.yaml", created)
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return sieve{next, func(r *http.Request) bool {
			return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/denied")
		}}
	})
	first := w.start(resources.Options{BuiltIn: []*object.Object{}})
	first.done()
	first.stop()

	w.declare("conflict")
	never := func(name, more string) string {
		return strings.Replace(configMap(name, "2"), "namespace: default", "namespace: default, annotations: {ironherd.dev/prune: never"+more+"}", 1)
	}
	w.write("a.yaml", others+configMap("gone", "1")+never("conflict", "")+never("paused", "")+never("denied", "")+
		never("waits", ", ironherd.dev/depends-on: ConfigMap default/conflict")+never("refused", ", ironherd.dev/depends-on: ConfigMap default/refused"))
	passes := 0
	second := w.startWith(config, resources.Options{BuiltIn: []*object.Object{}})
	second.SetOverrides([]reconciler.Override{{Effect: reconciler.Pause, Scope: "ConfigMap default/paused", By: "anna", Reason: "an incident"}})
	second.within(10, "that they are let go", func() bool {
		for _, name := range names {
			if w.inInventory(name) {
				for _, failing := range []string{"conflict", "denied"} { // what changes is tried again at once
					w.patch(configMaps, "default", failing, fmt.Sprintf(`{"metadata":{"labels":{"pass":"%d"}}}`, passes))
				}
				passes++
				return false
			}
		}
		return true
	})
	second.stop()
	if passes < 8 {
		t.Errorf("what fails is let go after %d passes", passes)
	}

	w.write("a.yaml", others)
	third := w.start(resources.Options{BuiltIn: []*object.Object{}})
	if r := third.done(); r.Pruned != 1 || w.there(configMaps, "default", "gone") {
		t.Errorf("what nobody keeps is not all that was deleted: %+v", r)
	}
	for _, name := range names {
		if !w.there(configMaps, "default", name) {
			t.Errorf("%s is deleted", name)
		}
	}
}

// TestNeverDeletedAndApplied: what gets the annotation soon is not let go: it is ours as before.
func TestNeverDeletedAndApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("one", "1")+configMap("two", "1")+configMap("kept", "1"))
	config := w.cluster.Config("")
	var refusals atomic.Int64
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return sieve{next, func(r *http.Request) bool {
			return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/kept") && refusals.Add(-1) >= 0
		}}
	})
	a := w.startWith(config, resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	refusals.Store(1)
	w.write("a.yaml", configMap("one", "1")+configMap("two", "1")+annotated("kept", "ironherd.dev/prune: never"))
	if _, err := a.pass(); err == nil || !w.inInventory("kept") {
		t.Errorf("%v; after one failure it is let go: %t", err, !w.inInventory("kept"))
	}
	if a.done(); !w.inInventory("kept") {
		t.Error("it is let go, and says that it is never deleted")
	}
	w.write("a.yaml", configMap("one", "1")+configMap("two", "1"))
	if r := a.done(); r.Pruned != 0 || !w.there(configMaps, "default", "kept") {
		t.Errorf("it is deleted: %+v", r)
	}
}

// TestNeverDeletedThoughItWaits: what has failed once, and then waits for another one, is not tried
// again, and so it is let go.
func TestNeverDeletedThoughItWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	others := configMap("one", "1") + configMap("two", "1") + configMap("three", "1")
	w.write("a.yaml", others+configMap("kept", "1")+configMap("dep", "1"))
	config := w.cluster.Config("")
	var refusals atomic.Int64
	var held atomic.Bool
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return sieve{next, func(r *http.Request) bool {
			return r.Method == http.MethodPatch &&
				(strings.HasSuffix(r.URL.Path, "/kept") && refusals.Add(-1) >= 0 || strings.HasSuffix(r.URL.Path, "/dep") && held.Load())
		}}
	})
	a := w.startWith(config, resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	kept := annotated("kept", "ironherd.dev/prune: never, ironherd.dev/depends-on: ConfigMap default/dep")
	refusals.Store(1)
	w.write("a.yaml", others+kept+configMap("dep", "1"))
	if _, err := a.pass(); err == nil || !w.inInventory("kept") {
		t.Errorf("%v; after one failure it is let go: %t", err, !w.inInventory("kept"))
	}
	held.Store(true)
	w.write("a.yaml", others+kept+configMap("dep", "2"))
	a.within(2, "that it is let go", func() bool { return !w.inInventory("kept") })
	held.Store(false)
	w.write("a.yaml", others+configMap("dep", "1"))
	if a.done(); !w.there(configMaps, "default", "kept") {
		t.Error("it is deleted")
	}
}
