package resources_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/manifest"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// TestCreationIsRefused: for each shape of object, the request that creates creates, and is refused
// if there is one already. All that we know of what we created rests on that; it is what API
// servers do, and not what their documentation promises.
func TestCreationIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	client, err := api.New(w.cluster.Config(""), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	namespace := unused("refused")
	all, faults := manifest.Parse("all.yaml", []byte(strings.ReplaceAll(everyShape, "shapes", namespace)+"---"+definition+"---\n"+widget))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	all = append(objects(t), all...)
	absent := api.Apply{Mark: "mark", Precondition: object.Precondition{Absent: true}}
	for _, o := range all {
		var kind api.Kind
		w.await(o.Key.String(), func() bool { // a kind is there a moment after its definition
			kinds, err := client.Kinds(t.Context())
			if err == nil {
				kind, err = kinds.Of(o)
			}
			return err == nil
		})
		var uid string
		w.await("the creation of "+o.Key.String(), func() bool {
			live, err := client.Apply(t.Context(), kind, o, absent)
			if err != nil && o.Kind != "Widget" {
				t.Fatalf("%s: %v", o.Key, err)
			}
			if err != nil {
				return false
			}
			uid = string(live.UID)
			return live.Annotations[object.Mark] == "mark" && o.UpToDate(live)
		})
		again := absent
		again.Mark = "another"
		again.Force = true
		if live, err := client.Apply(t.Context(), kind, o, again); !apierrors.IsConflict(err) {
			t.Errorf("%s: created although it is there: %v, %v", o.Key, live, err)
		}
		live, err := client.Get(t.Context(), kind, o.Key)
		if err != nil || string(live.UID) != uid || live.Annotations[object.Mark] != "mark" {
			t.Errorf("%s: %v, %v", o.Key, live, err)
		}
	}
}

// unused is a name that nothing has: a namespace cannot be deleted here, for nobody runs its
// controller.
func unused(name string) string { return name + "-" + strings.ToLower(rand.Text()[:8]) }

// TestOrder: what others need comes first, and has been answered before they are sent, so that one
// pass is enough. The release's own objects come before everything that is in manifests.
func TestOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	namespace := unused("order")
	w.write("a.yaml", strings.ReplaceAll(configMap("ordered", "1"), "default", namespace)+
		"apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: "+namespace+"}\n---\n"+
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n---\n"+definition)
	stage := func(r *http.Request) int {
		switch path := r.URL.Path; {
		case r.Method != http.MethodPatch:
			return -1
		case strings.Contains(path, "/ironherd:"):
			return 0
		case strings.Contains(path, "/storage.k8s.io/"), strings.Contains(path, "/node.k8s.io/"):
			return 1
		case strings.HasPrefix(path, "/api/v1/namespaces/") && strings.Count(path, "/") == 4:
			return 2
		case strings.Contains(path, "/customresourcedefinitions/"):
			return 3
		case strings.Contains(path, "/serviceaccounts/"):
			return 4
		}
		return 5
	}
	var mu sync.Mutex
	latest, seen := 0, map[int]int{}
	over := &wire{}
	over.before = func(_ int, r *http.Request) error {
		mu.Lock()
		defer mu.Unlock()
		latest = max(latest, stage(r))
		seen[stage(r)]++
		return nil
	}
	over.after = func(_ int, r *http.Request) error {
		mu.Lock()
		defer mu.Unlock()
		if n := stage(r); n >= 0 && n < latest {
			t.Errorf("%s was under way when something of stage %d was sent", r.URL.Path, latest)
		}
		return nil
	}
	if r, err := w.startWith(w.wired(over), resources.Options{}).pass(); err != nil || r.Created != r.Objects {
		t.Errorf("%+v, %v", r, err)
	}
	if seen[0] != 8 || seen[1] != 5 || seen[2] != 1 || seen[3] != 1 || seen[4] != 1 || seen[5] == 0 {
		t.Errorf("requests by stage: %v", seen)
	}
}

// TestLateDeletion: a deposed leader's deletion of what it does not want arrives after its
// successor, who wants it, has written it.
func TestLateDeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approving = true
	w.write("a.yaml", configMap("late", "1"))
	first := w.start(resources.Options{BuiltIn: []*object.Object{}})
	first.done()
	first.stop()
	waiting, arrive := make(chan struct{}), make(chan struct{})
	over := &wire{before: pass, after: pass}
	stall := sync.OnceFunc(func() {
		close(waiting)
		<-arrive
	})
	over.before = func(_ int, r *http.Request) error {
		if r.Method == http.MethodDelete {
			stall()
		}
		return nil
	}
	deposed := w.startWith(w.wired(over), resources.Options{BuiltIn: []*object.Object{}, Manifests: t.TempDir()})
	var report reconciler.Report
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// it fails, for the inventory is another's by now, or finds that it has changed
		report, _ = deposed.pass()
	}()
	<-waiting
	uid := w.get(configMaps, "default", "late").GetUID()
	w.write("a.yaml", configMap("late", "2"))
	successor := w.start(resources.Options{BuiltIn: []*object.Object{}})
	successor.done()
	close(arrive)
	<-ended
	if report.Pruned != 0 || w.get(configMaps, "default", "late").GetUID() != uid {
		t.Errorf("what the successor had written was deleted: %+v", report)
	}
	successor.silent()
}

// TestImmutableConfigMap: an object whose author has said that it never changes is replaced when
// the author changes it.
func TestImmutableConfigMap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", "immutable: true\n"+configMap("frozen", "1"))
	a := w.start(resources.Options{})
	a.done()
	w.write("a.yaml", "immutable: true\n"+configMap("frozen", "2"))
	if r := a.done(); r.Recreated != 1 {
		t.Errorf("%+v", r)
	}
	a.silent()
}

// TestDeadline: a pass ends with its context although the API server does not answer.
func TestDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("slow", "1"))
	over := &wire{before: pass, after: pass}
	over.before = func(_ int, r *http.Request) error {
		<-r.Context().Done()
		return r.Context().Err()
	}
	a := w.startWith(w.wired(over), resources.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	waiting := over.before
	over.before = func(n int, r *http.Request) error {
		cancel() // the leadership ends while a request is under way
		return waiting(n, r)
	}
	if r, err := a.Pass(ctx); err == nil || over.count() > 1 || r.Created != 0 {
		t.Errorf("%+v, %v, %d requests", r, err, over.count())
	}
}
