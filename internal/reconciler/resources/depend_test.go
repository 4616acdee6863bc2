package resources

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// after is a manifest of a ConfigMap that depends on others.
func after(name string, on ...string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default, annotations: {ironherd.dev/depends-on: %q}}\n---\n",
		name, strings.Join(on, ", "))
}

// faults returns what is wrong with manifests, by object, and what is wanted.
func faults(t *testing.T, manifests string) (map[string]string, *wanted) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := New(&rest.Config{Host: "https://192.0.2.11:6443"}, Options{Manifests: dir, Settled: -1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	found := map[string]string{}
	for _, f := range a.Faults(t.Context()) {
		name, _, _ := strings.Cut(f.Object, " (")
		found[name] = f.Reason
	}
	return found, a.want(t.Context())
}

// TestImpossibleDependencies: what can never be applied is refused with a sentence, and stays
// wanted, so that it is not deleted; everything else is not touched by it.
func TestImpossibleDependencies(t *testing.T) {
	t.Parallel()
	const service = "apiVersion: %s\nkind: Service\nmetadata: {name: s, namespace: default}\n---\n"
	found, want := faults(t, after("alone")+
		after("itself", "ConfigMap default/itself")+
		after("a", "ConfigMap default/b")+after("b", "ConfigMap default/c")+after("c", "ConfigMap default/a")+
		after("behind", "ConfigMap default/a")+
		after("nowhere", "ConfigMap default/typo")+
		after("several", "Service default/s")+after("one", "Service.serving.knative.dev default/s")+
		fmt.Sprintf(service, "serving.knative.dev/v1")+fmt.Sprintf(service, "example.org/v1"))
	const cycle = "it depends on itself: ConfigMap default/a → ConfigMap default/b → ConfigMap default/c → ConfigMap default/a"
	for object, reason := range map[string]string{
		"ConfigMap default/itself":  "it depends on itself: ConfigMap default/itself → ConfigMap default/itself",
		"ConfigMap default/a":       cycle,
		"ConfigMap default/b":       cycle,
		"ConfigMap default/c":       cycle,
		"ConfigMap default/nowhere": "it depends on ConfigMap default/typo, which is not among what is wanted",
		"ConfigMap default/several": "it depends on Service default/s, and there are several: write the group, as in Service.example.org",
	} {
		if got := found[object]; got != reason {
			t.Errorf("%s: %q, want %q", object, got, reason)
		}
		delete(found, object)
	}
	if len(found) > 0 {
		t.Errorf("also refused: %v", found)
	}
	if len(want.of(false)) != 11 {
		t.Errorf("%d objects are wanted", len(want.of(false)))
	}
}

// TestLevels: an object's level is above those of everything that it depends on.
func TestLevels(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	const n = 3000
	for i := range n {
		on := []string{}
		if i > 0 {
			on = append(on, fmt.Sprintf("ConfigMap default/c%d", i-1))
		}
		if i > 10 {
			on = append(on, fmt.Sprintf("ConfigMap default/c%d", i/2))
		}
		text.WriteString(after(fmt.Sprintf("c%d", i), on...))
	}
	found, want := faults(t, text.String())
	if len(found) > 0 {
		t.Fatal(found)
	}
	for _, o := range want.of(false) {
		if level := want.dependencies.level[o.Key]; fmt.Sprintf("c%d", level) != o.Name {
			t.Fatalf("%s has level %d", o.Name, level)
		}
	}
}

// TestOurAnnotations: what is wrong in an annotation of ours is told with the annotation.
func TestOurAnnotations(t *testing.T) {
	t.Parallel()
	for annotation, reason := range map[string]string{
		`ironherd.dev/depends-on: "default/db"`:                 `the annotation ironherd.dev/depends-on: "default/db" names no object: write Deployment default/db, or ClusterRole reader`,
		`ironherd.dev/depends-on: [a]`:                          `the annotation ironherd.dev/depends-on must be text: quote it`,
		`ironherd.dev/ignore-fields: "spec.replicas"`:           `the annotation ironherd.dev/ignore-fields: "spec.replicas" is no field: it begins with a dot, as .spec.replicas does`,
		`ironherd.dev/ignore-fields: ".metadata.name"`:          `the annotation ironherd.dev/ignore-fields: .metadata.name cannot be ignored`,
		`ironherd.dev/healthy-when: "self.data.ready =="`:       `the annotation ironherd.dev/healthy-when is no expression in CEL: `,
		`ironherd.dev/healthy-when: "\"yes\""`:                  `the annotation ironherd.dev/healthy-when must be true or false, and is of type string`,
		`ironherd.dev/healthy-when: true`:                       `the annotation ironherd.dev/healthy-when must be text: quote it`,
		`ironherd.dev/healthy-when: "self.data.ready == \"y\""`: "",
		`ironherd.dev/ignore-fields: ".data[\"a.b\"], .data.c"`: "",
	} {
		found, want := faults(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: default, annotations: {"+annotation+"}}\n")
		all := ""
		for _, f := range found {
			all += f
		}
		if (reason == "") != (all == "") || !strings.Contains(all, reason) {
			t.Errorf("%s: %q, want %q", annotation, all, reason)
		}
		// A fault in an expression does not keep the object from being applied.
		if expression := strings.Contains(reason, "healthy-when") && !strings.Contains(reason, "quote"); expression && len(want.of(false)) != 1 {
			t.Errorf("%s: the object is not wanted", annotation)
		}
	}
}
