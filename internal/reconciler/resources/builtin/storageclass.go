package builtin

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// defaultClass is the annotation by which Kubernetes knows the class of claims that name none.
const defaultClass = "storageclass.kubernetes.io/is-default-class"

func storageClasses() []storagev1.StorageClass {
	local := storageClass("local",
		"Storage on a disk of the node that the pod runs on; it does not move with the pod. Programs, devices and set-user-ID bits on it "+
			"work as on any file system. The default.",
		"exec", "dev", "suid")
	local.Annotations[defaultClass] = "true"
	return []storagev1.StorageClass{
		local,
		storageClass("local-strict",
			"As local, but nothing on it can be executed, is a device, or gives another user's rights: for data alone.",
			"noexec", "nodev", "nosuid"),
	}
}

func storageClass(name, description string, mountOptions ...string) storagev1.StorageClass {
	reclaim, binding, expand := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer, true
	return storagev1.StorageClass{
		TypeMeta:             metav1.TypeMeta{APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "StorageClass"},
		ObjectMeta:           meta(name, description),
		Provisioner:          localDriver,
		ReclaimPolicy:        &reclaim,
		VolumeBindingMode:    &binding, // the node is known only when the pod has been placed
		AllowVolumeExpansion: &expand,
		MountOptions:         mountOptions,
	}
}
