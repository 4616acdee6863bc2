package resources_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/node"
)

// TestOnlyTheReleaseGates: what is wrong in manifests, and what somebody else had before us, is
// reported, and keeps no API server waiting.
func TestOnlyTheReleaseGates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(runtimes, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: gvisor}\nhandler: theirs\n")
	t.Cleanup(func() { w.removeAfter(runtimes, "gvisor") })
	w.write("typo.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: typo, namespace: default}\ndatum: {a: b}\n")
	w.write("not-yaml.yaml", "{{{")
	w.write("widget.yaml", widget) // nobody defines it
	w.write("role.yaml", "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: typo}\nrulez: []\n")
	a := w.start(resources.Options{})
	r, err := a.pass()
	if err == nil || !r.Ready || len(r.Failures) != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, f := range r.Failures {
		if f.Required {
			t.Errorf("API servers wait for %+v", f)
		}
	}
	if !w.there(bindings, "", "ironherd:kubelet-api") {
		t.Error("what the release needs is not there")
	}
}

// TestTheReleaseGates: while something fails that API servers need, they wait.
func TestTheReleaseGates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	over := &wire{before: pass, after: pass}
	refuse := true
	over.before = func(_ int, r *http.Request) error {
		if refuse && strings.HasSuffix(r.URL.Path, "/clusterroles/ironherd:kubelet-api") {
			r.URL.Path = strings.TrimSuffix(r.URL.Path, "ironherd:kubelet-api") + "another"
		}
		return nil
	}
	w.write("a.yaml", configMap("beside", "1"))
	a := w.startWith(w.wired(over), resources.Options{})
	r, err := a.pass()
	if err == nil || r.Ready || len(r.Failures) != 1 || !r.Failures[0].Required {
		t.Errorf("%+v, %v", r, err)
	}
	if !w.there(configMaps, "default", "beside") {
		t.Error("one failure stopped the rest")
	}
	refuse = false
	a.until("everything", func(r reconciler.Report, err error) bool { return err == nil && r.Ready })
}

// unanswered are the ways in which a request gets no answer.
var unanswered = map[string]func(*http.Request) error{
	"it hangs, as behind an admission webhook that does not answer": func(r *http.Request) error {
		<-r.Context().Done()
		return r.Context().Err()
	},
	"it is cut off, as by a proxy that does not like it": func(*http.Request) error { return io.ErrUnexpectedEOF },
}

