package resources_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

var errDied = errors.New("the process has died")

// wire is between us and the API server, for which it says that it is alive. Watches and what else
// is only read pass.
type wire struct {
	http.RoundTripper
	// before is called with each request that writes, and its number from 1; after when it has been
	// answered. An error is what the caller gets instead.
	before, after func(n int, r *http.Request) error

	mu sync.Mutex
	n  int
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if response := alive(r); response != nil {
		return response, nil
	}
	if r.Method == http.MethodGet {
		return w.RoundTripper.RoundTrip(r)
	}
	w.mu.Lock()
	w.n++
	n := w.n
	w.mu.Unlock()
	if err := w.before(n, r); err != nil {
		return nil, err
	}
	// What has been sent arrives, even if before kept it for longer than its sender waits.
	response, err := w.RoundTripper.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
	if err == nil {
		if err = w.after(n, r); err != nil {
			_ = response.Body.Close()
			return nil, err
		}
	}
	return response, err
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

func pass(int, *http.Request) error { return nil }

// wired is how to reach the API server over a wire.
func (w *world) wired(over *wire) *rest.Config {
	config := w.cluster.Config("")
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		over.RoundTripper = next
		return over
	})
	return config
}

// small is a set of a release: each thing that is done to an object is done to one on the way from
// the first to the second.
func small(t *testing.T, release int) []*object.Object {
	t.Helper()
	set := slices.DeleteFunc(objects(t), func(o *object.Object) bool {
		return o.Kind != "RuntimeClass" && o.Name != "local" && o.Name != "ironherd:owner"
	})
	if release == 2 {
		set = mutate(t, set, "RuntimeClass gvisor", func(c map[string]any) { c["handler"] = "other" })
		set = mutate(t, set, "StorageClass local", func(c map[string]any) { c["mountOptions"] = []any{"ro"} })
	}
	return set
}

// firstRelease brings the first release up, and ends it.
func (w *world) firstRelease() {
	w.Helper()
	first := w.start(resources.Options{BuiltIn: small(w.T, 1)})
	first.done()
	first.stop()
}

// TestDeathAtEachStep: the process dies before or after each request that writes, on the way from
// one release to the next and on the way to nothing. The next process brings everything right;
// nothing of ours is left over, and nothing of others is touched.
func TestDeathAtEachStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approving = true
	if w.there(configMaps, "default", "bystander") {
		w.remove(configMaps, "default", "bystander")
	}
	w.create(configMaps, strings.TrimSuffix(configMap("bystander", "x"), "---\n"))
	bystander := w.get(configMaps, "default", "bystander").GetUID()
	for _, lost := range []bool{false, true} {
		for step, last := 1, false; !last; step++ {
			name := fmt.Sprintf("step %d, answer lost: %t", step, lost)
			w.clean()
			w.write("a.yaml", configMap("changed", "1")+configMap("dropped", "1"))
			w.firstRelease()

			w.write("a.yaml", configMap("changed", "2")+configMap("added", "1"))
			last = w.dies(step, lost, resources.Options{BuiltIn: small(t, 2)})
			second := w.start(resources.Options{BuiltIn: small(t, 2)})
			second.done()
			second.silent()
			second.stop()
			w.consistent(name)
			if got := nested(w.get(runtimes, "", "gvisor").Object, []string{"handler"}); got != "other" {
				t.Fatalf("%s: the handler is %v", name, got)
			}

			w.write("a.yaml", "")
			last = w.dies(step, lost, resources.Options{BuiltIn: []*object.Object{}}) && last
			third := w.start(resources.Options{BuiltIn: []*object.Object{}})
			third.done()
			third.silent()
			third.stop()
			w.nothingLeft(name)
			if w.get(configMaps, "default", "bystander").GetUID() != bystander {
				t.Fatalf("%s: a bystander was touched", name)
			}
		}
	}
}

// dies has a process make passes until it dies at a step. It reports whether the process was done
// before it came to that.
func (w *world) dies(step int, lost bool, o resources.Options) (survived bool) {
	w.Helper()
	over := &wire{before: pass, after: pass}
	dead := func(from int) func(int, *http.Request) error {
		return func(n int, _ *http.Request) error {
			if n >= from {
				return errDied
			}
			return nil
		}
	}
	over.before = dead(step)
	if lost {
		over.before, over.after = dead(step+1), dead(step)
	}
	a := w.startWith(w.wired(over), o)
	defer a.stop()
	a.until("death or the end", func(_ reconciler.Report, err error) bool { return err == nil || over.count() >= step })
	return over.count() < step
}

