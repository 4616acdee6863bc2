package test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/test/cluster"
	"github.com/ironherd/ironherd/test/process"
)

// A cluster goes from nothing to a release and on to the next one, with the real program on two
// nodes, a real API server and a real etcd. The test kills processes. An older release must never
// take over from a newer one, and an API server that may not serve yet must wait.
func TestReconcilerThroughAnUpgrade(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 5*time.Minute)
	r := startReconciled(ctx, t)

	old := r.start(ctx, "control-1", "v1.0.0")
	if code, _, stderr := r.run(ctx, "control-1", "v1.0.0", "wait-ready", "--register=false", "--timeout=60s"); code != 0 {
		t.Fatalf("wait-ready: exit code %d: %s", code, stderr)
	}
	r.await(ctx, "control-1", "v1.0.0")
	r.hasResources(ctx)
	if code, _, stderr := r.run(ctx, "control-1", "v1.0.1", "wait-ready", "--register=false", "--timeout=1s"); code != 7 {
		t.Errorf("an API server of another release than the registered one: exit code %d: %s", code, stderr)
	}

	next := r.start(ctx, "control-2", "v1.1.0")
	r.await(ctx, "control-2", "v1.1.0")
	next.Kill()
	r.awaitLook(ctx, "no leader, as the older release stands back", func(look reconciler.Overview) bool { return look.Leader == nil })
	if look := r.look(ctx); look.Status.Status.Version.String() != "v1.1.0" {
		t.Errorf("without its leader: %+v", look.Status)
	}
	next = r.start(ctx, "control-2", "v1.1.0")
	r.await(ctx, "control-2", "v1.1.0")
	if code, stdout, stderr := r.run(ctx, "control-2", "v1.1.0", "plan", "-o", "json"); code != 0 || !nothingToDo(t, stdout) {
		t.Errorf("plan: exit code %d: %s%s", code, stdout, stderr)
	}
	for _, p := range []*process.Process{next, old} {
		if err := p.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	if look := r.look(ctx); look.Leader != nil {
		t.Errorf("after an orderly end %+v leads", look.Leader)
	}
}

