package resources_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// told returns our events on an object, as "reason: note".
func (w *world) told(namespace, kind, name string) (notes []string) {
	w.Helper()
	list, err := w.in(schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}, namespace).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range list.Items {
		of, _, _ := unstructured.NestedStringMap(e.Object, "regarding")
		reason, _, _ := unstructured.NestedString(e.Object, "reason")
		note, _, _ := unstructured.NestedString(e.Object, "note")
		if by, _, _ := unstructured.NestedString(e.Object, "reportingController"); by == "ironherd.dev/reconciler" && of["kind"] == kind && of["name"] == name {
			notes = append(notes, reason+": "+note)
		}
	}
	return notes
}

// TestEvents: what happens to an object, and what is wrong with it, is an event on it, once; and
// what is wrong with no object is one on the inventory.
func TestEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name, file := unused("told"), unused("file")+".yaml"
	w.write("a.yaml", configMap(name+"-1", "1")+configMap(name+"-2", "1")+configMap(name+"-3", "1")+"immutable: true\n"+configMap(name+"-frozen", "1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	w.write("a.yaml", configMap(name+"-1", "1")+configMap(name+"-2", "1")+"immutable: true\n"+configMap(name+"-frozen", "2"))
	a.done()
	for of, want := range map[string]string{name + "-3": "Pruned: ", name + "-frozen": "Recreated: "} {
		if got := w.told("default", "ConfigMap", of); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: %q", of, got)
		}
	}
	for i := range 3 {
		w.patch(configMaps, "default", name+"-1", fmt.Sprintf(`{"data":{"key":"edited %d"}}`, i))
		a.until("it is taken back", func(r reconciler.Report, err error) bool { return err == nil && r.Updated == 1 })
	}
	if got := w.told("default", "ConfigMap", name+"-1"); len(got) != 1 || !strings.HasPrefix(got[0], "TakenBack: ") {
		t.Errorf("edits that were taken back: %q", got)
	}
	w.write("a.yaml", configMap(name+"-1", "1")+configMap(name+"-2", "1")+"immutable: true\n"+configMap(name+"-frozen", "2")+"datum: {a: b}\n"+configMap(name+"-wrong", "1"))
	w.write(file, "{{{")
	for range 3 {
		if _, err := a.pass(); err == nil {
			t.Error("nothing is wrong")
		}
	}
	if got := w.told("default", "ConfigMap", name+"-wrong"); len(got) != 1 || !strings.HasPrefix(got[0], "NotAsWanted: ") || !strings.Contains(got[0], "datum") {
		t.Errorf("%q", got)
	}
	faults := 0
	for _, note := range w.told(inventory.Namespace, "ConfigMap", inventory.Name) {
		if strings.Contains(note, file) {
			faults++
		}
	}
	if faults != 1 {
		t.Errorf("the file that cannot be read is told %d times", faults)
	}
}

// TestWhatToDoInstead: where an edit is taken back, the event tells how to have one's way: by the
// manifest, or beside what the release brings.
func TestWhatToDoInstead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := unused("told")
	own, err := object.NewBuiltIn(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name + "-own", "namespace": "default"}, "data": map[string]any{"key": "1"},
	}, "test", object.Optional)
	if err != nil {
		t.Fatal(err)
	}
	w.write("a.yaml", configMap(name+"-manifest", "1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{own}})
	a.done()
	for of, want := range map[string]string{name + "-own": "put what it lacks into an object of your own", name + "-manifest": "change the manifest instead"} {
		w.patch(configMaps, "default", of, `{"data":{"key":"edited"}}`)
		a.until("it is taken back", func(r reconciler.Report, err error) bool { return err == nil && r.Updated == 1 })
		if got := w.told("default", "ConfigMap", of); len(got) != 1 || !strings.HasPrefix(got[0], "TakenBack: ") || !strings.HasSuffix(got[0], want) {
			t.Errorf("%s: %q", of, got)
		}
	}
}

// TestEventsOfTheCluster: an event on an object that is in no namespace is found where `kubectl
// describe` looks for it, which asks for events whose object has no namespace either.
func TestEventsOfTheCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := unused("told")
	w.write("a.yaml", "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: "+name+"}\nrule: []\n")
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	if _, err := a.pass(); err == nil {
		t.Error("nothing is wrong")
	}
	list, err := w.in(schema.GroupVersionResource{Version: "v1", Resource: "events"}, "").List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=ClusterRole,involvedObject.namespace=,involvedObject.name=" + name,
	})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetNamespace() != metav1.NamespaceDefault {
		t.Errorf("found are %+v, %v", list, err)
	}
}

