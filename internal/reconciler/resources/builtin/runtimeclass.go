package builtin

import (
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func runtimeClasses() []nodev1.RuntimeClass {
	return []nodev1.RuntimeClass{
		runtimeClass("runc", "runc",
			"Containers as usual: they share the kernel of the node. Fast, and only as strong a wall as the kernel's own."),
		runtimeClass("gvisor", "runsc",
			"Containers with a kernel of their own in user space (gVisor): for workloads that are not trusted. Slower system calls."),
	}
}

func runtimeClass(name, handler, description string) nodev1.RuntimeClass {
	return nodev1.RuntimeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: nodev1.SchemeGroupVersion.String(), Kind: "RuntimeClass"},
		ObjectMeta: meta(name, description),
		Handler:    handler,
	}
}
