package object_test

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

func parse(t *testing.T, text string) *object.Object {
	t.Helper()
	var content map[string]any
	if err := yaml.Unmarshal([]byte(text), &content); err != nil {
		t.Fatal(err)
	}
	o, err := object.New(content, "test")
	if err != nil {
		t.Fatal(err)
	}
	return o
}

const role = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: r, namespace: ns, annotations: {a: b}, finalizers: [x/y]}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
`

// live is an object as a server would have it after it was applied, with this set of fields as
// ours.
func live(o *object.Object, fields string) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.Annotations = map[string]string{object.Applied: o.Hash()}
	m.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubectl-edit", Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:x":{}}`)},
		{Manager: object.Manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fields)},
	}
	return m
}

func TestHeld(t *testing.T) {
	t.Parallel()
	const whole = `{"f:metadata":{"f:annotations":{"f:a":{},"f:ironherd.dev/applied":{}},"f:labels":{"f:ironherd.dev/reconciled":{}},` +
		`"f:finalizers":{"v:\"x/y\"":{}}},"f:rules":{}}`
	o := parse(t, role)
	if !o.UpToDate(live(o, whole)) {
		t.Fatal("an object of which everything is ours is not held")
	}
	for what, fields := range map[string]string{
		"rules taken":      strings.Replace(whole, `,"f:rules":{}`, "", 1),
		"annotation taken": strings.Replace(whole, `"f:a":{},`, "", 1),
		"label taken":      strings.Replace(whole, `"f:labels":{"f:ironherd.dev/reconciled":{}},`, "", 1),
		"finalizer taken":  strings.Replace(whole, `"v:\"x/y\"":{}`, `"v:\"other\"":{}`, 1),
		"nothing ours":     `{}`,
		"not JSON":         `{`,
		"strange":          `{"f:metadata":7}`,
	} {
		if o.UpToDate(live(o, fields)) {
			t.Errorf("%s: held", what)
		}
	}
	other := live(o, whole)
	other.Annotations[object.Applied] = "another"
	if o.UpToDate(other) {
		t.Error("another configuration is held")
	}
	other = live(o, whole)
	other.ManagedFields[1].Operation = metav1.ManagedFieldsOperationUpdate
	if o.UpToDate(other) {
		t.Error("what was updated counts as applied")
	}
	now := metav1.Now()
	other = live(o, whole)
	other.DeletionTimestamp = &now
	if o.UpToDate(other) {
		t.Error("what is being deleted is held")
	}
	if o.DeclaredBy(live(o, whole)) != "" {
		t.Error("an edit counts as declared")
	}
	other = live(o, whole)
	other.ManagedFields[0].Operation = metav1.ManagedFieldsOperationApply
	if o.DeclaredBy(other) != "" {
		t.Error("what another declares elsewhere counts")
	}
	other.ManagedFields[0].FieldsV1 = metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:a":{}}}}`)
	if o.DeclaredBy(other) != "kubectl-edit" {
		t.Error("what another declares is not seen")
	}
}

// TestHeldInItems: who owns fields of items need not own the items. Anybody who may change an
// object can have its managedFields say so.
func TestHeldInItems(t *testing.T) {
	t.Parallel()
	o := parse(t, "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: ns}\nspec: {ports: [{port: 1, name: a}, {port: 2, name: b}]}\n")
	const whole = `{"f:metadata":{"f:annotations":{},"f:labels":{"f:ironherd.dev/reconciled":{}}},"f:spec":{"f:ports":{` +
		`"k:{\"port\":1}":{"f:name":{},"f:port":{}},"k:{\"port\":2}":{"f:name":{},"f:port":{}}}}}`
	if !o.UpToDate(live(o, whole)) {
		t.Error("an object of which every field is ours is not held")
	}
	other := live(o, `{}`)
	other.ManagedFields[0].Operation, other.ManagedFields[0].FieldsV1 = metav1.ManagedFieldsOperationApply, metav1.NewFieldsV1(whole)
	if o.DeclaredBy(other) != "kubectl-edit" {
		t.Error("what another declares is not seen")
	}
}

// TestHash: what a server alone can say does not count, everything else does.
func TestHash(t *testing.T) {
	t.Parallel()
	plain := parse(t, role).Hash()
	same := strings.Replace(role, "name: r,", "name: r, uid: u, resourceVersion: '7', creationTimestamp: null, generation: 3, managedFields: [{}],", 1)
	if parse(t, same+"status: {x: y}\nnothing: null\n").Hash() != plain {
		t.Error("it depends on what only a server says")
	}
	if parse(t, strings.Replace(role, "a: b", "a: c", 1)).Hash() == plain || parse(t, role+"more: {}\n").Hash() == plain {
		t.Error("it does not depend on the content")
	}
	marked := strings.Replace(role, "a: b", "a: b, ironherd.dev/created-by: forged, ironherd.dev/applied: forged", 1)
	o := parse(t, marked)
	if o.Hash() != plain {
		t.Error("what we write is taken from a manifest")
	}
	body, err := o.Body("", object.Precondition{UID: "u"})
	if err != nil || strings.Contains(string(body), "forged") || !strings.Contains(string(body), `"uid":"u"`) {
		t.Errorf("%s, %v", body, err)
	}
	if again, err := o.Body("", object.Precondition{UID: "u"}); err != nil || string(again) != string(body) {
		t.Errorf("a body changes the object: %s, %v", again, err)
	}
}

