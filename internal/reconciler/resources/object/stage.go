package object

// Stage is when an object is applied.
type Stage int

// The stages, in order.
const (
	Namespaces Stage = iota
	Definitions
	Access
	Rest
	// Gates may refuse or hold up what comes after them, and need what came before.
	Gates
	Stages
)

// Stage returns when objects of its kind are applied: those with a lower one first; they are pruned
// the other way round.
func (k Key) Stage() Stage {
	switch {
	case k.Group == "" && k.Kind == "Namespace":
		return Namespaces
	case k.Group == "apiextensions.k8s.io":
		return Definitions
	case k.Group == "rbac.authorization.k8s.io", k.Group == "" && k.Kind == "ServiceAccount":
		return Access
	case k.Group == "admissionregistration.k8s.io", k.Group == "apiregistration.k8s.io":
		return Gates
	}
	return Rest
}

// Container reports whether deleting an object of that kind deletes what others have put into it.
// Such an object is never deleted.
func (k Key) Container() bool {
	return k.Group == "" && k.Kind == "Namespace" || k.Group == "apiextensions.k8s.io" && k.Kind == "CustomResourceDefinition"
}

// Replaceable reports whether an object of that kind may be deleted and created again because a
// field cannot be changed: kinds that are configuration and nothing else, so that nothing of ours
// is lost with them but the moment in between. What is lost of others, Others tells.
func (k Key) Replaceable() bool {
	switch k.Group {
	case "rbac.authorization.k8s.io":
		return k.Kind == "ClusterRoleBinding" || k.Kind == "RoleBinding"
	case "storage.k8s.io":
		return k.Kind == "StorageClass" || k.Kind == "CSIDriver" || k.Kind == "VolumeAttributesClass"
	case "node.k8s.io":
		return k.Kind == "RuntimeClass"
	case "scheduling.k8s.io":
		return k.Kind == "PriorityClass"
	case "networking.k8s.io":
		return k.Kind == "IngressClass"
	case "":
		return k.Kind == "ConfigMap" || k.Kind == "Secret"
	}
	return false
}