// TestUnansweredObject: a request that gets no answer, while the server answers others, is one
// object's failure.
func TestUnansweredObject(t *testing.T) {
	t.Parallel()
	for name, send := range unanswered {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			over := &wire{before: pass, after: pass}
			over.before = func(_ int, r *http.Request) error {
				if strings.HasSuffix(r.URL.Path, "/configmaps/silent") {
					return send(r)
				}
				return nil
			}
			w.write("a.yaml", configMap("silent", "1")+"apiVersion: v1\nkind: Secret\nmetadata: {name: after, namespace: default}\n")
			a := w.startWith(w.wired(over), resources.Options{BuiltIn: []*object.Object{}})
			r, err := a.pass()
			if err == nil || !r.Ready || r.Created != 1 || len(r.Failures) != 1 || !strings.Contains(r.Failures[0].Object, "ConfigMap default/silent") ||
				!strings.Contains(r.Failures[0].Reason, "the server answers other requests, but not this one") {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// TestUnansweredInventory: while the server does not answer when it is to store the inventory, and
// answers others, nothing is created; what is there is kept as wanted.
func TestUnansweredInventory(t *testing.T) {
	t.Parallel()
	for name, send := range unanswered {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.write("a.yaml", configMap("there", "1"))
			first := w.start(resources.Options{BuiltIn: []*object.Object{}})
			first.done()
			first.stop()
			over := &wire{before: pass, after: pass}
			over.before = func(_ int, r *http.Request) error {
				if strings.Contains(r.URL.Path, "/namespaces/"+inventory.Namespace+"/configmaps") {
					return send(r)
				}
				return nil
			}
			w.write("a.yaml", configMap("there", "2")+configMap("new", "1"))
			a := w.startWith(w.wired(over), resources.Options{BuiltIn: []*object.Object{}})
			r, err := a.pass()
			if err == nil || !r.Ready || r.Created != 0 || r.Updated != 1 ||
				!strings.Contains(fmt.Sprint(r.Failures), "the server answers other requests, but not this one") {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// TestLeftByAnotherRelease: what another release needed, and ours does not, goes, whatever is wrong
// in the manifests and whoever disagrees about them; API servers wait for that. What it only
// offered stays while a manifest cannot be read: it may be in there.
func TestLeftByAnotherRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("kept", "1"))
	newer := w.start(resources.Options{})
	newer.done()
	newer.stop()
	w.write("b.yaml", "{{{")
	w.write("a.yaml", "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: typo}\nrulez: []\n")
	var few []*object.Object
	for _, o := range objects(t) {
		if o.Name != "ironherd:network-services" && o.Kind != "RuntimeClass" {
			few = append(few, o)
		}
	}
	older := w.start(resources.Options{BuiltIn: few})
	older.AskConsent(func(context.Context, node.Source) (reconciler.Consent, error) { return reconciler.Consent{}, nil })
	diff, err := older.Plan(t.Context())
	if err != nil || len(diff.Changes) != 4 {
		t.Errorf("the plan has %+v, %v", diff, err)
	}
	for _, c := range diff.Changes {
		if strings.Contains(c.Held, "a manifest that cannot be read") != strings.HasPrefix(c.Object, "RuntimeClass") {
			t.Errorf("the plan has %+v", c)
		}
	}
	r, err := older.pass()
	if err == nil || !r.Ready || r.Pruned != 2 || !strings.Contains(fmt.Sprint(r.Failures), "may have them: RuntimeClass runc, RuntimeClass gvisor") {
		t.Errorf("%+v, %v", r, err)
	}
	if w.there(clusterRoles, "", "ironherd:network-services") || !w.there(runtimes, "", "gvisor") || !w.there(configMaps, "default", "kept") {
		t.Error("not exactly what the other release needed was deleted")
	}
	w.write("b.yaml", "# nothing\n")
	if r, err := older.pass(); err == nil || !r.Ready || r.Pruned != 2 || w.there(runtimes, "", "gvisor") || !w.there(configMaps, "default", "kept") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestLeftAndTakenOver: what another release has left, and somebody has put into the manifests to
// keep it, stays the object that it is while these are written or cannot be read.
func TestLeftAndTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const class = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: gvisor}\nhandler: runsc"
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	uid := w.get(runtimes, "", "gvisor").GetUID()
	w.write("a.yaml", class) // cut off, as it seems
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	if r, err := a.pass(); err == nil || !r.Ready {
		t.Errorf("a manifest that is cut off: %+v, %v", r, err)
	}
	a.stop()
	w.write("a.yaml", class+"\n")
	a = w.start(resources.Options{BuiltIn: []*object.Object{}, Settled: time.Second})
	if r, err := a.pass(); err != nil || !r.Ready {
		t.Errorf("a manifest that was written just now: %+v, %v", r, err)
	}
	a.until("the manifest's own", func(r reconciler.Report, err error) bool { return err == nil && r.Objects == 1 })
	if w.get(runtimes, "", "gvisor").GetUID() != uid || w.there(runtimes, "", "runc") {
		t.Error("not exactly what nobody wants was deleted")
	}
}

// TestAKindThatHangsIsTheManifests: what has gone from the manifests is of a kind whose server
// takes requests and answers none. API servers do not wait for it.
func TestAKindThatHangsIsTheManifests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("kept", "1"))
	w.write("b.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: gone, namespace: default}\n")
	first := w.start(resources.Options{})
	first.done()
	first.stop()
	w.write("b.yaml", "")
	ready := make(chan struct{})
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return sluggish{next, "/secrets", ready}
	})
	a := w.startWith(config, resources.Options{})
	a.OnReady(func(context.Context) error {
		close(ready)
		return nil
	})
	if r, err := a.pass(); err != nil || !r.Ready || r.Pruned != 1 {
		t.Errorf("it was held up: %+v, %v", r, err)
	}
}

