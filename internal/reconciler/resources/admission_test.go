package resources_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/reconciler"
)

const (
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

// TestReplacementIsRefused: what somebody does not let us create under its name is not deleted to
// be created again, and the failure says who refuses. It is replaced once they let us.
func TestReplacementIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.firstRelease()
	uid := w.get(runtimes, "", "gvisor").GetUID()
	admission := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource}
	}
	policies, policyBindings := admission("validatingadmissionpolicies"), admission("validatingadmissionpolicybindings")
	w.create(policies, noGvisor)
	t.Cleanup(func() { w.removeAfter(policies, "no-gvisor") })
	w.create(policyBindings, noGvisorBinding)
	t.Cleanup(func() { w.removeAfter(policyBindings, "no-gvisor") })
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
