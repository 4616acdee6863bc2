package builtin

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// The names of the storage classes.
const (
	localClass       = "local"
	localStrictClass = "local-strict"
)

// The annotations by which Kubernetes knows the class of claims that name none: the second one is
// of earlier releases, and still counts.
const (
	DefaultAnnotation     = "storageclass.kubernetes.io/is-default-class"
	DefaultAnnotationBeta = "storageclass.beta.kubernetes.io/is-default-class"
)

var (
	local = storageClass(localClass,
		"Storage on a disk of the node that the pod runs on; it does not move with the pod. Programs, devices and set-user-ID bits on it "+
			"work as on any file system.",
		"exec", "dev", "suid")
	localStrict = storageClass(localStrictClass,
		"As local, but nothing on it can be executed, is a device, or gives another user's rights: for data alone.",
		"noexec", "nodev", "nosuid")
)

func storageClass(name, description string, mountOptions ...string) func(Selection) []runtime.Object {
	return func(s Selection) []runtime.Object {
		reclaim, binding, expand := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer, true
		class := &storagev1.StorageClass{
			TypeMeta:             metav1.TypeMeta{APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "StorageClass"},
			ObjectMeta:           meta(name, description),
			Provisioner:          localDriver,
			ReclaimPolicy:        &reclaim,
			VolumeBindingMode:    &binding, // the node is known only when the pod has been placed
			AllowVolumeExpansion: &expand,
			MountOptions:         mountOptions,
		}
		if s.DefaultClass == name {
			class.Annotations[DefaultAnnotation] = "true"
		}
		return []runtime.Object{class}
	}
}

// WithoutDefault returns the class of a selection as it is while another one is the default.
func WithoutDefault(s Selection) (*object.Object, error) {
	class := local
	if s.DefaultClass == localStrictClass {
		class = localStrict
	}
	s.DefaultClass = ""
	return convert(class(s)[0], object.Optional)
}
