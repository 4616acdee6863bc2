package health_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/ironherd/ironherd/internal/reconciler/resources/health"
)

func judge(tb testing.TB) *health.Judge {
	tb.Helper()
	j, err := health.NewJudge()
	if err != nil {
		tb.Fatal(err)
	}
	return j
}

func live(tb testing.TB, text string) *unstructured.Unstructured {
	tb.Helper()
	o := &unstructured.Unstructured{}
	decoded, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = json.Unmarshal(decoded, &o.Object) // numbers as a client of Kubernetes has them
	}
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: default, generation: 2}, spec: {replicas: 2}, `

// TestAsk: by the status that controllers write, or by the expression of the manifest alone.
func TestAsk(t *testing.T) {
	t.Parallel()
	j := judge(t)
	const widget = `{apiVersion: example.org/v1, kind: Widget, metadata: {name: w, namespace: default}, `
	for _, c := range []struct{ what, object, expression, reason string }{
		{"no status at all", `{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: default}}`, "", ""},
		{"a new deployment", deployment + `status: {}}`, "", "in progress: "},
		{"one that was not seen yet", deployment + `status: {observedGeneration: 1, replicas: 2, availableReplicas: 2}}`, "", "in progress: Deployment generation is 2, but latest observed generation is 1"},
		{
			"one that is there", deployment + `status: {observedGeneration: 2, replicas: 2, updatedReplicas: 2, readyReplicas: 2, availableReplicas: 2,
			conditions: [{type: Available, status: "True"}, {type: Progressing, status: "True", reason: NewReplicaSetAvailable}]}}`, "", "",
		},
		{"one that is stuck", deployment + `status: {observedGeneration: 2, conditions: [{type: Progressing, status: "False", reason: ProgressDeadlineExceeded}]}}`, "", "failed: "},
		{"ready", widget + `status: {conditions: [{type: Ready, status: "True"}]}}`, "", ""},
		{"not ready", widget + `status: {conditions: [{type: Ready, status: "False", message: "no\nwater"}]}}`, "", "in progress: no water"},
		{"stalled", widget + `status: {conditions: [{type: Stalled, status: "True", message: why}]}}`, "", "failed: why"},
		{"being deleted", `{apiVersion: v1, kind: ConfigMap, metadata: {name: c, deletionTimestamp: "2026-01-01T00:00:00Z"}}`, "true", "it is being deleted"},
		{"an expression is so", widget + `status: {phase: Running}}`, `self.status.phase == "Running"`, ""},
		{"it is what counts", widget + `status: {phase: Running, conditions: [{type: Ready, status: "False"}]}}`, `self.status.phase == "Running"`, ""},
		{"it is not so", widget + `status: {phase: Failed}}`, `self.status.phase == "Running"`, `it is not so that self.status.phase == "Running"`},
		{"nothing there yet", widget + `spec: {}}`, `self.status.phase == "Running"`, "its expression cannot be evaluated: no such key: status"},
		{"an optional field", widget + `spec: {}}`, `self.?status.?phase.orValue("") == "Running"`, "it is not so that "},
		{"no verdict", widget + `status: {phase: 7}}`, `self.status.phase`, "its expression is neither true nor false"},
		{"numbers", widget + `status: {ready: 2}, spec: {want: 2}}`, `self.status.ready >= self.spec.want`, ""},
		{"too dear", widget + `items: [` + strings.Repeat("1,", 400) + `1]}`, `self.items.all(a, self.items.all(b, self.items.all(c, a == b || b == c || true)))`, "its expression cannot be evaluated: "},
		{"a secret stays one", `{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {x: aHVzaA==}}`, `int(self.data.x) > 1`, "its expression cannot be evaluated; why is not said"},
	} {
		v := j.Ask(t.Context(), live(t, c.object), c.expression)
		if v.OK != (c.reason == "") || !strings.HasPrefix(v.Reason, c.reason) || strings.Contains(v.Reason, "hush") || strings.Contains(v.Reason, "aHVz") {
			t.Errorf("%s: %+v, want %q", c.what, v, c.reason)
		}
	}
}

// TestCheck: an expression that can never be one is refused with a sentence.
func TestCheck(t *testing.T) {
	t.Parallel()
	j := judge(t)
	for expression, want := range map[string]string{
		"":                       "",
		"self.status.ready":      "",
		"self.status.ready == 1": "",
		"self.status.ready ==":   "is no expression in CEL: ERROR: ",
		"this.status.ready":      "undeclared reference to 'this'",
		`"yes"`:                  "must be true or false, and is of type string",
		strings.Repeat("self.a||", 1000) + "true": "is longer than 4096 bytes",
		strings.Repeat("(", 1000):                 "is no expression in CEL",
	} {
		for range 2 { // what is remembered is the same
			err := j.Check(expression)
			if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%.40q: %v, want %q", expression, err, want)
			}
		}
	}
}

// TestAnything: whatever an object looks like, there is an answer in one line.
func TestAnything(t *testing.T) {
	t.Parallel()
	j := judge(t)
	kinds := []string{
		"apps/v1 Deployment", "apps/v1 StatefulSet", "apps/v1 DaemonSet", "apps/v1 ReplicaSet", "batch/v1 Job", "batch/v1 CronJob", "v1 Pod", "v1 Service",
		"v1 PersistentVolumeClaim", "policy/v1 PodDisruptionBudget", "apiextensions.k8s.io/v1 CustomResourceDefinition", "example.org/v1 Widget",
	}
	fields := []string{"status", "spec", "metadata", "conditions", "type", "replicas", "observedGeneration", "generation", "phase", "reason", "message", "containerStatuses"}
	words := []string{"Ready", "True", "False", "Stalled", "Established", "Available", "Progressing", "Running", "Complete"}
	var value func(*rapid.T, int) any
	value = func(t *rapid.T, depth int) any {
		n := rapid.IntRange(0, 6).Draw(t, "shape")
		switch {
		case n < 2 && depth < 5:
			m := map[string]any{}
			for range rapid.IntRange(0, 4).Draw(t, "fields") {
				m[rapid.SampledFrom(fields).Draw(t, "field")] = value(t, depth+1)
			}
			return m
		case n == 2 && depth < 5:
			var list []any
			for range rapid.IntRange(0, 3).Draw(t, "items") {
				list = append(list, value(t, depth+1))
			}
			return list
		case n == 3:
			return rapid.Int64Range(-2, 3).Draw(t, "number")
		case n == 4:
			return nil
		case n == 5:
			return rapid.Bool().Draw(t, "flag")
		}
		return rapid.SampledFrom(words).Draw(t, "word")
	}
	rapid.Check(t, func(t *rapid.T) {
		version, kind, _ := strings.Cut(rapid.SampledFrom(kinds).Draw(t, "kind"), " ")
		content := map[string]any{"apiVersion": version, "kind": kind, "status": value(t, 0), "spec": value(t, 0), "metadata": map[string]any{"name": "x"}}
		for _, expression := range []string{"", "self.status.phase == self.spec.phase"} {
			v := j.Ask(t.Context(), &unstructured.Unstructured{Object: content}, expression)
			if v.OK == (v.Reason != "") || len(v.Reason) > health.MaxReason || strings.ContainsAny(v.Reason, "\n\x1b") {
				t.Fatalf("%v: %+v", content, v)
			}
		}
	})
}
