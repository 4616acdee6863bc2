package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/internal/reconciler"
	"github.com/ironherd/ironherd/internal/reconciler/gate"
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

// reconciled is a cluster and the program that looks after it.
type reconciled struct {
	t          *testing.T
	cluster    *cluster.Cluster
	kubeconfig string
	program    string
}

func startReconciled(ctx context.Context, t *testing.T) *reconciled {
	t.Helper()
	r := &reconciled{t: t, program: filepath.Join(t.TempDir(), "ironherd-reconciler")}
	build := exec.CommandContext(ctx, "go", "build", "-o", r.program, "github.com/ironherd/ironherd/cmd/ironherd-reconciler")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	var err error
	if r.cluster, err = cluster.Start(ctx, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.cluster.Close)
	if r.kubeconfig, err = r.cluster.Kubeconfig(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *reconciled) args(node, release string, args ...string) []string {
	return append(args, "--node="+node, "--release="+release, "--min-api-server=v1.0.0", "--min-reconciler=v1.0.0", "--settle=200ms",
		"--election-ttl=3s", "--etcd-endpoints=http://"+r.cluster.EtcdEndpoint(), "--kubeconfig="+r.kubeconfig, "--listen=127.0.0.1:0",
		"--log-level=warn")
}

func (r *reconciled) start(ctx context.Context, node, release string) *process.Process {
	r.t.Helper()
	p, err := process.Start(ctx, r.program, r.args(node, release, "run")...)
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
