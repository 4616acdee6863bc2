package object_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

const scaled = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: d
  namespace: ns
  annotations:
    example.org/at: then
    ironherd.dev/ignore-fields: |
      .spec.replicas, .metadata.annotations["example.org/at"]
      .spec.template.spec.containers[name="main"].image
spec:
  replicas: 2
  template: {spec: {containers: [{name: side, image: s}, {name: main, image: m, args: [a]}]}}
`

// running is the object as it lives: what is ours of it, and the values that it has now.
func running(t *testing.T, o *object.Object, fields string) *unstructured.Unstructured {
	t.Helper()
	var content map[string]any
	now := strings.NewReplacer("replicas: 2", "replicas: 7", "at: then", "at: now", "image: m", "image: m2").Replace(scaled)
	if err := yaml.Unmarshal([]byte(now), &content); err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetManagedFields([]metav1.ManagedFieldsEntry{
		{Manager: object.Manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fields)},
	})
	annotations := u.GetAnnotations()
	annotations[object.Applied] = o.Hash()
	u.SetAnnotations(annotations)
	return u
}

const rest = `{"f:metadata":{"f:annotations":{"f:ironherd.dev/ignore-fields":{},"f:ironherd.dev/applied":{}},"f:labels":{"f:ironherd.dev/reconciled":{}}},` +
	`"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"side\"}":{".":{},"f:name":{},"f:image":{}},` +
	`"k:{\"name\":\"main\"}":{".":{},"f:name":{},"f:args":{}}}}}}}`

// TestOver: what is ignored is compared with nothing. Of an apply it is left out, unless it is
// still ours: then the server would delete it, so it has the value that it has there.
func TestOver(t *testing.T) {
	t.Parallel()
	o := parse(t, scaled)
	others := running(t, o, rest)
	if !o.UpToDate(others) {
		t.Error("ignored fields that others have are drift")
	}
	if o.UpToDate(running(t, o, strings.Replace(rest, `"f:args":{}`, "", 1))) {
		t.Error("a field beside an ignored one is ignored, too")
	}
	ours := running(t, o, strings.NewReplacer(
		`"f:spec":{"f:template"`, `"f:spec":{"f:replicas":{},"f:template"`, `"f:args":{}`, `"f:args":{},"f:image":{}`,
		`"f:annotations":{`, `"f:annotations":{"f:example.org/at":{},`).Replace(rest))
	for what, c := range map[string]struct {
		live            *unstructured.Unstructured
		replicas, image any
		at              string
	}{
		"others have them": {others, nil, nil, ""},
		"they are ours":    {ours, 7.0, "m2", "now"},
	} {
		over, err := o.Over(c.live)
		if err != nil {
			t.Fatal(err)
		}
		body, err := over.Body("", object.Precondition{})
		if err != nil {
			t.Fatal(err)
		}
		var sent unstructured.Unstructured
		if err := json.Unmarshal(body, &sent.Object); err != nil {
			t.Fatal(err)
		}
		spec := sent.Object["spec"].(map[string]any)
		containers, _, _ := unstructured.NestedSlice(sent.Object, "spec", "template", "spec", "containers")
		side, main := containers[0].(map[string]any), containers[1].(map[string]any)
		if spec["replicas"] != c.replicas || main["image"] != c.image || sent.GetAnnotations()["example.org/at"] != c.at || side["image"] != "s" || main["args"] == nil {
			t.Errorf("%s: %s", what, body)
		}
		if sent.GetAnnotations()[object.Applied] != o.Hash() {
			t.Errorf("%s: it is another configuration", what)
		}
	}
	again, err := o.Body("", object.Precondition{})
	if err != nil || !strings.Contains(string(again), `"replicas":2`) || !strings.Contains(string(again), `"image":"m"`) {
		t.Errorf("the object itself has changed: %s", again)
	}
}

// TestOverWhatIsTakenOut: an ignored field that is still ours keeps its value, too, if the manifest
// no longer has it, or the map that it was in. An item that the manifest no longer has is not kept
// for a field of it, unless the item itself is ignored.
func TestOverWhatIsTakenOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ what, ignored, ours, live, manifest, want string }{
		{"a field", ".spec.replicas", `{"f:spec":{"f:replicas":{}}}`, `{"replicas":10,"a":1}`, `{"a":1}`, `{"replicas":10,"a":1}`},
		{"its map", ".spec.m.n", `{"f:spec":{"f:m":{"f:n":{},"f:o":{}}}}`, `{"m":{"n":1,"o":2}}`, `{}`, `{"m":{"n":1}}`},
		{"others have it", ".spec.m.n", `{"f:spec":{"f:m":{"f:o":{}}}}`, `{"m":{"n":1,"o":2}}`, `{"m":{"o":2}}`, `{"m":{"o":2}}`},
		{
			"a field of an item", `.spec.l[name="x"].image`, `{"f:spec":{"f:l":{"k:{\"name\":\"x\"}":{".":{},"f:name":{},"f:image":{}}}}}`,
			`{"l":[{"name":"x","image":"i"}]}`, `{"l":[{"name":"x"}]}`, `{"l":[{"name":"x","image":"i"}]}`,
		},
		{
			"the item of a field", `.spec.l[name="x"].image`, `{"f:spec":{"f:l":{"k:{\"name\":\"x\"}":{".":{},"f:name":{},"f:image":{}}}}}`,
			`{"l":[{"name":"x","image":"i"}]}`, `{"l":[{"name":"y"}]}`, `{"l":[{"name":"y"}]}`,
		},
		{
			"an item", `.spec.l[name="x"]`, `{"f:spec":{"f:l":{"k:{\"name\":\"x\"}":{".":{},"f:name":{},"f:image":{}}}}}`,
			`{"l":[{"name":"x","image":"i"}]}`, `{"l":[{"name":"y"}]}`, `{"l":[{"name":"y"},{"name":"x","image":"i"}]}`,
		},
		{
			"the list of an item", `.spec.l[name="x"]`, `{"f:spec":{"f:l":{"k:{\"name\":\"x\"}":{".":{},"f:name":{},"f:image":{}}}}}`,
			`{"l":[{"name":"x","image":"i"}]}`, `{}`, `{"l":[{"name":"x","image":"i"}]}`,
		},
		{
			"a key that is defaulted", `.spec.ports[port=80,protocol="TCP"].nodePort`, `{"f:spec":{"f:other":{}}}`,
			`{"ports":[{"port":80,"protocol":"TCP","nodePort":30001},{"port":80,"protocol":"UDP","nodePort":30002}]}`,
			`{"ports":[{"port":80,"protocol":"UDP","nodePort":3},{"port":80,"nodePort":2}]}`, `{"ports":[{"port":80,"protocol":"UDP","nodePort":3},{"port":80}]}`,
		},
		{
			"another protocol", `.spec.ports[port=53,protocol="UDP"].nodePort`, `{"f:spec":{"f:ports":{"k:{\"port\":53,\"protocol\":\"UDP\"}":{"f:nodePort":{}}}}}`,
			`{"ports":[{"port":53,"protocol":"TCP","nodePort":30001},{"port":53,"protocol":"UDP","nodePort":30002}]}`,
			`{"ports":[{"port":53,"nodePort":2}]}`, `{"ports":[{"port":53,"nodePort":2}]}`,
		},
		{
			"an item of another protocol", `.spec.ports[port=53,protocol="UDP"]`, `{"f:spec":{"f:other":{}}}`,
			`{"ports":[{"port":53,"protocol":"TCP"},{"port":53,"protocol":"UDP"}]}`, `{"ports":[{"port":53}]}`, `{"ports":[{"port":53}]}`,
		},
		{
			"an item of another protocol that is ours", `.spec.ports[port=53,protocol="UDP"]`, `{"f:spec":{"f:ports":{"k:{\"port\":53,\"protocol\":\"UDP\"}":{".":{},"f:port":{}}}}}`,
			`{"ports":[{"port":53,"protocol":"TCP"},{"port":53,"protocol":"UDP"}]}`, `{"ports":[{"port":53}]}`, `{"ports":[{"port":53},{"port":53,"protocol":"UDP"}]}`,
		},
		{
			"the item that has all keys", `.spec.ports[port=80,protocol="UDP"].nodePort`, `{"f:spec":{"f:other":{}}}`,
			`{"ports":[{"port":80,"protocol":"TCP","nodePort":30001},{"port":80,"protocol":"UDP","nodePort":30002}]}`,
			`{"ports":[{"port":80,"nodePort":2},{"port":80,"protocol":"UDP","nodePort":3}]}`, `{"ports":[{"port":80,"nodePort":2},{"port":80,"protocol":"UDP"}]}`,
		},
	} {
		o := parse(t, "apiVersion: v1\nkind: Thing\nmetadata: {name: x, annotations: {ironherd.dev/ignore-fields: '"+c.ignored+"'}}\nspec: "+c.manifest+"\n")
		live := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte("spec: "+c.live), &live.Object); err != nil {
			t.Fatal(err)
		}
		live.SetManagedFields([]metav1.ManagedFieldsEntry{
			{Manager: object.Manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(c.ours)},
		})
		over, err := o.Over(live)
		if err != nil {
			t.Fatal(err)
		}
		body, err := over.Body("", object.Precondition{})
		if err != nil {
			t.Fatal(err)
		}
		var sent, want map[string]any
		if err := errors.Join(json.Unmarshal(body, &sent), json.Unmarshal([]byte(c.want), &want)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(any(want), sent["spec"]); diff != "" {
			t.Errorf("%s: %s", c.what, diff)
		}
	}
}

// TestPaths: how a field can be written, and what is told of what is none.
func TestPaths(t *testing.T) {
	t.Parallel()
	for path, wrong := range map[string]string{
		`.spec.replicas`: "", `.data["a.b"]`: "", `.spec.ports[port=80,protocol="TCP"].nodePort`: "", " ,.a,\n.b ": "", `.metadata.labels.x`: "", "": "",
		`.metadata.labels["ironherd.dev/reconciled"]`: "cannot be ignored", `.metadata.annotations`: "cannot be ignored", `.kind`: "cannot be ignored",
		`.spec.`: "empty name", `spec`: "is no field", `.a["b`: "is no quoted name", `.a[b]`: "names no item", `.a[b=`: "names no item", `.a[b={}]`: "names no item",
		`.a"b`: "", `.a]`: "", `[a=1]`: "cannot be ignored", strings.Repeat(".a,", 101): "too many", `.a["b"]c`: "does not follow a field",
	} {
		content := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{
			"name": "c", "namespace": "ns", "annotations": map[string]any{object.IgnoreFields: path},
		}, "data": map[string]any{"a.b": "1"}}
		_, err := object.New(content, "test")
		if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q: %v, want %q", path, err, wrong)
		}
	}
}

// TestReferences: how another object can be written.
func TestReferences(t *testing.T) {
	t.Parallel()
	content := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{
		"name": "c", "namespace": "ns", "annotations": map[string]any{object.DependsOn: "ConfigMap default/a, ClusterRole a:b\n\n Deployment.apps  x/y ,"},
	}}
	o, err := object.New(content, "test")
	if err != nil {
		t.Fatal(err)
	}
	want := []object.Reference{
		{Kind: "ConfigMap", Namespace: "default", Name: "a"}, {Kind: "ClusterRole", Name: "a:b"}, {Group: "apps", Kind: "Deployment", Namespace: "x", Name: "y"},
	}
	if diff := cmp.Diff(want, o.DependsOn()); diff != "" {
		t.Error(diff)
	}
	for _, r := range want {
		if !r.Names(object.Key(r)) || r.Names(object.Key{Kind: r.Kind, Namespace: r.Namespace, Name: "other"}) {
			t.Errorf("%s does not name what it names", r)
		}
	}
}

