package resources_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// everyShape has one of each shape that a server defaults, converts or sorts: quantities, keyed
// lists whose keys are defaulted, sets, atomic lists, numbers, durations, nulls, empty maps, fields
// that can only be written.
const everyShape = `
apiVersion: v1
kind: Namespace
metadata: {name: shapes, creationTimestamp: null}
spec: {}
status: {}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shapes, namespace: shapes, finalizers: [example.com/hold]}
spec:
  replicas: 2
  selector: {matchLabels: {app: shapes}}
  template:
    metadata: {labels: {app: shapes}, annotations: {}}
    spec:
      containers:
      - name: main
        image: example.com/image
        args: ["<&>", "b"]
        ports:
        - containerPort: 80
        - {containerPort: 80, protocol: UDP}
        resources: {requests: {cpu: 1000m, memory: 1024Mi}, limits: {cpu: "2.0", memory: 2048Mi}}
        env: [{name: A, value: "1"}, {name: B, valueFrom: null}]
        volumeMounts: [{name: scratch, mountPath: /scratch}]
      volumes: [{name: scratch, emptyDir: {}}]
      tolerations: [{key: a, operator: Exists}]
---
apiVersion: v1
kind: Secret
metadata: {name: shapes, namespace: shapes}
stringData: {password: "correct horse"}
---
apiVersion: v1
kind: Service
metadata: {name: shapes, namespace: shapes}
spec:
  selector: {app: shapes}
  ports:
  - port: 80
    targetPort: 8080
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ServiceAccount
  metadata: {name: shapes, namespace: shapes}
- apiVersion: rbac.authorization.k8s.io/v1
  kind: Role
  metadata: {name: shapes, namespace: shapes}
  rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, list]}]
- apiVersion: rbac.authorization.k8s.io/v1
  kind: RoleBinding
  metadata: {name: shapes, namespace: shapes}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: shapes}
  subjects: [{kind: ServiceAccount, name: shapes, namespace: shapes}]
`

func TestFromNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("shapes.yaml", everyShape)
	w.write("one.json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"json","namespace":"default"},"data":{"a":"b"}}`)
	a := w.start(resources.Options{})
	r := a.done()
	// the namespace may be from an earlier test
	if want := len(objects(t)) + 8; r.Objects != want || r.Created < want-1 {
		t.Errorf("from nothing: %+v, want %d objects", r, want)
	}
	a.silent()
	a.silent()
	for _, kind := range builtInKinds {
		list, err := w.client.Resource(kind).List(t.Context(), metav1.ListOptions{LabelSelector: object.Label})
		if err != nil || len(list.Items) == 0 {
			t.Fatalf("%s: %d, %v", kind.Resource, len(list.Items), err)
		}
		for _, o := range list.Items {
			if len(o.GetAnnotations()[object.Description]) < 20 {
				t.Errorf("%s %s does not say what it is for", o.GetKind(), o.GetName())
			}
		}
	}
	if got, want := len(w.inventory().Entries), r.Created; got != want {
		t.Errorf("the inventory has %d entries, want %d", got, want)
	}
	for key, entry := range w.inventory().Entries {
		if entry.UID == "" || entry.Mark != "" {
			t.Errorf("%s is not adopted: %+v", key, entry)
		}
	}
	a.stop()

	// Another process finds the same, and writes nothing.
	before := len(w.requests())
	b := w.start(resources.Options{})
	if r, err := b.pass(); err != nil || r.Created+r.Updated+r.Recreated+r.Pruned != 0 {
		t.Errorf("a new process: %+v, %v", r, err)
	}
	for _, request := range w.requests()[before:] {
		if request.Writes() {
			t.Errorf("a new process: %s %s", request.Verb, request.RequestURI)
		}
	}
	b.silent()
}

// drift is something that somebody does to an object.
type drift struct {
	name      string
	resource  schema.GroupVersionResource
	namespace string
	object    string
	patch     string // empty: it is deleted
}

