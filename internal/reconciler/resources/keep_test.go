package resources_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// TestOtherKindsAreNotReplaced: an object whose field cannot be changed is only deleted and created
// again if nothing but configuration is lost with it.
func TestOtherKindsAreNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: fixed, namespace: default}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: main, image: example.com/image}]}
`
	w.write("a.yaml", fmt.Sprintf(deployment, "one"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	uid := w.get(deployments, "default", "fixed").GetUID()
	w.write("a.yaml", fmt.Sprintf(deployment, "two"))
	r, err := a.pass()
	if err == nil || r.Recreated != 0 || !r.Ready || !strings.Contains(fmt.Sprint(r.Failures), "objects of its kind are not deleted for that") {
		t.Errorf("%+v, %v", r, err)
	}
	if w.get(deployments, "default", "fixed").GetUID() != uid {
		t.Error("a deployment was deleted, with all its pods")
	}
}

// TestADefinitionIsNotReplaced: a definition without the version in which its objects are stored is
// refused, and the reason says what would go with it.
func TestADefinitionIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const stored = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fixtures.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: fixtures, kind: Fixture}
  versions: [{name: %s, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`
	w.write("a.yaml", fmt.Sprintf(stored, "v1beta1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	uid := w.get(definitions, "", "fixtures.example.com").GetUID()
	w.write("a.yaml", fmt.Sprintf(stored, "v1"))
	r, err := a.pass()
	if reason := fmt.Sprint(r.Failures); err == nil || r.Recreated != 0 || !strings.Contains(reason, "not deleted for that, because that deletes what others have put into them") ||
		!strings.Contains(reason, "status.storedVersions") {
		t.Errorf("%+v, %v", r, err)
	}
	if w.get(definitions, "", "fixtures.example.com").GetUID() != uid {
		t.Error("a definition was deleted, with all objects of its kind")
	}
}

// TestOthersFieldsAreNotDeleted: an object whose field cannot be changed is not deleted while
// others have fields of it that the manifest does not name: what they have put there is nowhere
// else. What they have edited of ours is drift.
func TestOthersFieldsAreNotDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: shared, namespace: default}\ntype: %s\nstringData: {ours: a}\n"
	w.write("a.yaml", fmt.Sprintf(secret, "Opaque"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	uid := w.get(secrets, "default", "shared").GetUID()
	w.patch(secrets, "default", "shared", `{"data":{"private.key":"c2VjcmV0"}}`)
	w.write("a.yaml", fmt.Sprintf(secret, "example.com/other"))
	// A pass may come before the news of the edit.
	r := a.until("that it is not deleted", func(r reconciler.Report, err error) bool {
		return err != nil && len(r.Failures) == 1 && strings.HasPrefix(r.Failures[0].Object, "Secret default/shared") &&
			strings.Contains(r.Failures[0].Reason, `of others with it: .data.private.key of "somebody"`)
	})
	if r.Recreated != 0 {
		t.Errorf("%+v", r)
	}
	if w.get(secrets, "default", "shared").GetUID() != uid {
		t.Error("what somebody had put into it was deleted")
	}
	w.patch(secrets, "default", "shared", `{"data":{"private.key":null,"ours":"eA=="}}`)
	if r := a.done(); r.Recreated != 1 {
		t.Errorf("%+v", r)
	}
}

// TestFailingKindIsKept: while something of a kind fails, nothing of that kind is deleted, for it
// may be what takes its place; other kinds are.
func TestFailingKindIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: gone, namespace: default}\n---\n"
	kept := configMap("one", "1") + configMap("two", "1") + configMap("three", "1")
	w.write("a.yaml", kept+configMap("replaced", "1")+secret)
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	w.write("a.yaml", kept+"datum: {a: b}\n"+configMap("replacement", "1"))
	for range 2 {
		if r, err := a.pass(); err == nil || len(r.Failures) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if !w.there(configMaps, "default", "replaced") || w.there(secrets, "default", "gone") {
		t.Error("not exactly what could go is gone")
	}
	w.write("a.yaml", kept+configMap("replacement", "1"))
	if a.done(); w.there(configMaps, "default", "replaced") {
		t.Error("what was replaced is still there")
	}
}

