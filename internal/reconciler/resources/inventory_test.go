package resources_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// fill makes an inventory of one part that has hardly any room left, of objects that may be about
// to be created.
func (w *world) fill() (entries int) {
	w.Helper()
	var lines strings.Builder
	for ; lines.Len() < 1<<20-32<<10; entries++ {
		fmt.Fprintf(&lines, "/%s-%d mark=m%d at=%d\n", strings.Repeat("x", 200), entries, entries, time.Now().Unix())
	}
	w.create(configMaps, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s, labels: {%s: \"true\"}}\ndata:\n  Namespace: |\n%s",
		inventory.Name, inventory.Namespace, object.Label, "    "+strings.ReplaceAll(strings.TrimSuffix(lines.String(), "\n"), "\n", "\n    ")+"\n"))
	return entries
}

// many is a manifest of objects with long names.
func many(n int) string {
	var text strings.Builder
	for i := range n {
		text.WriteString(configMap(fmt.Sprintf("%s-%d", strings.Repeat("y", 200), i), "1"))
	}
	return text.String()
}

// TestLargeInventory: an inventory that a ConfigMap cannot hold has several, at every step.
func TestLargeInventory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approving = true
	before := w.fill()
	const n = 200
	w.write("many.yaml", many(n))
	died := false
	over := &wire{before: pass, after: pass}
	over.before = func(_ int, r *http.Request) error {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/"+inventory.Name) && !died {
			died = true // between the new part and the old one
			return errDied
		}
		return nil
	}
	first := w.startWith(w.wired(over), resources.Options{BuiltIn: []*object.Object{}})
	if r, err := first.pass(); err == nil || r.Created != 0 || !died {
		t.Fatalf("%+v, %v", r, err)
	}
	first.stop()
	if !w.there(configMaps, inventory.Namespace, inventory.PartName(1)) {
		t.Fatal("there is no second part")
	}
	if got := len(w.inventory().Entries); got < before {
		t.Errorf("%d of %d entries are left on the way", got, before)
	}
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	if r := a.done(); r.Created != n {
		t.Errorf("%+v", r)
	}
	a.silent()
	a.stop()
	if got := len(w.inventory().Entries); got != before+n {
		t.Errorf("%d entries, want %d", got, before+n)
	}
	b := w.start(resources.Options{BuiltIn: []*object.Object{}})
	b.done()
	// Somebody takes the label from a part, and deletes another one: what it spoke of is written
	// again.
	w.patch(configMaps, inventory.Namespace, inventory.PartName(1), `{"metadata":{"labels":null}}`)
	w.write("many.yaml", many(n/2))
	if r := b.done(); r.Pruned != n/2 {
		t.Errorf("%+v", r)
	}
	if got := len(w.inventory().Entries); got != before+n/2 {
		t.Errorf("%d entries, want %d", got, before+n/2)
	}
}

// TestInventoryRefused: while the inventory cannot be stored, whatever the server answers, nothing
// is created, and everything else goes on; afterwards all is well without a restart.
func TestInventoryRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	resource := schema.GroupResource{Resource: "configmaps"}
	for name, answer := range map[string]error{
		"forbidden":      apierrors.NewForbidden(resource, inventory.Name, errDied),
		"dead webhook":   apierrors.NewInternalError(errDied),
		"too many":       apierrors.NewTooManyRequests("later", 0),
		"unavailable":    apierrors.NewServiceUnavailable("no webhook"),
		"server timeout": apierrors.NewTimeoutError("no webhook", 0),
	} {
		w.inventoryRefused(name, answer, false)
	}
	// It was stored all the same, and the answer does not say so.
	w.inventoryRefused("stored", apierrors.NewInternalError(errDied), true)
}

func (w *world) inventoryRefused(name string, answer error, stored bool) {
	w.Helper()
	own, err := object.NewBuiltIn(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "own", "namespace": "default"}, "data": map[string]any{"key": "1"},
	}, "test", object.Required)
	if err != nil {
		w.Fatal(err)
	}
	w.clean()
	w.write("a.yaml", configMap("there", "1")+configMap("dropped", "1")+configMap("third", "1"))
	over := &wire{before: pass, after: pass}
	var refused atomic.Bool
	refuse := func(_ int, r *http.Request) error {
		if refused.Load() && r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/"+inventory.Name) {
			return answer
		}
		return nil
	}
	if stored {
		over.after = refuse
	} else {
		over.before = refuse
	}
	a := w.startWith(w.wired(over), resources.Options{BuiltIn: []*object.Object{own}})
	a.done()
	refused.Store(true)
	w.remove(configMaps, "default", "own")
	w.write("a.yaml", configMap("there", "2")+configMap("newcomer", "1")+configMap("third", "1"))
	r := a.until(name+": what cannot be recorded", func(r reconciler.Report, err error) bool {
		return err != nil && strings.Contains(reasonOf(r, "ConfigMap default/own"), "cannot be recorded") &&
			strings.Contains(reasonOf(r, "ConfigMap default/newcomer"), "cannot be recorded")
	})
	if r.Updated != 1 || r.Created != 0 || r.Pruned != 0 {
		w.Errorf("%s: %+v", name, r)
	}
	if w.there(configMaps, "default", "newcomer") || w.there(configMaps, "default", "own") {
		w.Errorf("%s: it was created without being recorded", name)
	}
	w.write("a.yaml", configMap("there", "3")+configMap("third", "1")) // the newcomer is given up
	refused.Store(false)
	a.until(name+": everything", func(_ reconciler.Report, err error) bool { return err == nil })
	for key := range w.inventory().Entries {
		if key.Name == "newcomer" && !stored { // what may have been stored stays until inventory.Settle
			w.Errorf("%s: what was never created is in the inventory", name)
		}
	}
	list, err := w.in(configMaps, "default").List(w.Context(), metav1.ListOptions{LabelSelector: object.Label})
	if err != nil || len(list.Items) != 3 {
		w.Errorf("%s: %d objects, %v", name, len(list.Items), err)
	}
	a.stop()
}

// TestInventoryFull: what does not fit into the inventory is not created, and everything else goes
// on. No number of parts has room for a name that is longer than a part may be.
func TestInventoryFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("there", "1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	long := strings.Repeat("x", 800<<10)
	w.write("a.yaml", configMap("there", "2")+configMap(long, "1"))
	r, err := a.pass()
	if err == nil || r.Updated != 1 || r.Created != 0 || len(r.Failures) != 1 ||
		!strings.Contains(r.Failures[0].Reason, "cannot be recorded: "+inventory.ErrFull.Error()) {
		t.Errorf("%d updated, %d created, %d failures", r.Updated, r.Created, len(r.Failures))
	}
	w.write("a.yaml", configMap("there", "2")+configMap("newcomer", "1"))
	if r := a.done(); r.Created != 1 {
		t.Errorf("afterwards %d are created", r.Created)
	}
	a.silent()
}
