package resources_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

const (
	noChange = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-change}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [configmaps]}]}
  validations: [{expression: object.metadata.name != 'guarded', message: nobody changes this one}]
`
	noChangeBinding = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-change}
spec: {policyName: no-change, validationActions: [Deny]}
`
	noGvisor = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-gvisor}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [node.k8s.io], apiVersions: [v1], operations: [CREATE], resources: [runtimeclasses]}]}
  validations: [{expression: object.metadata.name != 'gvisor', message: nobody makes gvisor here}]
`
	noGvisorBinding = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-gvisor}
spec: {policyName: no-gvisor, validationActions: [Deny]}
`
)

// The resources of a policy.
var (
	policies       = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}
	policyBindings = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}
)

// deny has a policy hold until the test ends.
func (w *world) deny(name, policy, binding string) {
	w.Helper()
	w.create(policies, policy)
	w.Cleanup(func() { w.removeAfter(policies, name) })
	w.create(policyBindings, binding)
	w.Cleanup(func() { w.removeAfter(policyBindings, name) })
}

// TestAPolicyAgainstChanges: a change that a policy denies, which the server calls invalid, is no
// change of a field that cannot be changed. To delete the object and create it again would be the
// same change past the policy.
func TestAPolicyAgainstChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("guarded", "1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	uid := w.get(configMaps, "default", "guarded").GetUID()
	w.deny("no-change", noChange, noChangeBinding)
	w.await("the policy", func() bool {
		_, err := w.in(configMaps, "default").Patch(t.Context(), "guarded", types.MergePatchType, []byte(`{"data":{"key":"2"}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return strings.Contains(fmt.Sprint(err), "nobody changes this one")
	})
	w.write("a.yaml", configMap("guarded", "2"))
	r, err := a.pass()
	if err == nil || r.Recreated != 0 || len(r.Failures) != 1 || !strings.HasPrefix(r.Failures[0].Reason, "apply: ") ||
		!strings.Contains(r.Failures[0].Reason, "nobody changes this one") {
		t.Errorf("%+v, %v", r, err)
	}
	if live := w.get(configMaps, "default", "guarded"); live.GetUID() != uid || nested(live.Object, []string{"data", "key"}) != "1" {
		t.Error("it was changed past the policy")
	}
	w.remove(policyBindings, "", "no-change")
	a.done()
}

// TestReplacementIsRefused: what somebody does not let us create under its name is not deleted to
// be created again, and the failure says who refuses. It is replaced once they let us.
func TestReplacementIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.firstRelease()
	uid := w.get(runtimes, "", "gvisor").GetUID()
	w.deny("no-gvisor", noGvisor, noGvisorBinding)
	w.await("the policy", func() bool {
		other := w.get(runtimes, "", "gvisor")
		other.SetResourceVersion("")
		_, err := w.in(runtimes, "").Create(t.Context(), other, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return strings.Contains(fmt.Sprint(err), "nobody makes gvisor here")
	})
	second := w.start(resources.Options{BuiltIn: small(t, 2)})
	r, err := second.pass()
	if err == nil || r.Recreated != 0 || !strings.Contains(fmt.Sprint(r.Failures), "it could not be created again: ") ||
		!strings.Contains(fmt.Sprint(r.Failures), "nobody makes gvisor here") {
		t.Errorf("%+v, %v", r, err)
	}
	if w.get(runtimes, "", "gvisor").GetUID() != uid {
		t.Error("it was deleted")
	}
	w.remove(policyBindings, "", "no-gvisor")
	second.until("the replacement", func(reconciler.Report, error) bool { return w.get(runtimes, "", "gvisor").GetUID() != uid })
	second.done()
}
