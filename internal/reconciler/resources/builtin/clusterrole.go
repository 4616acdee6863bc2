package builtin

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// grant is a role, and the binding of the same name that gives it to somebody. What runs on every
// node has either one certificate for all nodes, with the user's name, or one for each node, with a
// name of its own and the group.
type grant struct {
	name string
	// may describes the role, and lets the binding.
	may, lets string
	rules     []rbacv1.PolicyRule
	subjects  []rbacv1.Subject
}

var (
	read      = []string{"get", "list", "watch"}
	readWrite = []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	// recordEvents is what a recorder of events needs: it looks for a similar one to count up.
	recordEvents = []string{"get", "list", "watch", "create", "update", "patch"}
)

var (
	kubeletAPI = grant{
		name: "ironherd:kubelet-api",
		may:  "What the API server may do on the kubelets of all nodes: logs, exec, port forwarding, metrics and health.",
		rules: []rbacv1.PolicyRule{
			rule("", []string{
				"nodes/proxy", "nodes/stats", "nodes/log", "nodes/spec", "nodes/metrics", "nodes/checkpoint", "nodes/configz",
				"nodes/healthz", "nodes/pods",
			}, []string{"get", "create", "update", "patch", "delete"}),
		},
		lets:     "Lets the API server speak to the kubelets of all nodes.",
		subjects: []rbacv1.Subject{user(APIServer)},
	}
	owner = grant{
		name: "ironherd:owner",
		may:  "Everything, everywhere: for the owners of this cluster.",
		rules: []rbacv1.PolicyRule{
			rule("*", []string{"*"}, []string{"*"}),
			{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
		},
		lets:     "Gives everything to the owners of this cluster.",
		subjects: []rbacv1.Subject{group(Owners)},
	}
	provisioner = grant{
		name: "ironherd:csi-provisioner",
		may:  "What the storage provisioner on each node needs: to make volumes for claims, to resize them, and to say so in events.",
		rules: []rbacv1.PolicyRule{
			rule("", []string{"persistentvolumes"}, readWrite),
			rule("", []string{"persistentvolumeclaims"}, []string{"get", "list", "watch", "update", "patch"}),
			rule("", []string{"persistentvolumeclaims/status"}, []string{"patch", "update"}),
			rule("", []string{"nodes", "pods"}, read),
			rule("storage.k8s.io", []string{"storageclasses", "csinodes", "csidrivers", "volumeattachments"}, read),
			rule("storage.k8s.io", []string{"csistoragecapacities"}, readWrite),
			rule("", []string{"events"}, recordEvents),
			rule("events.k8s.io", []string{"events"}, recordEvents),
		},
		lets:     "Lets the storage provisioner of each node work.",
		subjects: []rbacv1.Subject{user(Provisioner), group(Provisioner)},
	}
	network = grant{
		name: "ironherd:network-services",
		may: "What the network services on each node need: to see services, where they live, and the policies between pods, and to say in " +
			"events what goes wrong.",
		rules: []rbacv1.PolicyRule{
			rule("", []string{"services", "endpoints", "namespaces", "nodes", "pods"}, read),
			rule("discovery.k8s.io", []string{"endpointslices"}, read),
			rule("networking.k8s.io", []string{"networkpolicies"}, read),
			rule("", []string{"events"}, recordEvents),
			rule("events.k8s.io", []string{"events"}, recordEvents),
		},
		lets:     "Lets the network services of each node work.",
		subjects: []rbacv1.Subject{user(Network), group(Network)},
	}
)

func (g grant) objects(Selection) []runtime.Object {
	version := rbacv1.SchemeGroupVersion.String()
	return []runtime.Object{
		&rbacv1.ClusterRole{
			TypeMeta:   metav1.TypeMeta{APIVersion: version, Kind: "ClusterRole"},
			ObjectMeta: meta(g.name, g.may),
			Rules:      g.rules,
		},
		&rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: version, Kind: "ClusterRoleBinding"},
			ObjectMeta: meta(g.name, g.lets),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: g.name},
			Subjects:   g.subjects,
		},
	}
}

func rule(group string, resources, verbs []string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}

func user(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}
