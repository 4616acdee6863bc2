package resources_test

import (
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/reconciler"
)

// TestGoneAfterItsLabelWasTaken: an object whose label somebody has taken, and that has it again,
// is known to be gone as soon as any other.
func TestGoneAfterItsLabelWasTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.start(resources.Options{})
	a.done()
	const name = "ironherd:kubelet-api"
	for _, edit := range []func(){
		func() { w.patch(clusterRoles, "", name, `{"metadata":{"labels":null}}`) },
		func() { w.remove(clusterRoles, "", name) },
	} {
		edit()
		a.until("the repair", func(r reconciler.Report, err error) bool {
			if err != nil || !r.Ready {
				t.Fatalf("what is gone is taken for what was seen: %v, %+v", err, r)
			}
			return r.Created+r.Updated > 0
		})
	}
}

// TestLabelTakenAgain: who takes the label of an object again and again makes no pass fail.
func TestLabelTakenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("bare", "1"))
	a := w.start(resources.Options{})
	a.done()
	for range 3 {
		w.patch(configMaps, "default", "bare", `{"metadata":{"labels":null},"data":{"key":"theirs"}}`)
		a.until("the repair", func(r reconciler.Report, err error) bool {
			if err != nil {
				t.Fatalf("%v, %+v", err, r)
			}
			return r.Updated > 0
		})
	}
}