// TestUnreachableIsCounted: what is no longer in the manifests, and cannot be reached, counts for
// whether that is more than half: else it would go in two parts.
func TestUnreachableIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: default}\n---\n"
	kept := configMap("one", "1") + configMap("two", "1")
	w.write("a.yaml", kept+configMap("gone", "1")+fmt.Sprintf(secret, "gone")+fmt.Sprintf(secret, "lost"))
	first := w.start(resources.Options{BuiltIn: []*object.Object{}})
	first.done()
	first.stop()
	w.write("a.yaml", kept)
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return away{next, "/secrets"} })
	a := w.startWith(config, resources.Options{BuiltIn: []*object.Object{}})
	r, err := a.pass()
	if err == nil || r.Pruned != 0 || !strings.Contains(fmt.Sprint(r.Failures), "3 of the 5 objects that were created from manifests are no longer in them, which is more than half") {
		t.Errorf("%+v, %v", r, err)
	}
}

// away has no answer for one resource.
type away struct {
	http.RoundTripper
	resource string
}

func (a away) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, a.resource) {
		return nil, errors.New("it is away")
	}
	return a.RoundTripper.RoundTrip(r)
}

// TestKindIsNotForgotten: while a group cannot be asked for, what was created of it may still be
// there, and that this is not known is told. A server that does not name the kind at all may only
// have begun; when it has said so for long enough, it is forgotten.
func TestKindIsNotForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(apiServices, "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.away.example.com}\n"+
		"spec: {group: away.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 10, service: {name: none, namespace: default}}\n")
	t.Cleanup(func() { w.removeAfter(apiServices, "v1.away.example.com") })
	w.create(configMaps, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s, labels: {%s: \"true\"}}\ndata: {%s: \"%s\"}\n",
		inventory.Name, inventory.Namespace, object.Label, "Thing.away.example.com", "default/t uid=u\\ndefault/u uid=v need=required"))
	keys := []object.Key{
		{Group: "away.example.com", Kind: "Thing", Namespace: "default", Name: "t"}, {Group: "away.example.com", Kind: "Thing", Namespace: "default", Name: "u"},
	}
	known := func() (n int) {
		for _, key := range keys {
			if _, is := w.inventory().Entries[key]; is {
				n++
			}
		}
		return n
	}
	w.write("a.yaml", configMap("one", "1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	report := a.until("that it is told", func(r reconciler.Report, err error) bool {
		return err != nil && !r.Ready && strings.Count(fmt.Sprint(r.Failures), "whether it is there cannot be asked") == 2
	})
	if len(report.Failures) != 2 || !w.there(configMaps, "default", "one") {
		t.Errorf("something else fails, or the rest is not kept: %+v", report)
	}
	if n := known(); n != 2 {
		t.Errorf("%d of 2 are known while their API server is away", n)
	}
	w.remove(apiServices, "", "v1.away.example.com")
	a.done() // it asks again by itself
	if _, err := a.pass(); err != nil {
		t.Error(err)
	}
	if n := known(); n != 2 {
		t.Errorf("%d of 2 are known, of a kind that the server lacks since a moment", n)
	}
	a.stop()
	b := w.start(resources.Options{BuiltIn: []*object.Object{}, Vanished: time.Second})
	w.await("that they are forgotten", func() bool { b.done(); return known() == 0 })
	b.silent()
}

// TestAKindThatIsGoneIsNotCounted: once a kind has been gone for long enough, its objects hold up
// no deletion, also while some other group cannot be asked. They are not forgotten before it can.
func TestAKindThatIsGoneIsNotCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(apiServices, "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.dead.example.com}\n"+
		"spec: {group: dead.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 10, service: {name: none, namespace: default}}\n")
	t.Cleanup(func() { w.removeAfter(apiServices, "v1.dead.example.com") })
	w.create(configMaps, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s, labels: {%s: \"true\"}}\ndata: {%s: \"%s\"}\n",
		inventory.Name, inventory.Namespace, object.Label, "Thing.gone.example.com", "default/t uid=u\\ndefault/u uid=v\\ndefault/v uid=w"))
	w.write("a.yaml", configMap("one", "1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}, Vanished: 3 * time.Second})
	counted := func() bool {
		r, _ := a.pass() // what it could not do is in the report
		return strings.Contains(fmt.Sprint(r.Failures), "more than half")
	}
	if !counted() {
		t.Error("they are not counted at first")
	}
	w.await("that they are counted no more", func() bool { return !counted() })
	if n := len(w.inventory().Entries); n != 4 {
		t.Errorf("%d objects are known, want 4", n)
	}
}
