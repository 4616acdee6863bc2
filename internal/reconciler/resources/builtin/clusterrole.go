package builtin

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The names of our roles, and of the bindings that give them to somebody.
const (
	kubeletAPIRole  = "ironherd:kubelet-api"
	ownerRole       = "ironherd:owner"
	provisionerRole = "ironherd:csi-provisioner"
	networkRole     = "ironherd:network-services"
)

var (
	read      = []string{"get", "list", "watch"}
	readWrite = []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	// recordEvents is what a recorder of events needs: it looks for a similar one to count up.
	recordEvents = []string{"get", "list", "watch", "create", "update", "patch"}
)

// access is the role of a name and its binding.
func access(name string) func(Selection) []runtime.Object {
	return func(Selection) []runtime.Object {
		var objects []runtime.Object
		for _, role := range clusterRoles() {
			if role.Name == name {
				objects = append(objects, &role)
			}
		}
		for _, binding := range clusterRoleBindings() {
			if binding.Name == name {
				objects = append(objects, &binding)
			}
		}
		return objects
	}
}

func clusterRoles() []rbacv1.ClusterRole {
	return []rbacv1.ClusterRole{
		clusterRole(kubeletAPIRole,
			"What the API server may do on the kubelets of all nodes: logs, exec, port forwarding, metrics and health.",
			rule("", []string{
				"nodes/proxy", "nodes/stats", "nodes/log", "nodes/spec", "nodes/metrics", "nodes/checkpoint", "nodes/configz",
				"nodes/healthz", "nodes/pods",
			}, []string{"get", "create", "update", "patch", "delete"}),
		),
		clusterRole(ownerRole,
			"Everything, everywhere: for the owners of this cluster.",
			rule("*", []string{"*"}, []string{"*"}),
			rbacv1.PolicyRule{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
		),
		clusterRole(provisionerRole,
			"What the storage provisioner on each node needs: to make volumes for claims, to resize them, and to say so in events.",
			rule("", []string{"persistentvolumes"}, readWrite),
			rule("", []string{"persistentvolumeclaims"}, []string{"get", "list", "watch", "update", "patch"}),
			rule("", []string{"persistentvolumeclaims/status"}, []string{"patch", "update"}),
			rule("", []string{"nodes", "pods"}, read),
			rule("storage.k8s.io", []string{"storageclasses", "csinodes", "csidrivers", "volumeattachments"}, read),
			rule("storage.k8s.io", []string{"csistoragecapacities"}, readWrite),
			rule("", []string{"events"}, recordEvents),
			rule("events.k8s.io", []string{"events"}, recordEvents),
		),
		clusterRole(networkRole,
			"What the network services on each node need: to see services, where they live, and the policies between pods, and to say in "+
				"events what goes wrong.",
			rule("", []string{"services", "endpoints", "namespaces", "nodes", "pods"}, read),
			rule("discovery.k8s.io", []string{"endpointslices"}, read),
			rule("networking.k8s.io", []string{"networkpolicies"}, read),
			rule("", []string{"events"}, recordEvents),
			rule("events.k8s.io", []string{"events"}, recordEvents),
		),
	}
}

func clusterRole(name, description string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: meta(name, description),
		Rules:      rules,
	}
}

func rule(group string, resources, verbs []string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}
