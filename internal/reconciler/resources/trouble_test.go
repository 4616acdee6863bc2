package resources_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets, singular: widget, listKind: WidgetList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer, default: 3}, color: {type: string}}}
`

const widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w, namespace: default}\nspec: {color: red}\n"

// TestBadManifests: each is named and left aside, the rest goes on.
func TestBadManifests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("0-not-yaml.yaml", "{{{\n")
	w.write("1-half.yaml", configMap("good-half", "1")+"a: [\n---\n"+configMap("other-half", "1"))
	w.write("2-unknown.yaml", "apiVersion: example.org/v1\nkind: Nothing\nmetadata: {name: nothing}\n")
	w.write("3-widget.yaml", widget)
	w.write("3-wrong.yaml", strings.NewReplacer("name: w", "name: wrong", "color", "colour").Replace(widget))
	w.write("4-scope.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nowhere}\n---\n"+
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: inside, namespace: default}\n")
	w.write("5-field.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: field, namespace: default}\ndatum: {a: b}\n")
	w.write("6-value.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: value, namespace: default}\nspec: {ports: [{port: 99999}]}\n")
	w.write("7-twice.yaml", configMap("good", "1")+configMap("good", "2"))
	w.write("8-namespace.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: lost, namespace: not-there}\n")
	w.write("9-review.yaml", "apiVersion: authorization.k8s.io/v1\nkind: SubjectAccessReview\nmetadata: {name: r}\n")
	w.write("a-no-name.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: x, namespace: default}\n")
	w.write("c-number.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 7, namespace: default}\n")
	w.write("b-scalar.json", `"text" 5 {"kind":"List","apiVersion":"v1","items":7}`)
	w.write("ignored.txt", "{{{")
	w.approving = true // most of it goes
	a := w.start(resources.Options{})
	r, err := a.pass()
	if err == nil || r.Created != len(objects(t))+3 || !r.Ready {
		t.Errorf("%+v, %v", r, err)
	}
	for _, want := range []string{
		"0-not-yaml.yaml#1", "1-half.yaml#2", "Nothing nothing", "2-unknown.yaml", "Widget default/w", "ConfigMap nowhere", "Namespace default/inside",
		"ConfigMap default/field", "datum", "Service default/value", "99999", "ConfigMap default/good", "wanted twice", "ConfigMap not-there/lost",
		"SubjectAccessReview r", "a-no-name.yaml#1", "metadata.name must be text", "b-scalar.json#1", "b-scalar.json#2", "b-scalar.json#3",
	} {
		if !strings.Contains(fmt.Sprint(r.Failures), want) {
			t.Errorf("nothing names %q: %s", want, strings.ReplaceAll(fmt.Sprint(r.Failures), "} {", "}\n{"))
		}
	}
	if len(r.Failures) != 17 {
		t.Errorf("%d failures: %s", len(r.Failures), strings.ReplaceAll(fmt.Sprint(r.Failures), "} {", "}\n{"))
	}
	if got := nested(w.get(configMaps, "default", "good").Object, []string{"data", "key"}); got != "1" {
		t.Errorf("of two manifests of the same object the first counts; it has %v", got)
	}

	// The definition appears, from elsewhere: the widget follows by itself.
	w.create(definitions, definition)
	a.until("the widget", func(r reconciler.Report, _ error) bool {
		text := fmt.Sprint(r.Failures)
		return !strings.Contains(text, "Widget default/w ") && strings.Contains(text, "Widget default/wrong") && strings.Contains(text, ".spec.colour")
	})
	// Everything is put right.
	for _, name := range []string{
		"0-not-yaml.yaml", "1-half.yaml", "2-unknown.yaml", "3-wrong.yaml", "4-scope.yaml", "5-field.yaml", "6-value.yaml", "7-twice.yaml", "8-namespace.yaml",
		"9-review.yaml", "a-no-name.yaml", "b-scalar.json", "c-number.yaml",
	} {
		w.write(name, "")
	}
	a.done()
	a.silent()
	// And the definition goes, with everything of its kind.
	w.remove(definitions, "", "widgets.example.com")
	a.until("that the kind is missing", func(r reconciler.Report, err error) bool {
		return err != nil && strings.Contains(fmt.Sprint(r.Failures), "does not have that kind")
	})
	w.write("3-widget.yaml", "")
	a.done()
	a.silent()
}

// TestRequiredIsNamedFirst: what a pass says in one line names what API servers wait for, not a
// manifest that was read before.
func TestRequiredIsNamedFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own, err := object.NewBuiltIn(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "needed", "namespace": "default"}, "datum": "unknown",
	}, "test", object.Required)
	if err != nil {
		t.Fatal(err)
	}
	w.write("a.yaml", "{{{")
	r, err := w.start(resources.Options{BuiltIn: []*object.Object{own}}).pass()
	if err == nil || !strings.Contains(err.Error(), "2 of what is wanted could not be done, or does not stay so; first: ConfigMap default/needed ") {
		t.Errorf("%v: %+v", err, r)
	}
}

// TestReadyBeforeManifests: that API servers may rely on what they need is told before a pass
// begins with the manifests, and what is said to that ends it. Without what they need it is not
// told, and the pass goes on.
func TestReadyBeforeManifests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := func(wrong map[string]any) *object.Object {
		content := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "needed", "namespace": "default"}}
		maps.Copy(content, wrong)
		o, err := object.NewBuiltIn(content, "test", object.Required)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	w.write("a.yaml", configMap("beside", "1"))
	told, stop := 0, errors.New("stop")
	starts := func(o *object.Object) *applier {
		a := w.start(resources.Options{BuiltIn: []*object.Object{o}})
		a.OnReady(func(context.Context) error {
			told++
			if !w.there(configMaps, "default", "needed") || w.there(configMaps, "default", "beside") {
				t.Error("it is not told between the release's own set and the manifests")
			}
			return stop
		})
		return a
	}
	a := starts(own(nil))
	if _, err := a.Plan(t.Context()); err != nil || told != 0 {
		t.Errorf("a plan: told %d times, %v", told, err)
	}
	if r, err := a.pass(); !errors.Is(err, stop) || !r.Ready || told != 1 || w.there(configMaps, "default", "beside") {
		t.Errorf("told %d times: %+v, %v", told, r, err)
	}
	a.stop()
	a = starts(own(map[string]any{"datum": "unknown"}))
	if r, err := a.pass(); err == nil || r.Ready || told != 1 || !w.there(configMaps, "default", "beside") {
		t.Errorf("without what is needed: told %d times: %+v, %v", told, r, err)
	}
}

// TestDefinitionAndResource: both in one file, in the wrong order.
func TestDefinitionAndResource(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("all.yaml", widget+"---"+definition)
	a := w.start(resources.Options{})
	diff, err := a.Plan(t.Context())
	if err != nil || len(diff.Failures) != 0 || len(diff.Changes) != len(objects(t))+2 {
		t.Fatalf("the plan: %+v, %v", diff, err)
	}
	a.done()
	a.silent()
	if w.inventory().Entries[object.Key{Group: "example.com", Kind: "Widget", Namespace: "default", Name: "w"}].UID == "" {
		t.Error("the widget is not in the inventory")
	}
}

func TestPlanChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("planned", "one")+"apiVersion: v1\nkind: Secret\nmetadata: {name: planned, namespace: default}\nstringData: {p: hush}\n")
	a := w.start(resources.Options{})
	before := len(w.requests())
	diff, err := a.Plan(t.Context())
	if err != nil || diff.Objects != len(diff.Changes) || len(diff.Failures) != 0 {
		t.Fatalf("from nothing: %+v, %v", diff, err)
	}
	for _, c := range diff.Changes {
		if c.Action != reconciler.Create || !strings.Contains(c.Text, "+kind: ") || strings.Contains(c.Text, "aHVzaA") {
			t.Errorf("planned: %+v", c)
		}
	}
	a.done()
	w.write("a.yaml", configMap("planned", "two")+"apiVersion: v1\nkind: Secret\nmetadata: {name: planned, namespace: default}\nstringData: {p: hush hush}\n")
	diff, err = a.Plan(t.Context())
	if err != nil || len(diff.Changes) != 2 {
		t.Fatalf("an update: %+v, %v", diff, err)
	}
	if c := diff.Changes[0]; c.Action != reconciler.Update || !strings.Contains(c.Text, "-  key: one\n+  key: two\n") {
		t.Errorf("planned: %+v", c)
	}
	if c := diff.Changes[1]; !strings.Contains(c.Text, "-  p: (hidden, before)\n+  p: (hidden, after)\n") || strings.Contains(c.Text, "aHVzaA") {
		t.Errorf("planned: %+v", c)
	}
	if r := a.done(); r.Updated != 2 {
		t.Errorf("%+v", r)
	}
	a.stop()
	after := w.requests()
	planned := 0
	for _, request := range after[before:] {
		if request.Writes() && strings.Contains(request.RequestURI, "dryRun=All") {
			planned++
		}
	}
	if planned != len(objects(t))+2+2 {
		t.Errorf("%d dry runs", planned)
	}
	b := w.start(resources.Options{})
	if diff, err := b.Plan(t.Context()); err != nil || len(diff.Changes)+len(diff.Failures) != 0 {
		t.Errorf("with nothing to do: %+v, %v", diff, err)
	}
	for _, request := range w.requests()[len(after):] {
		if request.Writes() {
			t.Errorf("a plan: %s %s", request.Verb, request.RequestURI)
		}
	}
}

// TestOutage: while the API server is away a pass says so and nothing is sent; when it is back, all
// is right again without help.
func TestOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("survivor", "1"))
	a := w.start(resources.Options{})
	a.done()
	w.cluster.KillAPIServer()
	a.until("that the API server is away", func(_ reconciler.Report, err error) bool { return err != nil })
	w.write("a.yaml", configMap("survivor", "2")+configMap("newcomer", "1"))
	for range 3 {
		if r, err := a.pass(); err == nil || r.Created+r.Updated+r.Recreated+r.Pruned != 0 {
			t.Errorf("without an API server: %+v, %v", r, err)
		}
	}
	if os.Getenv("IRONHERD_TORTURE_ROUNDS") != "" { // at length
		for away := time.Now(); time.Since(away) < time.Minute; {
			if r, err := a.pass(); err == nil || r.Created+r.Updated+r.Recreated+r.Pruned != 0 {
				t.Errorf("without an API server: %+v, %v", r, err)
			}
			<-time.After(time.Second)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.cluster.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	if r := a.done(); r.Created != 1 || r.Updated != 1 {
		t.Errorf("afterwards: %+v", r)
	}
	t.Logf("as wanted %v after the API server was ready again", time.Since(back))
	a.silent()
	drain(a)
	w.remove(configMaps, "default", "survivor")
	select {
	case <-a.Changed():
	case <-ctx.Done():
		t.Fatal("drift after an outage is not noticed")
	}
	a.done()
	if !w.there(configMaps, "default", "survivor") {
		t.Error("drift after an outage is not repaired")
	}
}

// TestStopped: a pass whose context has ended sends nothing; one without Run waits.
func TestStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.start(resources.Options{})
	a.done()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w.remove(classes, "", "local")
	w.await("the change", func() bool { return len(a.Changed()) == 1 })
	if r, err := a.Pass(ended); err == nil || r.Requests != 0 {
		t.Errorf("after the end: %+v, %v", r, err)
	}
	a.stop()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r, err := a.Pass(short); err == nil || r.Requests != 0 {
		t.Errorf("without Run: %+v, %v", r, err)
	}
}

// TestDeletedAgainAndAgain: what somebody else deletes is created at once a few times, and then
// ever less often, which passes tell; also where each first attempt to create it fails.
func TestDeletedAgainAndAgain(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"at once": false, "by the second attempt": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deletedAgainAndAgain(t, fails)
		})
	}
}

func deletedAgainAndAgain(t *testing.T, fails bool) {
	t.Helper()
	w := newWorld(t)
	w.write("a.yaml", configMap("deleted", "1"))
	attempts := 0
	a := w.startWith(w.wired(&wire{after: pass, before: func(_ int, r *http.Request) error {
		if !strings.HasSuffix(r.URL.Path, "/configmaps/deleted") || r.Method != http.MethodPatch {
			return nil
		}
		if attempts++; fails && attempts%2 == 1 {
			return errors.New("the first attempt fails")
		}
		return nil
	}}), resources.Options{})
	a.done()
	const why = "others delete it again and again; the sooner they do, the longer its creation waits"
	created, told := 0, false
	for n := 0; n < 20 && !told; n++ {
		w.remove(configMaps, "default", "deleted")
		a.until("the deletion", func(r reconciler.Report, err error) bool {
			created += r.Created
			told = told || strings.Contains(fmt.Sprint(err), why)
			return told || r.Created > 0
		})
	}
	if !told || created < 5 || created > 10 {
		t.Fatalf("it was created %d times, and told: %t", created, told)
	}
	a.until("that it is created, and told", func(r reconciler.Report, err error) bool {
		return w.there(configMaps, "default", "deleted") && r.Ready && r.Created == 0 && len(r.Failures) == 1 && strings.Contains(fmt.Sprint(err), why)
	})
}