func TestSecretsAreEncoded(t *testing.T) {
	t.Parallel()
	o := parse(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ns}\nstringData: {a: b}\ndata: {c: ZA==}\n")
	body, err := o.Body("", object.Precondition{})
	if err != nil || !strings.Contains(string(body), `"data":{"a":"Yg==","c":"ZA=="}`) || strings.Contains(string(body), "stringData") {
		t.Errorf("%s, %v", body, err)
	}
}

// TestMisplacedSecret: a value in the place of a field that a server checks is refused before the
// server sees it, for its answer quotes the value.
func TestMisplacedSecret(t *testing.T) {
	t.Parallel()
	for field, says := range map[string]string{
		"type: {password: hunter2}": "type is no text", "type: [hunter2]": "type is no text",
		"immutable: hunter2": "immutable is neither true nor false", "immutable: {password: hunter2}": "immutable is neither true nor false",
	} {
		var content map[string]any
		if err := yaml.Unmarshal([]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ns}\n"+field+"\n"), &content); err != nil {
			t.Fatal(err)
		}
		if _, err := object.New(content, "here"); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", field, err)
		}
	}
	parse(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ns}\ntype: Opaque\nimmutable: true\n")
	parse(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ns}\ntype:\nimmutable:\n")
}

// TestNoName: a file that is no object of a cluster, such as a kustomization or the values of a
// chart, says what it lacks.
func TestNoName(t *testing.T) {
	t.Parallel()
	for says, content := range map[string]map[string]any{
		"Kustomization: metadata.name must be set": {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"},
		"it has no apiVersion":                     {"replicas": 1},
	} {
		if _, err := object.New(content, "here"); err == nil || err.Error() != says {
			t.Errorf("%v, not %s", err, says)
		}
	}
}

// FuzzNew: whatever a manifest holds, it is refused, or is an object whose body is of that object
// and whose hash is stable.
func FuzzNew(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","labels":null},"stringData":{"a":1}}`))
	f.Add([]byte(`{"apiVersion":"a/v1","kind":"K","metadata":{"name":"../x","annotations":[]}}`))
	f.Add([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"b"},"data":{"x":[null,{"y":null}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var content map[string]any
		if json.Unmarshal(text, &content) != nil {
			return
		}
		o, err := object.New(content, "fuzz")
		if err != nil {
			return
		}
		body, err := o.Body("mark", object.Precondition{Absent: true})
		if err != nil {
			t.Fatal(err)
		}
		var again map[string]any
		if err := json.Unmarshal(body, &again); err != nil {
			t.Fatal(err)
		}
		p, err := object.New(again, "fuzz")
		if err != nil || p.Key != o.Key || p.Hash() != o.Hash() {
			t.Errorf("%s: %v %v, %v", body, o.Key, p, err)
		}
		if strings.ContainsAny(o.Key.Name+o.Key.Namespace, "/ \t\n") {
			t.Errorf("%q", o.Key)
		}
	})
}

// FuzzHeld: managed fields come from a server, and say whatever somebody could make it say.
func FuzzHeld(f *testing.F) {
	f.Add(`{"f:rules":{},"f:metadata":{"f:annotations":{"f:a":{}},"f:labels":{"f:ironherd.dev/reconciled":{}}}}`)
	f.Add(`{"f:metadata":{"f:finalizers":{"v:\"x/y\"":{},"k:{\"a\":{}}":{}}}}`)
	f.Fuzz(func(t *testing.T, fields string) {
		o := parse(t, role)
		m := live(o, fields)
		if o.UpToDate(m) && !strings.Contains(fields, "f:rules") && !strings.Contains(fields, `f:\u`) && json.Valid([]byte(fields)) &&
			!strings.Contains(fields, `\u`) {
			t.Errorf("held without the rules: %s", fields)
		}
		_ = o.DeclaredBy(m)
	})
}

// TestOthers: what others have beside us is what the object does not name, or does not compare.
func TestOthers(t *testing.T) {
	t.Parallel()
	o := parse(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: c, namespace: ns, annotations: {ironherd.dev/ignore-fields: .data.ignored}, finalizers: [x/y]}
data: {a: b, ignored: c}
`)
	for fields, want := range map[string]string{
		`{"f:data":{".":{},"f:a":{}},"f:metadata":{"f:labels":{".":{}},"f:finalizers":{"v:\"x/y\"":{}}}}`: "",
		`{"f:data":{"f:theirs":{}},"f:metadata":{"f:finalizers":{"v:\"y/z\"":{}}}}`:                       `.data.theirs of "kubectl-edit" .metadata.finalizers[="y/z"] of "kubectl-edit"`,
		`{"f:data":{"f:ignored":{}}}`: `.data.ignored of "kubectl-edit"`,
		`{`:                           `fields of "kubectl-edit"`,
	} {
		m := live(o, `{"f:data":{"f:gone":{}}}`)
		m.ManagedFields[0].FieldsV1 = metav1.NewFieldsV1(fields)
		m.ManagedFields = append(m.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: "its-controller", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:x":{}}}`),
		}, metav1.ManagedFieldsEntry{Manager: object.Manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:x":{}}`)})
		if got := strings.Join(o.Others(m), " "); got != want {
			t.Errorf("%s: %s", fields, got)
		}
	}
}
