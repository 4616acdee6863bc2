package resources_test

import (
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// required is a ConfigMap that API servers of a release need.
func required(t *testing.T, name string) *object.Object {
	t.Helper()
	o, err := object.NewBuiltIn(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "default"},
	}, "test", object.Required)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestPausedLeftByAnotherRelease: what another release needed, and people have paused, is counted
// and reported once. API servers wait for what is there, not for what is gone, is somebody else's,
// or is being deleted.
func TestPausedLeftByAnotherRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := []*object.Object{required(t, "there"), required(t, "gone"), required(t, "theirs"), required(t, "going")}
	newer := w.start(resources.Options{BuiltIn: own})
	newer.done()
	newer.stop()
	w.patch(configMaps, "default", "going", `{"metadata":{"finalizers":["example.com/vault"]}}`)
	for _, name := range []string{"gone", "theirs", "going"} {
		w.remove(configMaps, "default", name)
	}
	w.create(configMaps, strings.TrimSuffix(configMap("theirs", "1"), "---\n"))
	older := w.start(resources.Options{BuiltIn: []*object.Object{}})
	older.SetOverrides([]reconciler.Override{{Effect: reconciler.Pause, Scope: reconciler.ScopeAll, Reason: "an incident"}})
	r, err := older.pass()
	if err == nil || r.Ready || r.Paused != 1 || len(r.Failures) != 1 || !strings.HasPrefix(r.Failures[0].Object, "ConfigMap default/there") {
		t.Fatalf("%+v, %v", r, err)
	}
	w.remove(configMaps, "default", "there")
	older.until("that nobody waits", func(r reconciler.Report, err error) bool { return err == nil && r.Ready && r.Paused == 0 })
	if !w.there(configMaps, "default", "theirs") || !w.there(configMaps, "default", "going") {
		t.Error("what is paused was deleted")
	}
	w.remove(configMaps, "default", "theirs")
}