// A fault in a manifest, and an object that was there before, keep no API server waiting. What one
// node's directory does not have is not deleted while another node has it, and an emptied directory
// deletes nothing before a person says so.
func TestReconcilerKeepsWhatManifestsLose(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 5*time.Minute)
	r := startReconciled(ctx, t)
	r.create(ctx, "apis/node.k8s.io/v1/runtimeclasses", `{"apiVersion":"node.k8s.io/v1","kind":"RuntimeClass","metadata":{"name":"runc"},"handler":"theirs"}`)
	dirs := map[string]string{"control-1": t.TempDir(), "control-2": t.TempDir()}
	put := func(node, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dirs[node], name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	drop := func(node, name string) {
		t.Helper()
		if err := os.Remove(filepath.Join(dirs[node], name)); err != nil {
			t.Fatal(err)
		}
	}
	const typo = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: typo, namespace: default}\ndatum: {a: b}\n"
	configMap := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\n"
	}
	there := func(name string) bool {
		return r.get(ctx, "api/v1/namespaces/default/configmaps/"+name) == http.StatusOK
	}
	for node := range dirs {
		put(node, "typo.yaml", typo)
		put(node, "widget.yaml", "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w, namespace: default}\n")
		for _, name := range []string{"one", "two", "three"} {
			put(node, name+".yaml", configMap(name))
		}
	}
	drop("control-2", "three.yaml")
	start := func(node string) *process.Process {
		return r.start(ctx, node, "v1.0.0", "--manifests="+dirs[node], "--full-pass=500ms")
	}
	first := start("control-1")
	if code, _, stderr := r.run(ctx, "control-1", "v1.0.0", "wait-ready", "--register=false", "--timeout=60s"); code != 0 {
		t.Fatalf("an API server waits for what it does not need: exit code %d: %s", code, stderr)
	}
	failing := func(look reconciler.Overview, what string) bool {
		return look.Trouble != nil && !look.Trouble.Blocks && strings.Contains(fmt.Sprint(look.Trouble.Failures), what)
	}
	r.awaitLook(ctx, "status names what fails", func(look reconciler.Overview) bool {
		return failing(look, "ConfigMap default/typo") && failing(look, "Widget default/w") && failing(look, "RuntimeClass runc")
	})
	if !there("three") {
		t.Error("what is good in the manifests is not there")
	}
	r.until(ctx, "that kubectl shows it, too", func() bool {
		_, summary := r.exchange(ctx, http.MethodGet, "api/v1/namespaces/kube-system/configmaps/ironherd-reconciler-summary", "")
		_, events := r.exchange(ctx, http.MethodGet, "apis/events.k8s.io/v1/namespaces/default/events", "")
		for _, part := range []string{`"leader":"control-1"`, `"release":"v1.0.0"`, "ConfigMap default/typo", "RuntimeClass runc"} {
			if !strings.Contains(summary, part) {
				return false
			}
		}
		return strings.Contains(events, `"name":"typo"`) && strings.Contains(events, `"name":"runc"`)
	})

	// A failover to a node with fewer files.
	start("control-2")
	r.awaitLook(ctx, "both have said which manifests they have", func(look reconciler.Overview) bool {
		return len(look.Nodes) == 2 && look.Nodes[0].Source != nil && look.Nodes[1].Source != nil && look.Nodes[0].Source.Digest != look.Nodes[1].Source.Digest
	})
	first.Kill()
	for node := range dirs { // so that nothing but the kind's own failures could keep them
		drop(node, "typo.yaml")
	}
	r.awaitLook(ctx, "the other node leads and keeps what it does not know", func(look reconciler.Overview) bool {
		if r.get(ctx, "api/v1/namespaces/default/configmaps/three") == http.StatusNotFound {
			t.Fatal("a failover has deleted an object")
		}
		return look.Leader != nil && look.Leader.Name == "control-2" && failing(look, "not every node has the same manifests as control-2")
	})
	if !there("three") {
		t.Fatal("what the manifests of one node have is not there")
	}
	first = start("control-1") // it declares what it has now
	drop("control-1", "three.yaml")
	r.until(ctx, "that they agree", func() bool { return !there("three") })
	if !there("one") || !there("two") {
		t.Error("too much was deleted")
	}

	// The disk is gone everywhere.
	for node := range dirs {
		drop(node, "one.yaml")
		drop(node, "two.yaml")
		drop(node, "widget.yaml")
	}
	r.awaitLook(ctx, "an empty directory deletes nothing", func(look reconciler.Overview) bool { return failing(look, "2 of the 2 objects") })
	if !there("one") || !there("two") {
		t.Fatal("an emptied directory has deleted objects")
	}
	if code, stdout, stderr := r.run(ctx, "control-1", "v1.0.0", "status"); code != 0 || !strings.Contains(stdout, "no API server waits for it") {
		t.Errorf("status: exit code %d: %s%s", code, stdout, stderr)
	}
	digest := r.look(ctx).Nodes[1].Source.Digest
	if code, _, stderr := r.run(ctx, "control-1", "v1.0.0", "prune", "approve", digest, "--reason=they are gone for good"); code != 0 {
		t.Fatalf("prune approve: exit code %d: %s", code, stderr)
	}
	r.until(ctx, "that the word is followed", func() bool { return !there("one") && !there("two") })
	for _, p := range []string{"ironherd:kubelet-api", "ironherd:owner"} {
		if r.get(ctx, "apis/rbac.authorization.k8s.io/v1/clusterroles/"+p) != http.StatusOK {
			t.Errorf("%s is gone", p)
		}
	}
	_ = first.Stop(ctx) // the test's end would kill it
}

// reconciled is a cluster and the program that looks after it.
type reconciled struct {
	t          *testing.T
	cluster    *cluster.Cluster
	kubeconfig string
	program    string
	// own has the kubeconfig of a node with an API server of its own, and listen where its reconciler
	// listens.
	own, listen map[string]string
}

