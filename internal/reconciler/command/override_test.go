package command_test

import "testing"

// TestPeoplesWord: what people say by the program is what status shows, and they can take it back.
func TestPeoplesWord(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	_, said := p.run(2, "pause", "all")
	contains(t, "pause", said, "the reason of a pause must be given")
	_, said = p.run(2, "prune", "approve", "--fro", "1h")
	contains(t, "a flag that is none", said, "(see ironherd-reconciler prune approve --help)")
	_, said = p.run(0, "pause", "ConfigMap", "default/settings", "--reason", "an incident\x1b[31m", "--for", "30m")
	contains(t, "pause", said, "ConfigMap default/settings is paused for 30m0s",
		"whether the reconciler keeps any ConfigMap default/settings is not known", "kubeconfig must be set")
	for _, wrong := range []string{"ConfigMap/default/settings", "ConfigMap default/settings/x", "all "} {
		_, said = p.run(2, "pause", wrong, "--reason", "an incident")
		contains(t, "a scope that is none", said, "can be no scope: write all, a kind (ConfigMap, Deployment.apps), or an object")
	}
	_, said = p.run(3, "prune", "approve", "d1")
	contains(t, "manifests that nobody has", said, "no node has the manifests d1")
	p.put(p.layout().Node("n1"), `{"roles":["kubernetes-controller"],"release":"v0.1.0","source":{"digest":"d1","objects":7}}`)
	p.run(2, "prune", "approve", "d1", "--for", "25h", "--reason", "gone for good")
	_, said = p.run(2, "prune", "approve", "d1")
	contains(t, "approve", said, "the reason of an approval must be given")
	p.run(0, "prune", "approve", "d1", "--reason", "gone for good")
	_, said = p.run(2, "force", "all")
	contains(t, "force", said, "the reason of a force must be given")
	_, said = p.run(0, "force", "ConfigMap", "default/settings", "--reason", "moved")
	contains(t, "force", said, "ConfigMap default/settings is forced for 1h0m0s", "so this force may be of nothing")
	out, _ := p.run(0, "status")
	contains(t, "status", out, "7 (d1)", "paused:", "ConfigMap default/settings until ", ", by n1: an incident", "forced:", ", by n1: moved", "approved:", "manifests d1, by n1 until ", ": gone for good")
	p.run(0, "resume", "configmap default/settings")
	_, said = p.run(3, "resume", "ConfigMap default/settings")
	contains(t, "resume", said, "is not paused")
	out, _ = p.run(0, "status")
	contains(t, "a force beside a pause that has ended", out, "forced:")
	p.run(0, "unforce", "ConfigMap default/settings")
	_, said = p.run(3, "unforce", "ConfigMap default/settings")
	contains(t, "unforce", said, "is not forced")
	p.run(0, "prune", "withdraw")
	p.run(3, "prune", "withdraw")
	_, said = p.run(2, "config", "check", "--built-in", "kubelet-api,nothing")
	contains(t, "a part that is none", said, `there is no built-in part "nothing"`)
	_, said = p.run(2, "config", "check", "--built-in", "storage-class-local")
	contains(t, "a class without its driver", said, "select csi-driver too")
	_, said = p.run(2, "config", "check", "--default-storage-class", "local")
	contains(t, "a default that is not selected", said, "select storage-class-local too")
	_, said = p.run(2, "config", "check", "--storage-capacity", "true")
	contains(t, "capacity without a driver", said, "select csi-driver too")
}
