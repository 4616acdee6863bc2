package resources_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/node"
	"github.com/ironherd/ironherd/test/cluster"
)

// patience is how long anything may take before a test gives up; nothing waits for it to pass.
const patience = 3 * time.Minute

// shared is one API server for all tests: two at a time would only make each other slow. Whoever
// has the lock has it alone.
var shared struct {
	sync.Mutex
	cluster *cluster.Cluster
	dir     string
	err     error
}

func TestMain(m *testing.M) {
	shared.dir, shared.err = os.MkdirTemp("", "ironherd-resources-")
	code := m.Run()
	if shared.cluster != nil {
		shared.cluster.Close()
	}
	_ = os.RemoveAll(shared.dir)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// users have tokens of their own, named like them.
func users() []cluster.User {
	return []cluster.User{
		{Name: builtin.APIServer},
		{Name: builtin.Provisioner},
		{Name: builtin.Network},
		{Name: "node-1", Groups: []string{builtin.Network}},
		{Name: "alice", Groups: []string{builtin.Owners}},
		{Name: "mallory"},
		{Name: "ironherd:reconciler"},
	}
}

// world is an API server on which there is nothing of ours, and somebody who may do everything
// there.
type world struct {
	*testing.T
	cluster   *cluster.Cluster
	client    dynamic.Interface
	manifests string
	// approving tells that a person has approved whatever is in the manifests.
	approving bool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	shared.Lock()
	t.Cleanup(shared.Unlock)
	if shared.cluster == nil && shared.err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 14*time.Minute)
		defer cancel()
		shared.cluster, shared.err = cluster.Start(ctx, shared.dir, users()...)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	w := &world{T: t, cluster: shared.cluster, manifests: t.TempDir()}
	client := w.http(w.cluster.Config(""))
	var err error
	if w.client, err = dynamic.NewForConfigAndClient(quick(w.cluster.Config("")), client); err != nil {
		t.Fatal(err)
	}
	w.clean()
	return w
}

// http is a client whose connections end with the test.
func (w *world) http(c *rest.Config) *http.Client {
	w.Helper()
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(client.CloseIdleConnections)
	return client
}

func quick(c *rest.Config) *rest.Config {
	c.QPS = -1
	c.WarningHandlerWithContext = rest.NoWarnings{}
	return c
}

// The resources that tests use.
var (
	clusterRoles  = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	bindings      = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
	classes       = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}
	drivers       = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}
	runtimes      = schema.GroupVersionResource{Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"}
	configMaps    = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces    = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	definitions   = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	secrets       = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	deployments   = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	accounts      = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	roles         = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}
	roleBindings  = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}
	apiServices   = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	services      = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	builtInKinds  = []schema.GroupVersionResource{clusterRoles, bindings, classes, drivers, runtimes}
	everyResource = append(builtInKinds[:len(builtInKinds):len(builtInKinds)],
		definitions, configMaps, secrets, deployments, accounts, roles, roleBindings, services)
)