func startReconciled(ctx context.Context, t *testing.T, users ...cluster.User) *reconciled {
	t.Helper()
	r := &reconciled{t: t, program: reconcilerProgram, own: map[string]string{}, listen: map[string]string{}}
	var err error
	if r.cluster, err = cluster.Start(ctx, t.TempDir(), users...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.cluster.Close)
	if r.kubeconfig, err = r.cluster.Kubeconfig(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *reconciled) args(node, release string, args ...string) []string {
	return append([]string{
		args[0], "--node=" + node, "--release=" + release, "--min-api-server=v1.0.0", "--min-reconciler=v1.0.0", "--settle=200ms",
		"--election-ttl=3s", "--etcd-endpoints=http://" + r.cluster.EtcdEndpoint(), "--kubeconfig=" + cmp.Or(r.own[node], r.kubeconfig),
		"--listen=" + cmp.Or(r.listen[node], "127.0.0.1:0"), "--log-level=warn", "--built-in=all",
	}, args[1:]...)
}

func (r *reconciled) start(ctx context.Context, node, release string, more ...string) *process.Process {
	r.t.Helper()
	p, err := process.Start(ctx, r.program, append(r.args(node, release, "run"), more...)...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("%s says: %s", node, p.Stderr())
		}
	})
	return p
}

func (r *reconciled) run(ctx context.Context, node, release string, args ...string) (code int, stdout, stderr string) {
	return process.Run(ctx, r.program, r.args(node, release, args...)...)
}

func (r *reconciled) look(ctx context.Context) (look reconciler.Overview) {
	r.t.Helper()
	code, stdout, stderr := r.run(ctx, "control-1", "v1.0.0", "status", "-o", "json")
	for code == 7 && ctx.Err() == nil { // etcd did not answer in time
		code, stdout, stderr = r.run(ctx, "control-1", "v1.0.0", "status", "-o", "json")
	}
	if code != 0 {
		r.t.Fatalf("status: exit code %d: %s", code, stderr)
	}
	decode(r.t, stdout, &look)
	return look
}

// await waits until a node leads and has announced that everything is as its release wants it.
func (r *reconciled) await(ctx context.Context, node, release string) {
	r.t.Helper()
	r.awaitLook(ctx, node+" leads and "+release+" is done", func(look reconciler.Overview) bool {
		s := look.Status.Status
		return look.Leader != nil && look.Leader.Name == node && s.State == gate.Done && s.Version.String() == release
	})
}

func (r *reconciled) awaitLook(ctx context.Context, what string, is func(reconciler.Overview) bool) {
	r.t.Helper()
	for {
		look := r.look(ctx)
		if is(look) {
			return
		}
		letRun(ctx, 200*time.Millisecond)
		if ctx.Err() != nil {
			text, _ := json.Marshal(look) // was decoded from it
			r.t.Fatalf("waited for %s; it is %s", what, text)
		}
	}
}

// hasResources asks the API server itself.
func (r *reconciled) hasResources(ctx context.Context) {
	r.t.Helper()
	config := rest.CopyConfig(r.cluster.Config("admin"))
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, path := range []string{"apis/storage.k8s.io/v1/storageclasses", "apis/node.k8s.io/v1/runtimeclasses", "apis/storage.k8s.io/v1/csidrivers"} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/"+path, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			r.t.Fatal(err)
		}
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		err = json.NewDecoder(answer.Body).Decode(&list)
		_ = answer.Body.Close()
		if err != nil || len(list.Items) == 0 {
			r.t.Errorf("%s: %d items, %v", path, len(list.Items), err)
		}
	}
}

// send sends one request to the API server, and returns the status of its answer.
func (r *reconciled) send(ctx context.Context, method, path, body string) int {
	r.t.Helper()
	code, _ := r.exchange(ctx, method, path, body)
	return code
}

