package resources_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
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
	if err := errors.Join(after.Probe(t.Context()), after.Check(t.Context())); err != nil {
		t.Error(err)
	}
	if uid, err := after.Cluster(t.Context()); err != nil || uid != string(w.get(namespaces, "", "kube-system").GetUID()) {
		t.Errorf("its cluster: %q, %v", uid, err)
	}
	after.stop()
	fewer := w.startWith(w.cluster.Config("ironherd:reconciler"), resources.Options{BuiltIn: small(t, 2)})
	if r := fewer.done(); r.Recreated == 0 || r.Pruned == 0 {
		t.Errorf("nothing was deleted: %+v", r)
	}
}

// TestRightsForRoles: for Roles and RoleBindings in manifests the rights that the docs name are
// enough, and the six that other kinds need are not.
func TestRightsForRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text, err := os.ReadFile("../../../deploy/kubernetes/reconciler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	role, binding, _ := strings.Cut(string(text), "\n---\n")
	six := "- {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [get, list, watch, create, patch, delete]}\n"
	w.create(clusterRoles, role+"\n"+six)
	w.create(bindings, binding)
	t.Cleanup(func() {
		w.removeAfter(clusterRoles, "ironherd:reconciler")
		w.removeAfter(bindings, "ironherd:reconciler")
	})
	w.write("a.yaml", `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: more, namespace: default}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: more, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: more}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}]
`)
	a := w.startWith(w.cluster.Config("ironherd:reconciler"), resources.Options{BuiltIn: []*object.Object{}})
	a.until("that it may not", func(r reconciler.Report, _ error) bool {
		return strings.Contains(fmt.Sprint(r.Failures), "attempting to grant RBAC permissions not currently held")
	})
	w.patch(clusterRoles, "", "ironherd:reconciler",
		`[{"op":"add","path":"/rules/-","value":{"apiGroups":["rbac.authorization.k8s.io"],"resources":["roles"],"verbs":["escalate","bind"]}}]`)
	a.done()
	if !w.there(roles, "default", "more") || !w.there(roleBindings, "default", "more") {
		t.Error("they were not created")
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
		if _, err := a.Cluster(t.Context()); (token == "mallory") != errors.Is(err, reconciler.ErrMayNotAsk) {
			t.Errorf("its cluster as %q: %v", token, err)
		}
		a.stop()
	}
}