// FuzzAnnotations: whatever people write into our annotations is read or refused, and what is read
// can be applied over anything.
func FuzzAnnotations(f *testing.F) {
	f.Add(`.spec.replicas, .data["a.b"]`, "ConfigMap default/a", `{"data":{"a.b":"1"}}`)
	f.Add(`.a[b=1,c="d"].e`, "a.b c", `{"a":[{"b":1,"c":"d","e":2}]}`)
	f.Fuzz(func(t *testing.T, ignored, depends, text string) {
		var content map[string]any
		if json.Unmarshal([]byte(text), &content) != nil || content == nil {
			return
		}
		live := &unstructured.Unstructured{Object: map[string]any{}}
		if json.Unmarshal([]byte(text), &live.Object) != nil {
			return
		}
		delete(live.Object, "metadata")
		content["apiVersion"], content["kind"] = "v1", "Thing"
		content["metadata"] = map[string]any{"name": "x", "annotations": map[string]any{object.IgnoreFields: ignored, object.DependsOn: depends}}
		o, err := object.New(content, "test")
		if err != nil {
			return
		}
		live.SetManagedFields([]metav1.ManagedFieldsEntry{
			{Manager: object.Manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(`{"f:a":{},"f:data":{"f:a.b":{}}}`)},
		})
		over, err := o.Over(live)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := over.Body("", object.Precondition{}); err != nil {
			t.Fatal(err)
		}
		o.UpToDate(live)
	})
}
