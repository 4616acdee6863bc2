package command_test

import (
	"strings"
	"testing"
)

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

// TestPeoplesWords: who pauses what is paused already is told whose pause that ends. Who resumes
// something is told by which other pauses it, or a part of it, is paused all the same.
func TestPeoplesWords(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	said := func(code int, args ...string) string {
		_, text := p.run(code, args...)
		return text
	}
	const settings, other = "ConfigMap default/settings", "ConfigMap default/other"
	first := said(0, "pause", settings, "--for", "24h", "--reason", "edited\x1b[31m by hand")
	if strings.Contains(first, "place") {
		t.Errorf("it takes the place of nothing: %s", first)
	}
	again := said(0, "pause", settings, "--reason", "a look")
	contains(t, "the same again", again, "is paused for 1h0m0s", "it takes the place of the pause until ", ", by n1: edited [31m by hand")
	if text := said(0, "force", settings, "--reason", "moved") + said(0, "pause", other, "--reason", "x"); strings.Contains(text, "place") {
		t.Errorf("a force, and another object: %s", text)
	}
	said(0, "pause", "all", "--reason", "a restore")
	contains(t, "part of what is paused", said(0, "resume", "configmap default/settings"),
		"configmap default/settings is still paused, by another pause: all until ", ", by n1: a restore")
	contains(t, "no pause of its own", said(3, "resume", settings), settings+" has no pause of its own, but is paused by another one: all until ", ", by n1: a restore")
	contains(t, "what has parts", said(0, "resume", "all"), "all is no longer paused, except for: "+other+" until ")
	contains(t, "no pause of a kind", said(3, "resume", "ConfigMap"), "ConfigMap has no pause of its own, but these are paused: "+other+" until ")
	if text := said(0, "resume", other); !strings.Contains(text, other+" is no longer paused\n") {
		t.Errorf("nothing covers it: %s", text)
	}
	said(0, "unforce", settings)
}
