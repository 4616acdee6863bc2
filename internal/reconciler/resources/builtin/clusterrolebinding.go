package builtin

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func clusterRoleBindings() []rbacv1.ClusterRoleBinding {
	return []rbacv1.ClusterRoleBinding{
		clusterRoleBinding(kubeletAPIRole, "Lets the API server speak to the kubelets of all nodes.", rbacv1.UserKind, APIServer),
		clusterRoleBinding(ownerRole, "Gives everything to the owners of this cluster.", rbacv1.GroupKind, Owners),
		clusterRoleBinding(provisionerRole, "Lets the storage provisioner of each node work.", rbacv1.UserKind, Provisioner),
		clusterRoleBinding(networkRole, "Lets the network services of each node work.", rbacv1.UserKind, Network),
	}
}

// clusterRoleBinding gives the role of the same name to one subject.
func clusterRoleBinding(name, description, kind, subject string) rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: meta(name, description),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: subject}},
	}
}
