package test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// TestPageKubeadm applies the patch of docs/ops/kubernetes.md to the manifest of the API server as
// kubeadm writes it, as kubeadm does. What comes of it must be a pod: every volume that a container
// mounts is there, and the files of the page's configuration that etcd is asked with are mounted.
func TestPageKubeadm(t *testing.T) {
	t.Parallel()
	page := read(t, "../docs/ops/kubernetes.md")
	_, section, _ := strings.Cut(page, "### kubeadm")
	section, _, _ = strings.Cut(section, "\n### ")
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) == 0 {
		t.Fatal("the page has no patch")
	}
	patch, err := yaml.YAMLToJSONStrict([]byte(blocks[len(blocks)-1][1]))
	if err != nil {
		t.Fatal(err)
	}
	base, err := yaml.YAMLToJSONStrict([]byte(read(t, "testdata/kubeadm-kube-apiserver.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := strategicpatch.StrategicMergePatch(base, patch, corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	var before, pod corev1.Pod
	if err := json.Unmarshal(base, &before); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(merged, &pod); err != nil {
		t.Fatal(err)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, m := range c.VolumeMounts {
			if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s mounts %s, and there is no such volume", c.Name, m.Name)
			}
		}
	}
	if len(pod.Spec.InitContainers) != 1 || len(pod.Spec.Containers) != 1 {
		t.Fatalf("%d containers come before %d", len(pod.Spec.InitContainers), len(pod.Spec.Containers))
	}
	for _, v := range before.Spec.Volumes {
		if !slices.ContainsFunc(pod.Spec.Volumes, func(after corev1.Volume) bool { return after.Name == v.Name && after.HostPath.Path == v.HostPath.Path }) {
			t.Errorf("kubeadm's volume %s is no longer there as it was", v.Name)
		}
	}
	mounted := func(file string) bool {
		for _, m := range pod.Spec.InitContainers[0].VolumeMounts {
			// A file has to be where the configuration says, which is where it is on the node.
			for _, v := range pod.Spec.Volumes {
				if in, err := filepath.Rel(m.MountPath, file); v.Name == m.Name && v.HostPath.Path == m.MountPath && err == nil && filepath.IsLocal(in) {
					return true
				}
			}
		}
		return false
	}
	files := regexp.MustCompile(`(?m)^(etcd_ca|etcd_cert|etcd_key): (\S+)$`).FindAllStringSubmatch(page, -1)
	if len(files) != 3 {
		t.Errorf("the page's configuration has %d files for etcd", len(files))
	}
	for _, file := range append(files, []string{"", "config", "/etc/ironherd/reconciler.yaml"}) {
		if !mounted(file[2]) {
			t.Errorf("%s: %s is not mounted", file[1], file[2])
		}
	}
	server := pod.Spec.Containers[0]
	for _, probe := range []*corev1.Probe{server.LivenessProbe, server.ReadinessProbe, server.StartupProbe} {
		if probe.HTTPGet == nil || probe.HTTPGet.Host != "127.0.0.1" || probe.HTTPGet.Path == "" {
			t.Errorf("a probe asks %+v", probe.HTTPGet)
		}
	}
	if len(server.Command) != len(before.Spec.Containers[0].Command) {
		t.Errorf("kubeadm's command is replaced: %q", server.Command)
	}
}
