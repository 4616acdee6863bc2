package builtin

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clusterRoleBindings binds the roles. What runs on every node has either one certificate for all
// nodes, with the user's name, or one for each node, with a name of its own and the group.
func clusterRoleBindings() []rbacv1.ClusterRoleBinding {
	return []rbacv1.ClusterRoleBinding{
		clusterRoleBinding(kubeletAPIRole, "Lets the API server speak to the kubelets of all nodes.", user(APIServer)),
		clusterRoleBinding(ownerRole, "Gives everything to the owners of this cluster.", group(Owners)),
		clusterRoleBinding(provisionerRole, "Lets the storage provisioner of each node work.", user(Provisioner), group(Provisioner)),
		clusterRoleBinding(networkRole, "Lets the network services of each node work.", user(Network), group(Network)),
	}
}

// clusterRoleBinding gives the role of the same name to its subjects.
func clusterRoleBinding(name, description string, subjects ...rbacv1.Subject) rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: meta(name, description),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   subjects,
	}
}

func user(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}
