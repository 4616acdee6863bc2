package command_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/test/cluster"
)

// TestApproveOwn: this node's own manifests can be approved before its record says that it has
// them.
func TestApproveOwn(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	dir := filepath.Join(t.TempDir(), "a directory")
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: default}\n"
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	own, err := resources.Source(t.Context(), resources.Options{Manifests: dir})
	if err != nil {
		t.Fatal(err)
	}
	_, said := p.run(3, "prune", "approve", own.Digest, "--reason", "x")
	contains(t, "without the manifests", said, "no node has the manifests "+own.Digest)
	p.run(0, "prune", "approve", own.Digest, "--manifests", dir, "--reason", "x")
}

// TestApproveTellsTheLeader: an approval of manifests that the leader does not have is stored, and
// said to do nothing; so is that another one ends with it. What this node has counts before its
// record says so.
func TestApproveTellsTheLeader(t *testing.T) {
	t.Parallel()
	p := newProgram(t)
	record := func(name, source string) {
		p.put(p.layout().Node(name), `{"roles":["kubernetes-controller"],"release":"v0.1.0","source":`+source+`}`)
	}
	record("n1", `{"digest":"d1","objects":7}`)
	record("n2", `{"digest":"d2","objects":7}`)
	p.put(p.layout().Election()+"candidates/1", `{"name":"n2"}`)
	approve := func(digest string, more ...string) string {
		t.Helper()
		_, said := p.run(0, append([]string{"prune", "approve", digest, "--reason", "gone for good"}, more...)...)
		return said
	}
	silent := func(what, said string) {
		t.Helper()
		if strings.Contains(said, "leader") || strings.Contains(said, "no longer approved") {
			t.Errorf("%s: %s", what, said)
		}
	}
	said := approve("d1")
	contains(t, "another leader", said, "the manifests d1 are approved",
		"by its record the leader n2 has other manifests (d2), and deletes nothing by this approval while it leads with them")
	if strings.Contains(said, "no longer approved") {
		t.Errorf("the first one takes the place of another: %s", said)
	}
	contains(t, "another approval", approve("d2"), "the manifests d1, which n1 had approved until ", "are no longer approved")
	silent("the same again", approve("d2"))
	record("n2", `{"digest":"d2","objects":6,"faults":1}`)
	contains(t, "a leader that cannot read all", approve("d2"), "the leader n2 cannot read all of its manifests")
	record("n2", `null`)
	contains(t, "a leader that has not said", approve("d1"), "the leader n2 has not said which manifests it has")

	p.put(p.layout().Election()+"candidates/1", `{"name":"n1"}`)
	dir := t.TempDir()
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: default}\n"
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := resources.Source(t.Context(), resources.Options{Manifests: dir})
	if err != nil {
		t.Fatal(err)
	}
	p.run(0, "prune", "withdraw")
	silent("this node leads, and has them", approve(own.Digest, "--manifests", dir, "--node", "n1"))
	if err := os.WriteFile(filepath.Join(dir, "b.yaml"), []byte(": this is not YAML\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	record("n1", `{"digest":"`+own.Digest+`","objects":1,"faults":1}`)
	contains(t, "this node leads, and cannot read all", approve(own.Digest, "--manifests", dir, "--node", "n1"), "the leader n1 cannot read all of its manifests")
}

// TestPlanThenApprove goes the way that a person goes when the manifests have lost most of what was
// in them: the plan shows what is held back and with which command it is approved; after that it
// shows the same as what would be deleted.
func TestPlanThenApprove(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	api, err := cluster.Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	client, err := dynamic.NewForConfig(api.Config(""))
	if err != nil {
		t.Fatal(err)
	}
	configMaps := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
	manifests := t.TempDir()
	write := func(names ...string) {
		t.Helper()
		var text strings.Builder
		for _, name := range names {
			fmt.Fprintf(&text, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default}\n---\n", name)
		}
		if err := os.WriteFile(filepath.Join(manifests, "all.yaml"), []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, so func() bool) {
		t.Helper()
		for !so() {
			select {
			case <-ctx.Done():
				t.Fatalf("%s did not come", what)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	kubeconfig, err := api.Kubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	p := newProgram(t)
	p.env = append(p.env, "IRONHERD_RECONCILER_NODE=n1", "IRONHERD_RECONCILER_KUBECONFIG="+kubeconfig, "IRONHERD_RECONCILER_MANIFESTS="+manifests,
		"IRONHERD_RECONCILER_BUILT_IN=none", "IRONHERD_RECONCILER_FULL_PASS=200ms", "IRONHERD_RECONCILER_LISTEN=127.0.0.1:0")
	write("one", "two", "three")
	serving, stop := context.WithCancel(ctx)
	defer stop()
	_, stderr, code := p.start(serving, "run")
	await("what is wanted", func() bool {
		_, err := configMaps.Get(ctx, "three", metav1.GetOptions{})
		return err == nil
	})
	passed := func(failed, blocks string) func() bool {
		return func() bool {
			_, body := get(t, listens(stderr.String()), "/metrics")
			return strings.Contains(body, "ironherd_reconciler_last_pass_failed "+failed) &&
				strings.Contains(body, "ironherd_reconciler_last_pass_blocks "+blocks)
		}
	}
	await("a pass that finds everything", passed("0", "0"))
	write("one")
	await("a pass that fails, and keeps nobody waiting", passed("1", "0"))
	held := regexp.MustCompile(`(?s)held back: prune ConfigMap default/two: 2 of the 3 objects.*held back: prune ConfigMap default/three|` +
		`(?s)held back: prune ConfigMap default/three: 2 of the 3 objects.*held back: prune ConfigMap default/two`)
	said, _ := p.run(6, "plan", "--log-level", "error")
	if !held.MatchString(said) {
		t.Fatalf("the plan does not show what is held back:\n%s", said)
	}
	contains(t, "plan", said, "0 objects would change; 1 are wanted; 2 changes are held back; 1 failures")
	approve := regexp.MustCompile(`ironherd-reconciler (prune approve \S+ --log-level error) --reason WHY\n`).FindStringSubmatch(said)
	if approve == nil {
		t.Fatalf("the plan does not say how to approve it:\n%s", said)
	}
	stop()
	code()
	p.run(0, append(strings.Fields(approve[1]), "--reason", "they are gone for good")...)
	said, _ = p.run(0, "plan")
	contains(t, "after the approval", said, "prune ConfigMap default/two\n", "prune ConfigMap default/three\n", "2 objects would change; 1 are wanted\n")
	if strings.Contains(said, "held back") {
		t.Errorf("after the approval something is held back:\n%s", said)
	}
	said, _ = p.run(6, "plan", "--without-etcd")
	if !held.MatchString(said) {
		t.Errorf("without etcd nobody knows of the approval:\n%s", said)
	}
	contains(t, "without etcd", said, "if these manifests are what you want, and etcd, which was not asked, does not say so already: ironherd-reconciler prune approve ")
	if _, err := configMaps.Get(ctx, "two", metav1.GetOptions{}); err != nil {
		t.Errorf("a plan has deleted it: %v", err)
	}
}
