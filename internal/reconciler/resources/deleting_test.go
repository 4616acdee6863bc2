package resources_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// TestDeletionHeldByFinalizers: what is no longer wanted, and is held by finalizers, is told
// wherever people look: it is no failure, and is told without a request in each pass.
func TestDeletionHeldByFinalizers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approving = true
	// Nothing else of its kind is wanted, so nothing else makes a leader follow the kind.
	const held = "apiVersion: v1\nkind: Secret\nmetadata: {name: held, namespace: default, finalizers: [example.com/hold, example.com/more]}\n---\n"
	w.write("a.yaml", configMap("kept", "1")+held)
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	w.write("a.yaml", configMap("kept", "1"))
	w.soon("word of its deletion", func() bool {
		r, err := a.pass()
		return err == nil && len(r.Deleting) == 1
	})
	a.silent()
	r, err := a.pass()
	if err != nil || len(r.Deleting) != 1 || len(r.Failures) != 0 || !r.Ready {
		t.Fatalf("%+v, %v", r, err)
	}
	since := w.get(secrets, "default", "held").GetDeletionTimestamp().UTC()
	d := r.Deleting[0]
	if d.Object != "Secret default/held" || fmt.Sprint(d.Finalizers) != "[example.com/hold example.com/more]" || !d.Since.Equal(since) {
		t.Errorf("%+v, since %s", d, since)
	}
	diff, err := a.Plan(t.Context())
	if err != nil || len(diff.Changes) != 0 || len(diff.Failures) != 0 || fmt.Sprint(diff.Deleting) != fmt.Sprint(r.Deleting) {
		t.Errorf("the plan: %+v, %v", diff, err)
	}
	if err := a.Publish(t.Context(), reconciler.Standing{}); err != nil {
		t.Fatal(err)
	}
	summary := func() any {
		return nested(w.get(configMaps, inventory.Namespace, "ironherd-reconciler-summary").Object, []string{"data", "deleting"})
	}
	if got := summary(); got != "Secret default/held: "+d.Why()+"\n" {
		t.Errorf("the summary says %v", got)
	}
	before := len(w.requests())
	if err := a.Publish(t.Context(), reconciler.Standing{}); err != nil {
		t.Fatal(err)
	}
	for _, request := range w.requests()[before:] {
		if request.Verb != "get" && request.Verb != "watch" {
			t.Errorf("it is written again: %s %s", request.Verb, request.RequestURI)
		}
	}

	// Whoever leads next tells it, too, also while a manifest cannot be read.
	a.stop()
	w.write("b.yaml", "{{{")
	b := w.start(resources.Options{BuiltIn: []*object.Object{}})
	r, _ = b.pass()
	if len(r.Deleting) != 1 || len(r.Failures) != 1 {
		t.Errorf("the next leader: %+v", r)
	}
	w.write("b.yaml", "")
	w.patch(secrets, "default", "held", `{"metadata":{"finalizers":null}}`)
	b.until("that it is gone", func(r reconciler.Report, err error) bool { return err == nil && len(r.Deleting) == 0 })
	if err := b.Publish(t.Context(), reconciler.Standing{}); err != nil || summary() != nil {
		t.Errorf("the summary says %v, %v", summary(), err)
	}
}

// TestLostInventoryIsTold: objects that bear our mark, and that the inventory does not have as they
// are, are counted and told of once. That fails nothing, and makes none of them ours.
func TestLostInventoryIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const never = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: never, namespace: default, annotations: {ironherd.dev/apply: create-only%s}}\n---\n"
	space := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + unused("unrecorded") + "}\n---\n"
	w.write("a.yaml", configMap("one", "1")+configMap("two", "1")+space+fmt.Sprintf(never, ""))
	start := func() *applier { return w.start(resources.Options{BuiltIn: []*object.Object{}}) }
	told := func() (notes int) {
		for _, note := range w.told(inventory.Namespace, "ConfigMap", inventory.Name) {
			if strings.HasPrefix(note, "NotRecorded: ") && strings.Contains(note, "bear the mark of their creation") {
				notes++
			}
		}
		return notes
	}
	before := told()
	found := func(what string, a *applier, want int) {
		t.Helper()
		for range 2 {
			if r, err := a.pass(); err != nil || len(r.Failures) != 0 || r.Unrecorded != want {
				t.Fatalf("%s: %+v, %v", what, r, err)
			}
		}
	}
	a := start()
	a.done()
	found("what was just created", a, 0)
	// It is no longer in the inventory, and not deleted in any case.
	w.write("a.yaml", configMap("one", "1")+configMap("two", "1")+space+fmt.Sprintf(never, ", ironherd.dev/prune: never"))
	found("what is never deleted", a, 0)
	a.stop()
	b := start()
	found("the next leader", b, 0)
	if told() != before {
		t.Error("it is told without need")
	}
	stored := w.get(configMaps, inventory.Namespace, inventory.Name)
	b.stop()
	w.remove(configMaps, inventory.Namespace, inventory.Name)
	c := start()
	found("the inventory is lost", c, 2)
	w.patch(configMaps, "default", "two", `{"metadata":{"annotations":{"ironherd.dev/prune":"never"}}}`)
	c.until("that one is never deleted in any case", func(r reconciler.Report, err error) bool { return err == nil && r.Unrecorded == 1 })
	w.patch(configMaps, "default", "two", `{"metadata":{"annotations":{"ironherd.dev/prune":null}}}`)
	c.until("that it would be deleted", func(r reconciler.Report, err error) bool { return err == nil && r.Unrecorded == 2 })
	// Whoever keeps an object takes the mark off.
	w.patch(configMaps, "default", "two", `{"metadata":{"annotations":{"ironherd.dev/created-by":null}}}`)
	c.until("that one bears no mark", func(r reconciler.Report, err error) bool { return err == nil && r.Unrecorded == 1 })
	found("without the mark of one", c, 1)
	if now := told(); now != before+1 {
		t.Errorf("it is told %d times", now-before)
	}
	stored.SetResourceVersion("")
	if _, err := w.in(configMaps, inventory.Namespace).Create(t.Context(), stored, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.until("that it is over", func(r reconciler.Report, err error) bool { return err == nil && r.Unrecorded == 0 })

	// A tool puts an object back as it was, and the API server gives it another UID.
	again := w.get(configMaps, "default", "one")
	c.stop()
	w.remove(configMaps, "default", "one")
	again.SetResourceVersion("")
	again.SetUID("")
	if _, err := w.in(configMaps, "default").Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := start()
	d.until("what was put back", func(r reconciler.Report, err error) bool { return err == nil && r.Unrecorded == 1 })
	w.write("a.yaml", configMap("two", "1")+space)
	if d.done(); !w.there(configMaps, "default", "one") {
		t.Error("what was put back is deleted")
	}
}
