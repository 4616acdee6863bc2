package resources_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

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

// TestAKindThatIsGoneHidesNoLeftover: that a kind is gone, of which the release only offers an
// object, does not have API servers told that they may serve before what another release needed is
// looked at.
func TestAKindThatIsGoneHidesNoLeftover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	newer := w.start(resources.Options{BuiltIn: []*object.Object{required(t, "left")}})
	newer.done()
	newer.stop()
	offered := slices.DeleteFunc(objects(t), func(o *object.Object) bool { return o.Kind != "RuntimeClass" })
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return lacking{next, "/runtimeclasses"} })
	older := w.startWith(config, resources.Options{BuiltIn: offered})
	if r, err := older.pass(); err == nil || !r.Ready || r.Pruned != 1 || w.there(configMaps, "default", "left") {
		t.Errorf("%+v, %v", r, err)
	}
}

// lacking answers as a server that does not serve one resource.
type lacking struct {
	http.RoundTripper
	resource string
}

func (l lacking) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, l.resource) {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, "")
	}
	return l.RoundTripper.RoundTrip(r)
}