// consistent fails unless the inventory speaks of exactly what is there.
func (w *world) consistent(name string) {
	w.Helper()
	known := w.inventory().Entries
	for _, r := range everyResource {
		list, err := w.client.Resource(r).List(w.Context(), metav1.ListOptions{LabelSelector: object.Label})
		if err != nil {
			w.Fatal(err)
		}
		for _, o := range list.Items {
			key := object.Key{Group: r.Group, Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
			if key.Name == "ironherd-reconciler-inventory" {
				continue
			}
			if entry := known[key]; entry.UID != string(o.GetUID()) || entry.Mark != "" {
				w.Fatalf("%s: %s has UID %s, the inventory %+v", name, key, o.GetUID(), entry)
			}
			delete(known, key)
		}
	}
	if len(known) > 0 {
		w.Fatalf("%s: the inventory speaks of what is not there: %v", name, known)
	}
}

// nothingLeft fails if there is anything of ours.
func (w *world) nothingLeft(name string) {
	w.Helper()
	w.consistent(name)
	if n := len(w.inventory().Entries); n > 0 {
		w.Fatalf("%s: %d objects are left", name, n)
	}
}

// TestSomebodyIsFaster: an object of that name appears between our look and our request to create
// it. It is not ours, then or ever: neither if it says something else, nor if it says the very
// same.
func TestSomebodyIsFaster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, theirs := range []string{"theirs", "ours"} {
		w.clean()
		if w.there(configMaps, "default", "raced") {
			w.remove(configMaps, "default", "raced")
		}
		w.write("a.yaml", configMap("raced", "ours"))
		over := &wire{before: pass, after: pass}
		once := sync.OnceFunc(func() { w.create(configMaps, strings.TrimSuffix(configMap("raced", theirs), "---\n")) })
		over.before = func(_ int, r *http.Request) error {
			if strings.Contains(r.URL.Path, "/configmaps/raced") {
				once()
			}
			return nil
		}
		a := w.startWith(w.wired(over), resources.Options{})
		if theirs != "ours" {
			a.until("the conflict", func(_ reconciler.Report, err error) bool {
				return err != nil && strings.Contains(err.Error(), ".data.key")
			})
			if got := nested(w.get(configMaps, "default", "raced").Object, []string{"data", "key"}); got != theirs {
				t.Errorf("somebody else's object was written to: %v", got)
			}
			w.write("a.yaml", configMap("raced", theirs)) // no conflict any more
		}
		a.done()
		a.silent()
		if _, marked := w.get(configMaps, "default", "raced").GetAnnotations()[object.Mark]; marked {
			t.Error("somebody else's object bears our mark")
		}
		w.write("a.yaml", "")
		a.done()
		if !w.there(configMaps, "default", "raced") {
			t.Error("somebody else's object was deleted")
		}
		if entry, known := w.inventory().Entries[object.Key{Kind: "ConfigMap", Namespace: "default", Name: "raced"}]; known {
			t.Errorf("the inventory claims somebody else's object: %+v", entry)
		}
		a.stop()
	}
}

// TestLateRequest: a deposed leader's requests, one at a time, arrive after its successor is done.
func TestLateRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approving = true
	for _, late := range []struct{ what, method, path string }{
		{"inventory", http.MethodPut, "/configmaps/ironherd-reconciler-inventory"},
		{"create", http.MethodPatch, "/configmaps/added"},
		{"update", http.MethodPatch, "/configmaps/changed"},
		{"delete", http.MethodDelete, "/configmaps/dropped"},
		{"delete, to create again", http.MethodDelete, "/runtimeclasses/gvisor"},
		{"create again", http.MethodPatch, "/runtimeclasses/gvisor"},
	} {
		w.clean()
		w.write("a.yaml", configMap("changed", "1")+configMap("dropped", "1"))
		w.firstRelease()
		w.write("a.yaml", configMap("changed", "2")+configMap("added", "1"))
		successor := w.start(resources.Options{BuiltIn: small(t, 1), Manifests: t.TempDir()})

		waiting, arrive := make(chan struct{}), make(chan struct{})
		over := &wire{before: pass, after: pass}
		stall := sync.OnceFunc(func() {
			close(waiting)
			<-arrive
		})
		refusals := 0
		over.before = func(_ int, r *http.Request) error {
			if r.Method == late.method && strings.HasSuffix(r.URL.Path, late.path) && (late.what != "create again" || refusals > 0) {
				stall()
			}
			if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "gvisor") {
				refusals++
			}
			return nil
		}
		deposed := w.startWith(w.wired(over), resources.Options{BuiltIn: small(t, 2)})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = deposed.pass() // whatever becomes of it
		}()
		<-waiting
		successor.done()
		close(arrive)
		<-ended
		deposed.stop()
		successor.done() // the watch tells; the 30 s of a full pass would too
		w.await("the successor's word", func() bool {
			successor.done()
			return w.there(runtimes, "", "gvisor") && nested(w.get(runtimes, "", "gvisor").Object, []string{"handler"}) == "runsc" &&
				!w.there(configMaps, "default", "added") && !w.there(configMaps, "default", "changed") && !w.there(configMaps, "default", "dropped")
		})
		w.consistent(late.what)
		successor.silent()
		successor.stop()
	}
}

