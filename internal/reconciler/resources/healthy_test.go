package resources_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/release"
)

// database is a manifest of a Deployment with some replicas and an image.
func database(replicas int, image, annotations string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: db, namespace: default, annotations: {%s}}
spec:
  replicas: %d
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: main, image: %s}]}
---
`, annotations, replicas, image)
}

// status writes the status of the Deployment, as its controller would.
func (w *world) status(available int) {
	w.Helper()
	db := w.get(deployments, "default", "db")
	replicas, _, _ := unstructured.NestedInt64(db.Object, "spec", "replicas")
	patch := fmt.Sprintf(`{"status": {"observedGeneration": %d, "replicas": %d, "updatedReplicas": %d, "readyReplicas": %d, "availableReplicas": %d,
		"conditions": [{"type": "Available", "status": "%s"}, {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}}`,
		db.GetGeneration(), replicas, replicas, available, available, map[bool]string{true: "True", false: "False"}[int64(available) >= replicas])
	if _, err := w.client.Resource(deployments).Namespace("default").Patch(w.Context(), "db", types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: "controller"}, "status"); err != nil {
		w.Fatal(err)
	}
}

func reasonOf(r reconciler.Report, object string) string {
	for _, f := range r.Failures {
		if strings.HasPrefix(f.Object, object+" (") {
			return f.Reason
		}
	}
	return ""
}

const settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: default, annotations: {ironherd.dev/depends-on: Deployment.apps default/db}}\ndata: {key: %s}\n---\n"

// TestDependsOn: an object is applied when what it depends on is there and healthy, at once when
// that comes true; what is there already is kept as it was applied, whatever becomes of the other.
func TestDependsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("all.yaml", database(2, "example.com/db:1", "")+fmt.Sprintf(settings, "one"))
	a := w.start(resources.Options{BuiltIn: small(t, 1)})
	a.until("the database", func(reconciler.Report, error) bool { return w.there(deployments, "default", "db") })
	r, err := a.pass()
	if reason := reasonOf(r, "ConfigMap default/settings"); err == nil || !r.Ready ||
		!strings.HasPrefix(reason, "it waits for Deployment default/db, which is not healthy: in progress") {
		t.Errorf("%q: %+v, %v", reason, r, err)
	}
	if w.there(configMaps, "default", "settings") || r.Unhealthy != 1 {
		t.Errorf("it did not wait: %+v", r)
	}
	if _, recorded := w.inventory().Entries[object.Key{Kind: "ConfigMap", Namespace: "default", Name: "settings"}]; recorded {
		t.Error("what waits is recorded as about to be created")
	}
	w.status(2)
	a.done() // only the watch tells of it
	if !w.there(configMaps, "default", "settings") {
		t.Error("it was not created")
	}
	a.silent()

	// The database breaks. What is there is repaired, what is new waits.
	w.status(0)
	a.until("a sick database", func(r reconciler.Report, _ error) bool { return r.Unhealthy == 1 })
	w.patch(configMaps, "default", "settings", `{"data":{"key":"edited"}}`)
	a.until("a repair", func(r reconciler.Report, _ error) bool { return r.Updated == 1 })
	if key := w.get(configMaps, "default", "settings").Object["data"].(map[string]any)["key"]; key != "one" {
		t.Errorf("data is %v", key)
	}
	a.silent()
	w.write("all.yaml", database(2, "example.com/db:1", "")+fmt.Sprintf(settings, "two"))
	if r, err := a.pass(); err == nil || r.Updated != 0 || !strings.Contains(reasonOf(r, "ConfigMap default/settings"), "not healthy") {
		t.Errorf("%+v, %v", r, err)
	}
	w.status(2)
	a.done()
	if key := w.get(configMaps, "default", "settings").Object["data"].(map[string]any)["key"]; key != "two" {
		t.Errorf("data is %v", key)
	}
}

// TestDependenciesAreApplied in order within one pass, where nothing has to become healthy; what
// depends on itself is left out.
func TestDependenciesAreApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := func(name, on string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default, annotations: {ironherd.dev/depends-on: \"" + on + "\"}}\n---\n"
	}
	w.write("all.yaml", one("a", "ConfigMap default/b")+one("b", "ConfigMap default/c")+one("c", "")+
		one("x", "ConfigMap default/z")+one("z", "ConfigMap default/x"))
	a := w.start(resources.Options{BuiltIn: small(t, 1)})
	r, err := a.pass()
	if err == nil || !r.Ready || len(r.Failures) != 2 || !strings.HasPrefix(reasonOf(r, "ConfigMap default/x"), "it depends on itself: ") {
		t.Errorf("%+v, %v", r, err)
	}
	var last string
	for _, name := range []string{"c", "b", "a"} {
		version := w.get(configMaps, "default", name).GetResourceVersion()
		if len(version) < len(last) || len(version) == len(last) && version <= last {
			t.Errorf("%s was created before what it depends on", name)
		}
		last = version
	}
	if w.there(configMaps, "default", "x") || w.there(configMaps, "default", "z") {
		t.Error("what depends on itself was applied")
	}
}

// TestHealthGatesNothing: what the release needs is as wanted when it is applied, whatever its
// health.
func TestHealthGatesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sick := mutate(t, small(t, 1), "ClusterRole ironherd:owner", func(c map[string]any) {
		annotations, _, _ := unstructured.NestedMap(c, "metadata", "annotations")
		if annotations == nil {
			annotations = map[string]any{}
		}
		annotations[object.HealthyWhen] = "false"
		_ = unstructured.SetNestedMap(c, annotations, "metadata", "annotations")
	})
	a := w.start(resources.Options{BuiltIn: sick})
	r, err := a.pass()
	if err != nil || !r.Ready || r.Unhealthy != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	a.silent()
}

// TestHealthyWhen: an expression is asked anew when the object changes, and when it is another one.
func TestHealthyWhen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	manifest := func(expression string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: probe, namespace: default, annotations: {ironherd.dev/healthy-when: '" + expression + "'}}\ndata: {key: x}\n"
	}
	w.write("all.yaml", manifest(`self.data.?ready.orValue("") == "yes"`))
	a := w.start(resources.Options{BuiltIn: small(t, 1)})
	if r := a.done(); r.Created == 0 {
		t.Errorf("%+v", r)
	}
	a.silent()
	healthy := func(n int) func(reconciler.Report, error) bool {
		return func(r reconciler.Report, err error) bool { return err == nil && r.Unhealthy == n }
	}
	a.until("a sick one", healthy(1))
	w.patch(configMaps, "default", "probe", `{"data":{"ready":"yes"}}`)
	a.until("a healthy one", healthy(0))
	a.silent()
	w.write("all.yaml", manifest(`self.data.ready == "no"`))
	if r, err := a.pass(); err != nil || r.Unhealthy != 1 {
		t.Errorf("another expression: %+v, %v", r, err)
	}
	w.write("all.yaml", manifest(`self.data.ready ==`))
	r, err := a.pass()
	if reason := reasonOf(r, "ConfigMap default/probe"); err == nil || r.Updated != 1 || !strings.Contains(reason, "is no expression in CEL") || !r.Ready {
		t.Errorf("a bad expression: %q: %+v, %v", reason, r, err)
	}
}

// TestIgnoreFields: an ignored field is set once, and then whoever's sets it. It is not lost when
// the rest of the manifest changes, whether others have set it or not.
func TestIgnoreFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const ignore = `ironherd.dev/ignore-fields: ".spec.replicas"`
	replicas := func() int64 {
		n, _, _ := unstructured.NestedInt64(w.get(deployments, "default", "db").Object, "spec", "replicas")
		return n
	}
	w.write("all.yaml", database(3, "example.com/db:1", ignore))
	a := w.start(resources.Options{BuiltIn: small(t, 1)})
	a.done()
	if replicas() != 3 {
		t.Fatalf("created with %d replicas", replicas())
	}
	w.write("all.yaml", database(3, "example.com/db:2", ignore)) // the field is still ours
	if r := a.done(); r.Updated != 1 || replicas() != 3 {
		t.Errorf("%d replicas: %+v", replicas(), r)
	}
	without := strings.Replace(database(0, "example.com/db:2", ignore), "replicas: 0", "", 1)
	if strings.Contains(without, "replicas: ") {
		t.Fatal("the manifest still has it")
	}
	w.write("all.yaml", without)
	if r := a.done(); r.Updated != 1 || replicas() != 3 {
		t.Errorf("taken out: %d replicas: %+v", replicas(), r)
	}
	// Nothing is applied; that its health is looked at is the one request.
	untouched := func(what string) {
		t.Helper()
		if r, err := a.pass(); err != nil || r.Updated != 0 || r.Requests > 1 {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
	w.patch(deployments, "default", "db", `{"spec":{"replicas":7}}`)
	untouched("scaled")
	w.write("all.yaml", database(4, "example.com/db:3", ignore))
	if r := a.done(); r.Updated != 1 || replicas() != 7 {
		t.Errorf("%d replicas: %+v", replicas(), r)
	}
	diff, err := a.Plan(t.Context())
	if err != nil || len(diff.Changes) != 0 {
		t.Errorf("%+v, %v", diff, err)
	}
	a.silent()
	w.patch(deployments, "default", "db", `{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":5}}}}`)
	untouched("a field that is nobody's")
	w.patch(deployments, "default", "db", `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"example.com/else"}]`)
	a.until("a repair", func(r reconciler.Report, err error) bool { return err == nil && r.Updated == 1 })
	if replicas() != 7 {
		t.Errorf("%d replicas after a repair", replicas())
	}
}

// TestSummary: the summary says how things stand; it is written when that changes or when somebody
// has changed it, and not otherwise; and no manifest can take its place.
func TestSummary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	summaryOf := func() map[string]string {
		data, _, _ := unstructured.NestedStringMap(w.get(configMaps, inventory.Namespace, "ironherd-reconciler-summary").Object, "data")
		return data
	}
	w.write("all.yaml", database(1, "example.com/db:1", "")+fmt.Sprintf(settings, "one")+
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ironherd-reconciler-summary, namespace: kube-system}\ndata: {key: x}\n")
	a := w.start(resources.Options{BuiltIn: small(t, 1)})
	standing := reconciler.Standing{Leader: "control-1", Release: release.MustParse("v1.3.0"), Status: "done", Doing: "keeping"}
	publish := func() {
		t.Helper()
		if err := a.Publish(t.Context(), standing); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	if s := summaryOf(); s["leader"] != "control-1" || s["summary"] != "no pass has ended yet" || s["key"] != "" {
		t.Errorf("before the first pass: %q", s)
	}
	a.until("the database", func(reconciler.Report, error) bool { return w.there(deployments, "default", "db") })
	if _, err := a.pass(); err == nil {
		t.Error("everything is as wanted")
	}
	publish()
	objects := summaryOf()["objects"]
	for _, line := range []string{
		"no       unknown  ConfigMap default/settings", "it waits for Deployment default/db", "yes      no       Deployment default/db",
		"yes      yes      ClusterRole ironherd:owner",
	} {
		if !strings.Contains(objects, line) {
			t.Errorf("%q is not in\n%s", line, objects)
		}
	}
	quiet := func(what string) {
		t.Helper()
		before := len(w.requests())
		publish()
		for _, request := range w.requests()[before:] {
			if request.Verb != "watch" && request.Verb != "get" {
				t.Errorf("%s: %s %s", what, request.Verb, request.RequestURI)
			}
		}
	}
	quiet("before a pass has seen it")
	version := w.get(configMaps, inventory.Namespace, "ironherd-reconciler-summary").GetResourceVersion()
	for range 3 {
		if _, err := a.pass(); err == nil {
			t.Error("everything is as wanted")
		}
		publish()
	}
	if now := w.get(configMaps, inventory.Namespace, "ironherd-reconciler-summary").GetResourceVersion(); now != version {
		t.Error("it was written again, although nothing has changed")
	}
	w.status(1)
	a.until("all but the manifest that is refused", func(r reconciler.Report, _ error) bool { return len(r.Failures) == 1 && r.Unhealthy == 0 })
	publish()
	if objects := summaryOf()["objects"]; strings.Contains(objects, "waits") || !strings.Contains(objects, "yes      yes      Deployment default/db") {
		t.Errorf("after it became healthy:\n%s", objects)
	}
	w.remove(configMaps, inventory.Namespace, "ironherd-reconciler-summary")
	a.until("its loss", func(reconciler.Report, error) bool {
		publish()
		return w.there(configMaps, inventory.Namespace, "ironherd-reconciler-summary")
	})
	standing.Blocked, standing.Doing = "waiting for n2", "holding: waiting for n2"
	publish()
	if s := summaryOf(); s["blocked"] != "waiting for n2" {
		t.Errorf("%q", s)
	}
}
