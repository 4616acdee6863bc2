package resources_test

import (
	"os"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
)

// TestRights: the rights that deploy/kubernetes/reconciler.yaml gives are enough to create, change,
// delete and create again, and delete what the release has of its own.
func TestRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text, err := os.ReadFile("../../../deploy/kubernetes/reconciler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	role, binding, _ := strings.Cut(string(text), "\n---\n")
	w.create(clusterRoles, role)
	w.create(bindings, binding)
	t.Cleanup(func() {
		w.removeAfter(clusterRoles, "ironherd:reconciler")
		w.removeAfter(bindings, "ironherd:reconciler")
	})
	before := w.startWith(w.cluster.Config("ironherd:reconciler"), resources.Options{BuiltIn: small(t, 1)})
	before.done()
	before.stop()
	after := w.startWith(w.cluster.Config("ironherd:reconciler"), resources.Options{})
	after.done()
	after.silent()
	if err := after.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	after.stop()
	fewer := w.startWith(w.cluster.Config("ironherd:reconciler"), resources.Options{BuiltIn: small(t, 2)})
	if r := fewer.done(); r.Recreated == 0 || r.Pruned == 0 {
		t.Errorf("nothing was deleted: %+v", r)
	}
}

// TestCredentials: an API server that does not know us is none that a leader can work with, and yet
// one that clients can be let to. Rights are another question, which only a check asks.
func TestCredentials(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for token, says := range map[string]struct{ probe, check string }{
		"":        {},
		"mallory": {check: "does not let us read the inventory"},
		"expired": {probe: "rejects our credentials", check: "rejects our credentials"},
	} {
		a := w.startWith(w.cluster.Config(token), resources.Options{})
		for what, asked := range map[string]struct {
			err  error
			want string
		}{
			"probe": {a.Probe(t.Context()), says.probe},
			"check": {a.Check(t.Context()), says.check},
			"ready": {a.Ready(t.Context()), ""},
		} {
			if (asked.err == nil) != (asked.want == "") || asked.err != nil && !strings.Contains(asked.err.Error(), asked.want) {
				t.Errorf("%s as %q: %v", what, token, asked.err)
			}
		}
		a.stop()
	}
}