// sluggish answers for one resource only when it may.
type sluggish struct {
	http.RoundTripper
	resource string
	may      <-chan struct{}
}

func (s sluggish) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, s.resource) {
		select {
		case <-s.may:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return s.RoundTripper.RoundTrip(r)
}

// TestDeselected: what is no longer selected is left as it is, because somebody may use it.
func TestDeselected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := w.start(resources.Options{})
	all.done()
	all.stop()
	few := w.start(resources.Options{Selection: builtin.Selection{Names: []string{builtin.KubeletAPI}}})
	if r := few.done(); r.Objects != 2 || r.Pruned != 0 {
		t.Errorf("%+v", r)
	}
	few.silent()
	if !w.there(classes, "", "local") || !w.there(clusterRoles, "", "ironherd:owner") {
		t.Error("it was deleted")
	}
	w.remove(classes, "", "local")
	if few.done(); w.there(classes, "", "local") {
		t.Error("it is still kept")
	}
}

// TestNamedLikeAPart: an object of the manifests that has the name of a part which is not selected
// is theirs: it is deleted when it is no longer in them.
func TestNamedLikeAPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const class = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: local}\nprovisioner: example.com\n---\n"
	w.write("a.yaml", class+configMap("kept", "1"))
	a := w.start(resources.Options{Selection: builtin.Selection{Names: []string{builtin.KubeletAPI}}})
	a.done()
	if !w.there(classes, "", "local") {
		t.Fatal("it was not created")
	}
	w.write("a.yaml", configMap("kept", "1"))
	if r := a.done(); r.Pruned != 1 || w.there(classes, "", "local") {
		t.Errorf("it is still there: %+v", r)
	}
}

// TestDefaultSelection: unless they are asked for, there are no classes and no driver; and no class
// of ours is ever the default beside another one.
func TestDefaultSelection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	roles := w.start(resources.Options{Selection: builtin.Selection{Names: []string{}}})
	if r := roles.done(); r.Objects != 0 {
		t.Errorf("nothing is selected: %+v", r)
	}
	roles.stop()
	isDefault := func() bool { return w.get(classes, "", "local").GetAnnotations()[builtin.DefaultAnnotation] == "true" }
	names := []string{builtin.Driver, builtin.ClassLocal}
	quiet := w.start(resources.Options{Selection: builtin.Selection{Names: names}})
	quiet.done()
	if isDefault() {
		t.Error("it is the default without being asked")
	}
	if capacity := nested(w.get(drivers, "", "local.csi.ironherd.dev").Object, []string{"spec", "storageCapacity"}); capacity != false {
		t.Errorf("the scheduler waits for capacity that nobody publishes: %v", capacity)
	}
	quiet.stop()

	const theirs = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: theirs, annotations: {%s: \"true\"}}\nprovisioner: example.com\n"
	for _, annotation := range []string{builtin.DefaultAnnotation, builtin.DefaultAnnotationBeta} {
		w.create(classes, fmt.Sprintf(theirs, annotation))
		a := w.start(resources.Options{Selection: builtin.Selection{Names: names, DefaultClass: "local", Capacity: true}})
		a.done()
		if isDefault() {
			t.Errorf("a second default beside %s", annotation)
		}
		w.remove(classes, "", "theirs")
		w.await("that it becomes the default", func() bool { a.done(); return isDefault() })
		a.silent()
		w.create(classes, fmt.Sprintf(theirs, annotation)) // the wish of somebody, later than ours
		w.await("that it gives way", func() bool { a.done(); return !isDefault() })
		a.silent()
		a.stop()
		w.remove(classes, "", "theirs")
	}
	if capacity := nested(w.get(drivers, "", "local.csi.ironherd.dev").Object, []string{"spec", "storageCapacity"}); capacity != true {
		t.Errorf("capacity was asked for: %v", capacity)
	}
}

// sieve answers 403 to what it is asked not to let through.
type sieve struct {
	http.RoundTripper
	refuses func(*http.Request) bool
}

func (s sieve) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.refuses(r) {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "storageclasses"}, "", errDied)
	}
	return s.RoundTripper.RoundTrip(r)
}