// TestPolicies: what people say about one object, by annotations.
func TestPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	with := func(name, value, annotation string) string {
		return strings.Replace(configMap(name, value), "namespace: default", "namespace: default, annotations: {"+annotation+"}", 1)
	}
	w.create(configMaps, strings.TrimSuffix(strings.ReplaceAll(configMap("forced", "theirs"), "key:", "other: x, key:"), "---\n"))
	first := with("kept", "1", "ironherd.dev/prune: never") + with("once", "1", "ironherd.dev/apply: create-only") +
		with("forced", "ours", "ironherd.dev/apply: force") + configMap("annotated", "1") + configMap("gone", "1") + configMap("more", "1") + configMap("most", "1")
	w.write("a.yaml", first)
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	if got := nested(w.get(configMaps, "default", "forced").Object, []string{"data", "key"}); got != "ours" {
		t.Errorf("forced: %v", got)
	}
	w.patch(configMaps, "default", "once", `{"data":{"key":"edited"}}`)
	w.patch(configMaps, "default", "annotated", `{"metadata":{"annotations":{"ironherd.dev/prune":"never"}}}`)
	a.done()
	a.silent()
	w.write("a.yaml", with("once", "2", "ironherd.dev/apply: create-only")+with("forced", "ours", "ironherd.dev/apply: force")+configMap("more", "1")+configMap("most", "1"))
	if diff, err := a.Plan(t.Context()); err != nil || len(diff.Changes) != 1 {
		t.Errorf("the plan has %+v, %v", diff, err)
	}
	if r := a.done(); r.Pruned != 1 || r.Updated != 0 {
		t.Errorf("%+v", r)
	}
	a.silent()
	if got := nested(w.get(configMaps, "default", "once").Object, []string{"data", "key"}); got != "edited" {
		t.Errorf("create-only: %v", got)
	}
	if !w.there(configMaps, "default", "kept") || !w.there(configMaps, "default", "annotated") || w.there(configMaps, "default", "gone") {
		t.Error("not exactly what nobody keeps was deleted")
	}
	w.remove(configMaps, "default", "once")
	a.until("create-only, and it is gone", func(r reconciler.Report, err error) bool { return err == nil && r.Created == 1 })
	w.patch(configMaps, "default", "kept", `{"metadata":{"annotations":{"ironherd.dev/prune":null}}}`)
	a.until("nobody keeps it any more", func(r reconciler.Report, err error) bool { return err == nil && r.Pruned == 1 })
	w.write("b.yaml", with("wrong", "1", "ironherd.dev/apply: sometimes"))
	if r, err := a.pass(); err == nil || !strings.Contains(r.Failures[0].Reason, "may be create-only or force") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestNeverDeletedAndOnlyCreated: that an object is never deleted counts in its manifest alone,
// where nothing of the live object is ever changed.
func TestNeverDeletedAndOnlyCreated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	others := configMap("one", "1") + configMap("two", "1")
	w.write("a.yaml", others+configMap("kept", "1")+configMap("gone", "1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	before := w.get(configMaps, "default", "kept").GetResourceVersion()
	only := func(name, annotations string) string {
		return strings.Replace(configMap(name, "2"), "namespace: default", "namespace: default, annotations: {"+annotations+"}", 1)
	}
	w.write("a.yaml", others+only("kept", "ironherd.dev/apply: create-only, ironherd.dev/prune: never")+only("gone", "ironherd.dev/apply: create-only"))
	a.done()
	a.silent()
	if now := w.get(configMaps, "default", "kept").GetResourceVersion(); now != before {
		t.Error("what is only created was changed")
	}
	w.write("a.yaml", others)
	if r := a.done(); r.Pruned != 1 || w.there(configMaps, "default", "gone") || !w.there(configMaps, "default", "kept") {
		t.Errorf("not exactly what nobody keeps was deleted: %+v", r)
	}
}

// TestPaused: what people have paused is neither created, changed nor deleted, and is made as
// wanted afterwards. It is no failure, unless API servers need it.
func TestPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("one", "1")+configMap("two", "1")+configMap("three", "1")+configMap("four", "1"))
	a := w.start(resources.Options{})
	a.done()
	pause := func(scopes ...string) {
		var pauses []reconciler.Override
		for _, scope := range scopes {
			pauses = append(pauses, reconciler.Override{Effect: reconciler.Pause, Scope: scope, By: "anna", Reason: "an incident"})
		}
		a.SetOverrides(pauses)
	}
	w.write("a.yaml", configMap("one", "2")+configMap("two", "2")+configMap("three", "1")+configMap("five", "1"))
	pause("ConfigMap default/one", "ConfigMap default/four", "ConfigMap default/five")
	r, err := a.pass()
	if err != nil || !r.Ready || r.Paused != 3 || r.Updated != 1 || r.Created+r.Pruned != 0 {
		t.Errorf("objects: %+v, %v", r, err)
	}
	pause("ConfigMap")
	if r, err := a.pass(); err != nil || r.Paused != 3 || r.Updated+r.Created+r.Pruned != 0 {
		t.Errorf("a kind: %+v, %v", r, err)
	}
	w.remove(bindings, "", "ironherd:kubelet-api")
	w.remove(classes, "", "local-strict")
	pause("all")
	w.await("that it is seen", func() bool { r, err = a.pass(); return err != nil })
	if r.Ready || len(r.Failures) != 1 || !r.Failures[0].Required || !strings.Contains(r.Failures[0].Reason, "it is paused: all until") ||
		w.there(bindings, "", "ironherd:kubelet-api") {
		t.Errorf("everything: %+v, %v", r, err)
	}
	pause()
	if r := a.done(); r.Created != 3 || r.Updated != 1 || r.Pruned != 1 {
		t.Errorf("afterwards: %+v", r)
	}
	a.silent()
}