func drifts() []drift {
	return []drift{
		{"rules are added", clusterRoles, "", "ironherd:network-services", `[{"op":"add","path":"/rules/0/verbs/-","value":"delete"}]`},
		{"rules are taken away", clusterRoles, "", "ironherd:csi-provisioner", `{"rules":[]}`},
		{"a subject is added", bindings, "", "ironherd:owner", `[{"op":"add","path":"/subjects/-","value":{"kind":"User","name":"mallory","apiGroup":"rbac.authorization.k8s.io"}}]`},
		{"a description is changed", bindings, "", "ironherd:kubelet-api", `{"metadata":{"annotations":{"kubernetes.io/description":"mine"}}}`},
		{"mount options are changed", classes, "", "local-strict", `{"mountOptions":["exec"]}`},
		{"the default is taken away", classes, "", "local", `{"metadata":{"annotations":{"storageclass.kubernetes.io/is-default-class":null}}}`},
		{"expansion is forbidden", classes, "", "local", `{"allowVolumeExpansion":false}`},
		{"a driver is changed", drivers, "", "local.csi.ironherd.dev", `{"spec":{"storageCapacity":false}}`},
		{"our label is taken away", runtimes, "", "gvisor", `{"metadata":{"labels":null}}`},
		{"our hash is changed", runtimes, "", "runc", `{"metadata":{"annotations":{"ironherd.dev/applied":"0"}}}`},
		{"all field managers are wiped", runtimes, "", "runc", `{"metadata":{"managedFields":[{}]}}`},
		{"a value is changed", configMaps, "default", "drifting", `{"data":{"key":"other"}}`},
		{"a value is taken away", configMaps, "default", "drifting", `{"data":{"key":null}}`},
		{"data is emptied", configMaps, "default", "drifting", `{"data":null}`},
		{"an argument is changed", deployments, "shapes", "shapes", `[{"op":"replace","path":"/spec/template/spec/containers/0/args/0","value":"x"}]`},
		{"one of two ports that look alike is taken away", deployments, "shapes", "shapes", `[{"op":"remove","path":"/spec/template/spec/containers/0/ports/0"}]`},
		{"a container's image is changed", deployments, "shapes", "shapes", `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"other"}]`},
		{"replicas are changed", deployments, "shapes", "shapes", `{"spec":{"replicas":0}}`},
		{"a cluster role is deleted", clusterRoles, "", "ironherd:kubelet-api", ""},
		{"a binding is deleted", bindings, "", "ironherd:owner", ""},
		{"a class is deleted", classes, "", "local", ""},
		{"a driver is deleted", drivers, "", "local.csi.ironherd.dev", ""},
		{"a runtime class is deleted", runtimes, "", "gvisor", ""},
		{"a ConfigMap is deleted", configMaps, "default", "drifting", ""},
	}
}

// essence is what an object says, without what changes with each write of it.
func essence(t *testing.T, o *unstructured.Unstructured) map[string]any {
	t.Helper()
	content := o.DeepCopy().Object
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"} {
		unstructured.RemoveNestedField(content, "metadata", field)
	}
	unstructured.RemoveNestedField(content, "metadata", "annotations", object.Mark)
	delete(content, "status")
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	var plain map[string]any
	if err := json.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	return plain
}

