package test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestReconcilerOverrides: what a person pauses is left alone, and nothing else is; what the
// reconciler does not keep cannot be paused; what was paused is repaired when the pause ends, and
// what is forced is taken at once, however far the next full pass is. The
// program, etcd and the API server are real.
func TestReconcilerOverrides(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 5*time.Minute)
	r := startReconciled(ctx, t)
	dir := t.TempDir()
	const path = "api/v1/namespaces/default/configmaps"
	configMap := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\ndata: {a: b}\n"
	}
	for _, name := range []string{"settings", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(configMap(name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	there := func(name string) bool { return r.get(ctx, path+"/"+name) == http.StatusOK }
	remove := func(name string) {
		t.Helper()
		if code := r.send(ctx, http.MethodDelete, path+"/"+name, ""); code != http.StatusOK {
			t.Fatalf("delete %s: %d", name, code)
		}
	}
	say := func(want int, words ...string) string {
		t.Helper()
		code, _, stderr := r.run(ctx, "control-1", "v1.0.0", append(words, "--manifests="+dir)...)
		if code != want {
			t.Errorf("%s: exit code %d, want %d: %s", strings.Join(words, " "), code, want, stderr)
		}
		return stderr
	}
	r.start(ctx, "control-1", "v1.0.0", "--manifests="+dir, "--full-pass=1h")
	r.until(ctx, "that the manifests are there", func() bool { return there("settings") && there("other") })

	for scope, why := range map[string]string{
		"ConfigMap default/setings": "the reconciler keeps no ConfigMap default/setings: of that kind it keeps ConfigMap default/other, ConfigMap default/settings",
		"ConfigMap settings":        "the reconciler keeps no ConfigMap settings: of that kind it keeps",
		"Deployment default/web":    "name one of the kinds that it keeps, which are CSIDriver, ClusterRole, ClusterRoleBinding, ConfigMap,",
		"configmaps":                "the reconciler keeps no configmaps: name one of the kinds that it keeps",
		"ConfigMap.apps":            "the reconciler keeps no ConfigMap.apps",
	} {
		if said := say(3, "pause", scope, "--reason=a slip"); !strings.Contains(said, why) {
			t.Errorf("pause %s: %s", scope, said)
		}
	}
	say(2, "pause", "ConfigMap/default/settings", "--reason=a slip")
	if look := r.look(ctx); len(look.Overrides) != 0 {
		t.Errorf("a slip is stored: %v", look.Overrides)
	}

	if said := say(0, "pause", "configmap default/settings", "--reason=an incident"); !strings.Contains(said, "ConfigMap default/settings is paused for 1h0m0s") {
		t.Errorf("pause: %s", said)
	}
	if look := r.look(ctx); len(look.Overrides) != 1 || look.Overrides[0].Scope != "ConfigMap default/settings" {
		t.Errorf("a leader of a release that knows no lower case would not keep to it: %v", look.Overrides)
	}
	remove("settings")
	remove("other")
	r.until(ctx, "that what is not paused is repaired", func() bool { return there("other") })
	if there("settings") {
		t.Error("what is paused is repaired")
	}
	say(0, "resume", "ConfigMap default/settings")
	r.until(ctx, "that it is repaired after the pause", func() bool { return there("settings") })

	declared := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":"theirs"}}`
	if code := r.send(ctx, http.MethodPatch, path+"/settings?fieldManager=gitops&force=true", declared); code != http.StatusOK {
		t.Fatalf("declare a field: %d", code)
	}
	r.until(ctx, "that another manager is in the way", func() bool {
		trouble := r.look(ctx).Trouble
		return trouble != nil && strings.Contains(fmt.Sprint(trouble.Failures), `conflict with "gitops"`)
	})
	say(0, "force", "configmap default/settings", "--reason=an incident")
	r.until(ctx, "that nobody is in the way any more", func() bool { return r.look(ctx).Trouble == nil })
	say(0, "unforce", "ConfigMap default/settings")

	say(0, "pause", "All", "--reason=a backup is restored", "--for=10s")
	remove("other")
	r.until(ctx, "that a pause which nobody ends, ends, and the rest follows", func() bool { return there("other") })
	if look := r.look(ctx); len(look.Overrides) != 0 {
		t.Errorf("it is repaired, and yet there is a pause: %v", look.Overrides)
	}
}
