package resources_test

import (
	"fmt"
	"testing"

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
