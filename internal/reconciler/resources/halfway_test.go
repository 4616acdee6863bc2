package resources_test

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

var gvisor = object.Key{Group: "node.k8s.io", Kind: "RuntimeClass", Name: "gvisor"}

// pauseAll is what an operator says in an incident.
func pauseAll() []reconciler.Override {
	return []reconciler.Override{{Effect: reconciler.Pause, Scope: reconciler.ScopeAll, By: "anna", Reason: "an incident"}}
}

// diesAt starts the second release, whose process dies at the first request that is as asked for:
// before the server has it, or when it has been answered.
func (w *world) diesAt(answered bool, at func(*http.Request) bool) {
	w.Helper()
	over := &wire{before: pass, after: pass}
	dead := make(chan struct{})
	over.before = func(_ int, r *http.Request) error {
		select {
		case <-dead:
			return errDied
		default:
		}
		if !at(r) {
			return nil
		}
		close(dead)
		if !answered {
			return errDied
		}
		return nil
	}
	a := w.startWith(w.wired(over), resources.Options{BuiltIn: small(w.T, 2)})
	defer a.stop()
	a.until("death", func(reconciler.Report, error) bool {
		select {
		case <-dead:
			return true
		default:
			return false
		}
	})
}

func deletes(r *http.Request) bool { return r.Method == http.MethodDelete }

// TestDeathBeforeAPause: a leader dies between the two requests that replace an object, and a pause
// holds when the next one begins. That one creates the object, and then heeds the pause.
func TestDeathBeforeAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start(resources.Options{BuiltIn: small(t, 1)})
	first.done()
	first.stop()
	w.diesAt(true, deletes)
	if w.there(runtimes, "", "gvisor") {
		t.Fatal("it was not deleted")
	}
	third := w.start(resources.Options{BuiltIn: small(t, 2)})
	third.SetOverrides(pauseAll())
	if r, err := third.pass(); err != nil || !w.there(runtimes, "", "gvisor") {
		t.Fatalf("it stays deleted: %+v, %v", r, err)
	}
	w.remove(runtimes, "", "gvisor")
	w.await("the pause to hold", func() bool {
		r, _ := third.pass()
		return r.Paused > 0 && !w.there(runtimes, "", "gvisor")
	})
	third.SetOverrides(nil)
	third.done()
	w.consistent("after the pause")
}

// TestPauseHoldsForWhatIsThereAgain: what a leader deleted to create it again, and somebody else
// has created since, is not half of a replacement any more: a pause holds for it.
func TestPauseHoldsForWhatIsThereAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start(resources.Options{BuiltIn: small(t, 1)})
	first.done()
	first.stop()
	w.diesAt(true, deletes)
	w.create(runtimes, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: gvisor, labels: {whose: theirs}}\nhandler: runsc\n")
	t.Cleanup(func() { w.removeAfter(runtimes, "gvisor") })
	before := w.get(runtimes, "", "gvisor")
	third := w.start(resources.Options{BuiltIn: small(t, 2)})
	third.SetOverrides(pauseAll())
	for range 3 {
		if r, _ := third.pass(); r.Paused == 0 || w.get(runtimes, "", "gvisor").GetResourceVersion() != before.GetResourceVersion() {
			t.Fatalf("it is changed: %+v", r)
		}
	}
}

// TestPauseHoldsAfterADeath: what the leader before did not delete is not created while it is
// paused, also where that leader was about to create it, or about to replace it.
func TestPauseHoldsAfterADeath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, replaced := range []bool{false, true} {
		w.clean()
		first := w.start(resources.Options{BuiltIn: small(t, 1)})
		first.done()
		first.stop()
		if !replaced {
			w.remove(runtimes, "", "gvisor")
		}
		w.diesAt(false, func(r *http.Request) bool {
			return deletes(r) || r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/gvisor") && !replaced
		})
		third := w.start(resources.Options{BuiltIn: small(t, 2)})
		third.SetOverrides(pauseAll())
		if r, _ := third.pass(); r.Paused == 0 || w.there(runtimes, "", "gvisor") != replaced {
			t.Fatalf("about to be replaced %t: the pause does not hold: %+v", replaced, r)
		}
		if replaced { // a person deletes it during the pause
			drain(third)
			w.remove(runtimes, "", "gvisor")
			w.await("the news", func() bool { return len(third.Changed()) == 1 })
			if r, _ := third.pass(); r.Paused == 0 || w.there(runtimes, "", "gvisor") {
				t.Fatalf("the pause does not hold: %+v", r)
			}
		}
		third.SetOverrides(nil)
		third.done()
		w.consistent("after the pause")
		third.stop()
	}
}

// TestDeleteRefused: what was not deleted is not recorded as about to be created again.
func TestDeleteRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start(resources.Options{BuiltIn: small(t, 1)})
	first.done()
	first.stop()
	before := w.inventory().Entries[gvisor]
	over := &wire{before: pass, after: pass}
	over.before = func(_ int, r *http.Request) error {
		if deletes(r) {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "runtimeclasses"}, "gvisor", errDied)
		}
		return nil
	}
	second := w.startWith(w.wired(over), resources.Options{BuiltIn: small(t, 2)})
	r, err := second.pass()
	if err == nil || len(r.Failures) == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if after := w.inventory().Entries[gvisor]; after != before {
		t.Errorf("%+v, want %+v", after, before)
	}
}