// clean removes whatever earlier tests have left.
func (w *world) clean() {
	w.Helper()
	for _, r := range everyResource {
		list, err := w.client.Resource(r).List(w.Context(), metav1.ListOptions{LabelSelector: object.Label})
		if err != nil {
			w.Fatal(err)
		}
		for _, o := range list.Items {
			if len(o.GetFinalizers()) > 0 && r != definitions {
				w.patch(r, o.GetNamespace(), o.GetName(), `{"metadata":{"finalizers":null}}`)
			}
			w.remove(r, o.GetNamespace(), o.GetName())
		}
	}
	w.await("a clean start", func() bool {
		list, err := w.client.Resource(definitions).List(w.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
}

// in is the client for a resource in a namespace; the empty one is none.
func (w *world) in(r schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return w.client.Resource(r)
	}
	return w.client.Resource(r).Namespace(namespace)
}

func (w *world) get(r schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	w.Helper()
	o, err := w.in(r, namespace).Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return o
}

func (w *world) there(r schema.GroupVersionResource, namespace, name string) bool {
	w.Helper()
	_, err := w.in(r, namespace).Get(w.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	return err == nil
}

// create creates what a manifest says, as somebody else.
func (w *world) create(r schema.GroupVersionResource, manifest string) *unstructured.Unstructured {
	w.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &o.Object); err != nil {
		w.Fatal(err)
	}
	made, err := w.in(r, o.GetNamespace()).Create(w.Context(), o, metav1.CreateOptions{FieldManager: "somebody"})
	if err != nil {
		w.Fatal(err)
	}
	return made
}

// patch is an edit by somebody else.
func (w *world) patch(r schema.GroupVersionResource, namespace, name, patch string) {
	w.Helper()
	kind := types.MergePatchType
	if strings.HasPrefix(patch, "[") {
		kind = types.JSONPatchType
	}
	if _, err := w.in(r, namespace).Patch(w.Context(), name, kind, []byte(patch), metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		w.Fatalf("%s %s: %v", r.Resource, name, err)
	}
}

func (w *world) remove(r schema.GroupVersionResource, namespace, name string) {
	w.Helper()
	if err := w.in(r, namespace).Delete(w.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
}

// removeAfter removes an object when the test has ended.
func (w *world) removeAfter(r schema.GroupVersionResource, name string) {
	w.Helper()
	if err := w.client.Resource(r).Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.Error(err)
	}
}

// write writes a file of manifests; an empty text removes it.
func (w *world) write(name, text string) {
	w.Helper()
	path := filepath.Join(w.manifests, name)
	if text == "" {
		if err := os.Remove(path); err != nil {
			w.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

// await asks until something is so.
func (w *world) await(what string, so func() bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !so() {
		select {
		case <-ctx.Done():
			w.Fatalf("%s did not come", what)
		case <-ticker.C:
		}
	}
}

// soon is await of what passes do within the first few hundred, if they do it at all.
func (w *world) soon(what string, so func() bool) {
	w.Helper()
	tries := 0
	w.await(what, func() bool {
		if tries++; tries > 300 {
			w.Fatalf("%s does not come", what)
		}
		return so()
	})
}

// applier is one of ours that runs until the test ends, or until stop.
type applier struct {
	*world
	*resources.Applier
	stop func()
}

// start starts one with the manifests of the world, and with every part of the release unless the
// options choose.
func (w *world) start(o resources.Options) *applier {
	w.Helper()
	return w.startWith(w.cluster.Config(""), o)
}

func (w *world) startWith(c *rest.Config, o resources.Options) *applier {
	w.Helper()
	if o.Manifests == "" {
		o.Manifests = w.manifests
	}
	if o.Absence == 0 {
		o.Absence = time.Nanosecond
	}
	if o.Settled == 0 {
		o.Settled = -1
	}
	if o.BuiltIn == nil && o.Selection.Names == nil {
		o.Selection = everything()
	}
	log := slog.New(slog.NewTextHandler(testWriter{w.T}, nil))
	a, err := resources.New(c, o, log)
	if err != nil {
		w.Fatal(err)
	}
	if w.approving {
		a.AskConsent(approve)
	}
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
		a.Close()
	})
	w.Cleanup(stop)
	return &applier{world: w, Applier: a, stop: stop}
}

// approve says, as a person would, that whatever is no longer in the manifests is to be deleted.
func approve(context.Context, node.Source) (reconciler.Consent, error) {
	return reconciler.Consent{Approved: true}, nil
}

type testWriter struct{ *testing.T }

func (t testWriter) Write(p []byte) (int, error) {
	t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// pass makes one pass.
func (a *applier) pass() (reconciler.Report, error) {
	a.Helper()
	ctx, cancel := context.WithTimeout(a.Context(), patience)
	defer cancel()
	return a.Pass(ctx)
}

// done makes passes until one finds everything as wanted; it returns what they did together.
func (a *applier) done() reconciler.Report {
	a.Helper()
	return a.until("everything as wanted", func(_ reconciler.Report, err error) bool { return err == nil })
}

// until makes passes, each when something has changed, until one is as asked for.
func (a *applier) until(what string, so func(reconciler.Report, error) bool) reconciler.Report {
	a.Helper()
	ctx, cancel := context.WithTimeout(a.Context(), patience)
	defer cancel()
	var sum reconciler.Report
	for {
		r, err := a.Pass(ctx)
		sum.Objects, sum.Failures = r.Objects, r.Failures
		sum.Created, sum.Updated, sum.Recreated = sum.Created+r.Created, sum.Updated+r.Updated, sum.Recreated+r.Recreated
		sum.Pruned, sum.Requests = sum.Pruned+r.Pruned, sum.Requests+r.Requests
		if so(r, err) {
			return sum
		}
		select {
		case <-a.Changed():
		case <-ctx.Done():
			a.Fatalf("%s did not come: %v, %+v", what, err, r)
		}
	}
}

// silent fails unless the next pass finds everything as wanted without a request; the audit log
// must agree.
func (a *applier) silent() {
	a.Helper()
	before := len(a.requests())
	r, err := a.pass()
	if err != nil || r.Requests != 0 || r.Created+r.Updated+r.Recreated+r.Pruned != 0 {
		a.Errorf("a pass with nothing to do: %+v, %v", r, err)
	}
	for _, request := range a.requests()[before:] {
		if request.Verb != "watch" {
			a.Errorf("a pass with nothing to do: %s %s", request.Verb, request.RequestURI)
		}
	}
}

// requests are those of ours that the audit log knows.
func (w *world) requests() []cluster.Request {
	w.Helper()
	all, err := w.cluster.Requests()
	if err != nil {
		w.Fatal(err)
	}
	var ours []cluster.Request
	for _, r := range all {
		if r.UserAgent == object.Manager {
			ours = append(ours, r)
		}
	}
	return ours
}

// inventory is what is stored.
func (w *world) inventory() *inventory.Inventory {
	w.Helper()
	i, _, faults, err := inventory.Read(w.Context(), w.client.Resource(configMaps).Namespace(inventory.Namespace), 1)
	if err := errors.Join(faults, err); err != nil {
		w.Fatal(err)
	}
	return i
}

// configMap is a manifest.
func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default}\ndata: {key: %q}\n---\n", name, value)
}

// everything selects all that the release has.
func everything() builtin.Selection {
	return builtin.Selection{Names: builtin.All(), DefaultClass: "local", Capacity: true}
}

func objects(t *testing.T) []*object.Object {
	t.Helper()
	all, err := builtin.Objects(everything())
	if err != nil {
		t.Fatal(err)
	}
	return all
}