// exchange sends one request to the API server, and returns its answer.
func (r *reconciled) exchange(ctx context.Context, method, path, body string) (code int, said string) {
	r.t.Helper()
	config := rest.CopyConfig(r.cluster.Config("admin"))
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, config.Host+"/"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	answer, err := client.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func (r *reconciled) get(ctx context.Context, path string) int {
	return r.send(ctx, http.MethodGet, path, "")
}

func (r *reconciled) create(ctx context.Context, path, body string) {
	r.t.Helper()
	if code := r.send(ctx, http.MethodPost, path, body); code != http.StatusCreated {
		r.t.Fatalf("%s: %d", path, code)
	}
}

func nothingToDo(t *testing.T, text string) bool {
	t.Helper()
	var diff reconciler.Diff
	decode(t, text, &diff)
	if diff.Objects == 0 || slices.ContainsFunc(diff.Changes, func(c reconciler.Change) bool { return c.Object != "" }) {
		t.Log(fmt.Sprint(diff.Changes))
		return false
	}
	return true
}

// second gives control-2 an API server of its own, and both nodes an address to be asked at.
func (r *reconciled) second(ctx context.Context) *cluster.APIServer {
	r.t.Helper()
	server, err := r.cluster.Another(ctx, "second")
	if err != nil {
		r.t.Fatal(err)
	}
	if r.own["control-2"], err = server.Kubeconfig(); err != nil {
		r.t.Fatal(err)
	}
	for _, node := range []string{"control-1", "control-2"} {
		r.listen[node] = freeAddress(r.t)
	}
	return server
}

// ask asks a reconciler.
func (r *reconciled) ask(ctx context.Context, node, path string) (code int, said string) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.listen[node]+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body) // what there is is shown
	return answer.StatusCode, string(text)
}

// Two nodes, each with an API server of its own. That of the leader is stopped without ending: it
// takes connections and does not answer. The leader must hand over, and what people change must be
// repaired by way of the other API server.
func TestReconcilerAPIServerHangs(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 5*time.Minute)
	r := startReconciled(ctx, t)
	second := r.second(ctx)
	r.start(ctx, "control-1", "v1.0.0")
	r.await(ctx, "control-1", "v1.0.0")
	r.start(ctx, "control-2", "v1.0.0")
	if code, _, stderr := r.run(ctx, "control-1", "v1.0.0", "node", "register"); code != 0 {
		t.Fatal(stderr)
	}
	for _, node := range []string{"control-1", "control-2"} {
		r.until(ctx, node+" may serve", func() bool { code, _ := r.ask(ctx, node, "/servez"); return code == http.StatusOK })
	}
	if err := r.cluster.PauseAPIServer(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.until(ctx, "control-2 leads", func() bool {
		look := r.look(ctx)
		return look.Leader != nil && look.Leader.Name == "control-2"
	})
	took := time.Since(began)
	t.Logf("the leader whose API server hangs handed over after %v", took.Round(10*time.Millisecond))
	if took > 30*time.Second { // the TTL is 3 s; the rest is for a busy machine
		t.Error("that is too long")
	}
	for _, path := range []string{"/servez", "/healthz"} {
		r.until(ctx, path+" of the node whose API server hangs says so", func() bool {
			code, said := r.ask(ctx, "control-1", path)
			return code == http.StatusServiceUnavailable && strings.Contains(said, "does not answer")
		})
	}
	r.until(ctx, "the other may serve", func() bool { code, _ := r.ask(ctx, "control-2", "/servez"); return code == http.StatusOK })
	there := func() bool {
		return r.status(ctx, second, http.MethodGet, "/apis/rbac.authorization.k8s.io/v1/clusterroles/ironherd:kubelet-api") == http.StatusOK
	}
	if code := r.status(ctx, second, http.MethodDelete, "/apis/rbac.authorization.k8s.io/v1/clusterroles/ironherd:kubelet-api"); code != http.StatusOK {
		t.Fatalf("delete: %d", code)
	}
	r.until(ctx, "it is repaired", there)
	if err := r.cluster.ResumeAPIServer(); err != nil {
		t.Fatal(err)
	}
	r.until(ctx, "all is well", func() bool { code, _ := r.ask(ctx, "control-1", "/healthz"); return code == http.StatusOK })
	r.until(ctx, "it may serve", func() bool { code, _ := r.ask(ctx, "control-1", "/servez"); return code == http.StatusOK })
}

// until asks until something is so.
func (r *reconciled) until(ctx context.Context, what string, so func() bool) {
	r.t.Helper()
	for !so() {
		letRun(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			r.t.Fatalf("waited for: %s", what)
		}
	}
}

// status sends a request to an API server and returns the status code.
func (r *reconciled) status(ctx context.Context, server *cluster.APIServer, method, path string) int {
	r.t.Helper()
	config := server.Config("")
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, config.Host+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}