// TestDefaultIsNotKnown: while nobody knows whether another class is the default, ours is left as
// it is, and API servers do not wait for that.
func TestDefaultIsNotKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return sieve{next, func(r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, "/storageclasses") && r.URL.Query().Get("labelSelector") == ""
		}}
	})
	names := append(builtin.Default(), builtin.Driver, builtin.ClassLocal, builtin.ClassLocalStrict)
	a := w.startWith(config, resources.Options{Selection: builtin.Selection{Names: names, DefaultClass: "local"}})
	r, err := a.pass()
	if err == nil || !r.Ready || len(r.Failures) != 1 || r.Created != len(objects(t))-3 {
		t.Errorf("%+v, %v", r, err)
	}
	if w.there(classes, "", "local") || !w.there(classes, "", "local-strict") {
		t.Error("not exactly what is known is kept")
	}
}

// TestAnnotationProtectsNothing: what the annotations of a live object say of who needs it counts
// neither for nor against its deletion. The inventory does.
func TestAnnotationProtectsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("one", "1")+configMap("two", "1"))
	newer := w.start(resources.Options{})
	newer.done()
	for _, name := range []string{"one", "two"} {
		w.patch(configMaps, "default", name, `{"metadata":{"annotations":{"ironherd.dev/built-in":"required"}}}`)
	}
	newer.done()
	newer.silent()
	for key, entry := range w.inventory().Entries {
		if want := key.Kind != "ConfigMap"; (entry.Need != object.Nobody) != want {
			t.Errorf("%s is needed by %q", key, entry.Need)
		}
	}
	w.write("a.yaml", "") // more than half is lost
	if r, err := newer.pass(); err == nil || r.Pruned != 0 || !strings.Contains(fmt.Sprint(r.Failures), "2 of the 2") {
		t.Errorf("half of the manifests: %+v, %v", r, err)
	}
	w.write("a.yaml", "{{{") // it cannot be read
	if r, err := newer.pass(); err == nil || r.Pruned != 0 || !w.there(configMaps, "default", "one") || !w.there(configMaps, "default", "two") {
		t.Errorf("unread: %+v, %v", r, err)
	}
	newer.stop()
	w.write("a.yaml", "# nothing\n")
	// The other way round: what the release needed goes with it, whatever its annotations say.
	w.patch(clusterRoles, "", "ironherd:network-services", `{"metadata":{"annotations":{"ironherd.dev/built-in":null}}}`)
	older := w.start(resources.Options{BuiltIn: []*object.Object{}})
	if r, err := older.pass(); err == nil || !r.Ready || r.Pruned != len(objects(t)) {
		t.Errorf("the release's own: %+v, %v", r, err)
	}
}

// TestNeedIsRecorded: an inventory of before, which does not say who needs an object, learns it
// from the first pass; and so it does when a manifest takes over what a release had.
func TestNeedIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	need := func(name string) object.Need {
		return w.inventory().Entries[object.Key{Kind: "ConfigMap", Namespace: "default", Name: name}].Need
	}
	own := func(name string) *object.Object {
		o, err := object.NewBuiltIn(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "default"}, "data": map[string]any{"key": "1"},
		}, "test", object.Required)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first := w.start(resources.Options{BuiltIn: []*object.Object{own("one")}})
	first.done()
	first.stop()
	if need("one") != object.Required {
		t.Errorf("it is needed by %q", need("one"))
	}
	uid := w.get(configMaps, "default", "one").GetUID()
	w.patch(configMaps, inventory.Namespace, inventory.Name, fmt.Sprintf(`{"data":{"ConfigMap":"default/one uid=%s\n"}}`, uid))
	second := w.start(resources.Options{BuiltIn: []*object.Object{own("one")}})
	second.done()
	second.silent()
	second.stop()
	if need("one") != object.Required {
		t.Errorf("after an inventory that did not say so it is needed by %q", need("one"))
	}
	w.write("a.yaml", configMap("one", "1"))
	third := w.start(resources.Options{BuiltIn: []*object.Object{}})
	third.done()
	third.stop()
	if need("one") != object.Nobody {
		t.Errorf("a manifest wants it, and it is needed by %q", need("one"))
	}
}