func TestDrift(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("shapes.yaml", everyShape)
	w.write("drifting.yaml", configMap("drifting", "value"))
	a := w.start(resources.Options{})
	a.done()
	var slowest time.Duration
	for _, d := range drifts() {
		before := w.get(d.resource, d.namespace, d.object)
		drain(a)
		if d.patch == "" {
			w.remove(d.resource, d.namespace, d.object)
		} else {
			w.patch(d.resource, d.namespace, d.object, d.patch)
		}
		began := time.Now()
		select {
		case <-a.Changed():
		case <-time.After(patience):
			t.Fatalf("%s: nobody noticed", d.name)
		}
		repaired := func() bool {
			o, err := w.in(d.resource, d.namespace).Get(t.Context(), d.object, metav1.GetOptions{})
			return err == nil && cmp.Equal(essence(t, before), essence(t, o))
		}
		for !repaired() {
			if _, err := a.pass(); err != nil {
				t.Logf("%s: %v", d.name, err)
			}
			if time.Since(began) > patience {
				t.Fatalf("%s: not repaired: %s", d.name, cmp.Diff(essence(t, before), essence(t, w.get(d.resource, d.namespace, d.object))))
			}
		}
		slowest = max(slowest, time.Since(began))
		a.done()
		a.silent()
	}
	t.Logf("%d kinds of drift; the slowest was repaired after %v", len(drifts()), slowest)
}

// drain forgets what has been signalled.
func drain(a *applier) {
	select {
	case <-a.Changed():
	default:
	}
}

// TestFight: who changes an object back each time is answered at once for a while, then ever less
// often; and the pass says so. So is who writes the whole object as it wants it, without what we
// have noted in its annotations.
func TestFight(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]string{"a field": `{"data":{"key":"theirs"}}`, "all of it": `{"metadata":{"annotations":null},"data":{"key":"theirs"}}`} {
		t.Run(name, func(t *testing.T) { testFight(t, edit) })
	}
}

func testFight(t *testing.T, edit string) {
	t.Helper()
	w := newWorld(t)
	w.write("fought.yaml", configMap("fought", "ours"))
	a := w.start(resources.Options{})
	a.done()
	for n := range 20 {
		w.patch(configMaps, "default", "fought", edit)
		w.await("the drift", func() bool {
			r, err := a.pass()
			return err != nil || r.Updated > 0
		})
		r, err := a.pass()
		if err == nil {
			continue
		}
		if n < 4 || !strings.Contains(r.Failures[0].Reason, "again and again") {
			t.Fatalf("repair %d: %v", n, err)
		}
		// It is repaired all the same, by and by, and told also while it is as wanted. Nothing waits.
		a.until("that it is repaired, and told", func(r reconciler.Report, err error) bool {
			kept, _, _ := unstructured.NestedString(w.get(configMaps, "default", "fought").Object, "data", "key")
			return kept == "ours" && r.Updated == 0 && r.Ready && err != nil && strings.Contains(r.Failures[0].Reason, "again and again")
		})
		return
	}
	t.Fatal("a fight goes on for ever")
}

// TestFightBegins: the first edit of an object that was just made is one that is taken back. What
// somebody else has made of it while the manifests did not have it is none.
func TestFightBegins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name, fresh := unused("again"), unused("fresh")
	updated := func(r reconciler.Report, _ error) bool { return r.Updated == 1 }
	w.write("a.yaml", configMap(name, "ours")+configMap(fresh, "ours")+kept())
	a := w.start(resources.Options{})
	a.until("that they are there", func(r reconciler.Report, err error) bool { return err == nil && r.Created > 0 })
	w.patch(configMaps, "default", fresh, `{"metadata":{"annotations":null},"data":{"key":"theirs"}}`)
	a.until("the repair", updated)
	w.write("a.yaml", kept())
	a.until("that they are deleted", func(reconciler.Report, error) bool { return !w.there(configMaps, "default", name) })
	w.create(configMaps, configMap(name, "ours"))
	defer w.remove(configMaps, "default", name)
	w.write("a.yaml", configMap(name, "ours")+kept())
	a.until("that it is taken over", updated)
	for of, want := range map[string]bool{fresh: true, name: false} {
		if got := strings.Join(w.told("default", "ConfigMap", of), "; "); strings.Contains(got, "TakenBack") != want {
			t.Errorf("%s is taken for an edit: %t: %s", of, !want, got)
		}
	}
}