// TestPauseAfterTheDelete: a pause that comes between the two requests that replace an object does
// not leave it deleted. It holds for whatever comes afterwards.
func TestPauseAfterTheDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, lost := range []bool{false, true} {
		w.clean()
		w.firstRelease()
		over := &wire{before: pass, after: pass}
		second := w.startWith(w.wired(over), resources.Options{BuiltIn: small(t, 2)})
		ctx, breakOff := context.WithCancel(t.Context())
		over.after = func(_ int, r *http.Request) error {
			if r.Method == http.MethodDelete && ctx.Err() == nil {
				second.SetOverrides([]reconciler.Override{{Effect: reconciler.Pause, Scope: reconciler.ScopeAll, By: "anna", Reason: "an incident"}})
				breakOff()
				if lost {
					return errDied
				}
			}
			return nil
		}
		if r, err := second.Pass(ctx); err == nil || w.there(runtimes, "", "gvisor") {
			t.Fatalf("it is not broken off after the delete: %+v, %v", r, err)
		}
		w.await("what was begun to be finished", func() bool {
			r, err := second.pass()
			there := w.there(runtimes, "", "gvisor")
			if !there && !lost { // if the answer is lost, the watch has to tell first that it is gone
				t.Fatalf("it stays deleted: %+v, %v", r, err)
			}
			return there
		})
		w.remove(runtimes, "", "gvisor")
		w.await("the pause to hold", func() bool {
			r, _ := second.pass()
			return r.Paused > 0 && !w.there(runtimes, "", "gvisor")
		})
		second.SetOverrides(nil)
		second.done()
		w.consistent(fmt.Sprintf("answer lost: %t", lost))
		second.stop()
	}
}

// TestInventoryIsLost: it is written again while its writer lives; and a line that cannot be read
// is reported and kept.
func TestInventoryIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.start(resources.Options{})
	a.done()
	w.remove(configMaps, "kube-system", "ironherd-reconciler-inventory")
	w.await("the inventory", func() bool {
		a.done()
		return w.there(configMaps, "kube-system", "ironherd-reconciler-inventory")
	})
	w.consistent("written again")
	w.patch(configMaps, "kube-system", "ironherd-reconciler-inventory", `{"data":{"Strange.kind":"who knows\n"}}`)
	r := a.until("a complaint", func(_ reconciler.Report, err error) bool { return err != nil })
	if !strings.Contains(fmt.Sprint(r.Failures), "Strange.kind, line 1") {
		t.Errorf("%+v", r)
	}
	w.remove(classes, "", "local")
	a.until("a new object", func(r reconciler.Report, _ error) bool { return r.Created == 1 })
	if got := nested(w.get(configMaps, "kube-system", "ironherd-reconciler-inventory").Object, []string{"data", "Strange.kind"}); got != "who knows\n" {
		t.Errorf("the line is %q", got)
	}
}

// TestLateUpdate: a deposed leader's update arrives late. What its successor has written since, it
// does not touch; what nobody has written, it changes, and the successor's watch sees it.
func TestLateUpdate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct{ successor, arrives string }{{"3", "3"}, {"1", "2"}} {
		w.clean()
		w.write("a.yaml", configMap("late", "1"))
		first := w.start(resources.Options{BuiltIn: []*object.Object{}})
		first.done()
		first.stop()
		w.write("a.yaml", configMap("late", "2"))
		waiting, arrive := make(chan struct{}), make(chan struct{})
		over := &wire{before: pass, after: pass}
		stall := sync.OnceFunc(func() {
			close(waiting)
			<-arrive
		})
		over.before = func(_ int, r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/configmaps/late") {
				stall()
			}
			return nil
		}
		deposed := w.startWith(w.wired(over), resources.Options{BuiltIn: []*object.Object{}})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = deposed.pass() // whatever becomes of it
		}()
		<-waiting
		dir := t.TempDir()
		successor := w.start(resources.Options{BuiltIn: []*object.Object{}, Manifests: dir})
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(configMap("late", c.successor)), 0o600); err != nil {
			t.Fatal(err)
		}
		successor.done()
		value := func() any { return nested(w.get(configMaps, "default", "late").Object, []string{"data", "key"}) }
		close(arrive)
		<-ended
		deposed.stop()
		if got := value(); got != c.arrives {
			t.Errorf("after the late update it is %v, want %s", got, c.arrives)
		}
		w.await("the successor's word", func() bool {
			successor.done()
			return value() == c.successor
		})
		successor.silent()
		successor.stop()
	}
}

// TestFieldsNoLongerWanted: a field that we had and do not want any more goes; what others have
// added stays.
func TestFieldsNoLongerWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fields, namespace: default}\n"
	w.write("a.yaml", manifest+"data: {ours: a, dropped: b}\n")
	a := w.start(resources.Options{})
	a.done()
	w.patch(configMaps, "default", "fields", `{"data":{"theirs":"c"}}`)
	a.done()
	a.silent()
	w.write("a.yaml", manifest+"data: {ours: a}\n")
	if r := a.done(); r.Updated != 1 {
		t.Errorf("%+v", r)
	}
	a.silent()
	got := nested(w.get(configMaps, "default", "fields").Object, []string{"data"})
	if want := map[string]any{"ours": "a", "theirs": "c"}; !cmp.Equal(got, want) {
		t.Errorf("it has %v", got)
	}
}