// TestEveryReasonIsAnEvent: that an object waits, that others change it again and again, that it is
// paused although API servers need it, and that a kind cannot be followed, is told once, too.
func TestEveryReasonIsAnEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := unused("reason")
	one := func(what string, notes []string, reason string) {
		t.Helper()
		found := 0
		for _, note := range notes {
			if strings.HasPrefix(note, "NotAsWanted: ") && strings.Contains(note, reason) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s: %q is told %d times: %q", what, reason, found, notes)
		}
	}
	told := func(suffix, reason string) {
		t.Helper()
		one(suffix, w.told("default", "ConfigMap", name+suffix), reason)
	}
	own, err := object.NewBuiltIn(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name + "-paused", "namespace": "default"}, "data": map[string]any{"key": "1"},
	}, "test", object.Required)
	if err != nil {
		t.Fatal(err)
	}
	annotated := func(suffix, value, annotation string) string {
		return strings.Replace(configMap(name+suffix, value), "namespace: default", "namespace: default, annotations: {"+annotation+"}", 1)
	}
	sick := func(value string) string {
		return annotated("-sick", value, `ironherd.dev/healthy-when: 'self.data.key == "well"'`)
	}
	rest := annotated("-waits", "1", "ironherd.dev/depends-on: ConfigMap default/"+name+"-sick") + configMap(name+"-fought", "1")
	w.write("a.yaml", sick("1")+rest)
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return sieve{next, func(r *http.Request) bool { return r.URL.Path == "/api/v1/serviceaccounts" }}
	})
	a := w.startWith(config, resources.Options{BuiltIn: []*object.Object{own}})
	passes := func() {
		t.Helper()
		for range 3 {
			if _, err := a.pass(); err == nil {
				t.Error("nothing is wrong")
			}
		}
	}
	passes()
	w.write("a.yaml", sick("2")+rest) // another health of what is waited for is no news
	passes()
	told("-waits", "it waits for ConfigMap default/"+name+"-sick, which is not healthy: ")

	w.write("a.yaml", sick("well")+rest)
	a.done()
	a.SetOverrides([]reconciler.Override{{Effect: reconciler.Pause, Scope: "ConfigMap default/" + name + "-paused", Reason: "an incident"}})
	w.patch(configMaps, "default", name+"-paused", `{"data":{"key":"2"}}`)
	a.until("that it is paused", func(_ reconciler.Report, err error) bool { return err != nil })
	passes()
	told("-paused", "it is paused: ")
	a.SetOverrides(nil)
	a.done()

	often := false
	for n := 0; n < 20 && !often; n++ {
		w.patch(configMaps, "default", name+"-fought", `{"data":{"key":"theirs"}}`)
		a.until("the drift", func(r reconciler.Report, err error) bool {
			often = often || strings.Contains(fmt.Sprint(err), "again and again")
			return often || r.Updated > 0
		})
	}
	told("-fought", "others change it again and again")
	a.until("that it is repaired", func(reconciler.Report, error) bool {
		kept, _, _ := unstructured.NestedString(w.get(configMaps, "default", name+"-fought").Object, "data", "key")
		return kept == "1"
	})
	passes() // that goes on to be reported, and is no news
	told("-fought", "others change it again and again")

	w.write("b.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: "+name+", namespace: default}\n")
	passes()
	one("a kind", w.told(inventory.Namespace, "ConfigMap", inventory.Name), "every ServiceAccount: they cannot be followed")
}

// TestEventsAreLimited: a pass sends 50 events at most.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := unused("many")
	var text strings.Builder
	for n := range 60 {
		text.WriteString("datum: {a: b}\n" + configMap(fmt.Sprintf("%s-%d", name, n), "1"))
	}
	w.write("a.yaml", text.String())
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	begun := time.Now()
	if r, err := a.pass(); err == nil || len(r.Failures) != 60 {
		t.Errorf("%d failures, %v", len(r.Failures), err)
	}
	inTime := time.Since(begun) < 4*time.Second // events are sent for five
	told := 0
	for n := range 60 {
		told += len(w.told("default", "ConfigMap", fmt.Sprintf("%s-%d", name, n)))
	}
	if told > 50 || told == 0 || told < 50 && inTime {
		t.Errorf("a pass sent %d events", told)
	}
}
