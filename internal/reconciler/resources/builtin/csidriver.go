package builtin

import (
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// localDriver is the driver of the storage on the nodes' own disks.
const localDriver = "local.csi.ironherd.dev"

func csiDriver(s Selection) []runtime.Object {
	attach, podInfo, capacity, republish, selinux := false, false, s.Capacity, false, false
	groups := storagev1.FileFSGroupPolicy
	return []runtime.Object{&storagev1.CSIDriver{
		TypeMeta:   metav1.TypeMeta{APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "CSIDriver"},
		ObjectMeta: meta(localDriver, "Volumes on the disks of the nodes themselves. It runs on every node, as part of it."),
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       &attach, // the disk is where the pod is
			PodInfoOnMount:       &podInfo,
			StorageCapacity:      &capacity,
			RequiresRepublish:    &republish,
			SELinuxMount:         &selinux,
			FSGroupPolicy:        &groups,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}}
}
