// Command kubebench measures what keeping objects costs an API server, and us: from nothing, when
// there is nothing to do, and when somebody has changed one. It compares our passes with passes
// that apply every object, as tools do that do not know what has changed. `make bench-reconciler`
// prints the table.
//
// Both keep the same objects, each from nothing in an API server of its own, with the same number
// of passes in windows of the same length. A window without passes shows what the API server uses
// by itself. Our processor time is that of this process (getrusage), in the window alone. Memory is
// what Go's heap holds in use after a collection, beyond what it held before.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/reconciler/resources/manifest"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/test/cluster"
)

func main() {
	total := flag.Int("objects", 1241, "how many objects are kept, the release's own included")
	passes := flag.Int("passes", 10, "passes in each window")
	interval := flag.Duration("interval", 3*time.Second, "time from one pass to the next")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *total, *passes, *interval)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubebench:", err)
		os.Exit(1)
	}
}

// figure is one line of the table.
type figure struct {
	name     string
	requests int64
	cpu      time.Duration // of the API server
	own      time.Duration // processor time of this process
	took     time.Duration // the longest pass
	nothing  time.Duration // from nothing until all is there
	repair   time.Duration // from a change by somebody else until it is undone
	heap     uint64        // bytes
}

func run(ctx context.Context, total, passes int, interval time.Duration) error {
	dir, err := os.MkdirTemp("", "kubebench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	all, err := manifests(filepath.Join(dir, "manifests"), total)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "starting API servers (the first time, they are compiled: some minutes)")
	ours, idle, err := measureOurs(ctx, dir, total, passes, interval)
	if err != nil {
		return err
	}
	theirs, err := measureTheirs(ctx, dir, all, passes, interval)
	if err != nil {
		return err
	}
	table(total, passes, interval, idle, ours, theirs)
	return nil
}

// startCluster starts an API server that has nothing of ours.
func startCluster(ctx context.Context, dir, name string) (*cluster.Cluster, error) {
	dir = filepath.Join(dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	return cluster.Start(ctx, dir)
}

func measureOurs(ctx context.Context, dir string, total, passes int, interval time.Duration) (ours, idle figure, err error) {
	c, err := startCluster(ctx, dir, "ours")
	if err != nil {
		return ours, idle, err
	}
	defer c.Close()
	before := heap()
	a, err := resources.New(c.Config(""), resources.Options{
		Manifests: filepath.Join(dir, "manifests"), Selection: builtin.Selection{Names: builtin.All()},
		Settled: -1,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		return ours, idle, err
	}
	defer a.Close()
	nothing, err := reach(ctx, a)
	if err != nil {
		return ours, idle, err
	}
	fmt.Fprintf(os.Stderr, "%d objects from nothing in %v; now %d passes, one every %v\n", total, nothing.Round(time.Millisecond), passes, interval)
	if idle, err = window(ctx, c, "nobody", passes, interval, func(context.Context) (int64, error) { return 0, nil }); err != nil {
		return ours, idle, err
	}
	ours, err = oursWindow(ctx, c, a, passes, interval, before)
	ours.nothing = nothing
	return ours, idle, err
}

func measureTheirs(ctx context.Context, dir string, all []*object.Object, passes int, interval time.Duration) (theirs figure, err error) {
	c, err := startCluster(ctx, dir, "theirs")
	if err != nil {
		return theirs, err
	}
	defer c.Close()
	before := heap()
	client, err := api.New(c.Config(""), slog.New(slog.DiscardHandler))
	if err != nil {
		return theirs, err
	}
	defer client.Close()
	began := time.Now()
	for stage := range object.Stages { // what others are in comes first
		due := slices.DeleteFunc(slices.Clone(all), func(o *object.Object) bool { return o.Stage() != stage })
		if _, err := applyAll(ctx, client, due); err != nil {
			return theirs, err
		}
	}
	nothing := time.Since(began)
	apply := func(ctx context.Context) (int64, error) { return applyAll(ctx, client, all) }
	if theirs, err = window(ctx, c, "server-side apply of everything", passes, interval, apply); err != nil {
		return theirs, err
	}
	theirs.nothing, theirs.heap = nothing, heap()-min(heap(), before)
	theirs.repair, err = repaired(ctx, c, func(ctx context.Context) {
		for ctx.Err() == nil {
			select {
			case <-time.After(interval):
			case <-ctx.Done():
				return
			}
			_, _ = applyAll(ctx, client, all) // ends with ctx
		}
	})
	return theirs, err
}

// heap is what Go's heap holds in use after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// ownCPU is the processor time that this process has used.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // only wrong arguments fail
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// repaired changes an object as somebody else, and returns how long it took keep to undo that.
func repaired(ctx context.Context, c *cluster.Cluster, keep func(context.Context)) (time.Duration, error) {
	client, err := dynamic.NewForConfig(c.Config(""))
	if err != nil {
		return 0, err
	}
	roles := client.Resource(schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"})
	const name = "ironherd:kubelet-api"
	keeping, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { keep(keeping) })
	began := time.Now()
	if err := roles.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	for {
		if _, err := roles.Get(ctx, name, metav1.GetOptions{}); err == nil {
			return time.Since(began), nil
		} else if !apierrors.IsNotFound(err) {
			return 0, err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// reach runs passes until everything is as wanted.
func reach(ctx context.Context, a *resources.Applier) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = a.Run(ctx) }) // it ends only with ctx
	began := time.Now()
	for {
		_, err := a.Pass(ctx)
		if err == nil {
			return time.Since(began), nil
		}
		select {
		case <-a.Changed():
		case <-ctx.Done():
			return 0, err
		}
	}
}

// oursWindow measures our passes, including the watches that they rely on.
func oursWindow(ctx context.Context, c *cluster.Cluster, a *resources.Applier, passes int, interval time.Duration, before uint64) (figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = a.Run(ctx) })
	if _, err := a.Pass(ctx); err != nil { // fills the mirrors
		return figure{}, err
	}
	f, err := window(ctx, c, "our passes", passes, interval, func(ctx context.Context) (int64, error) {
		r, err := a.Pass(ctx)
		return int64(r.Requests), err
	})
	if err != nil {
		return f, err
	}
	f.heap = heap() - min(heap(), before)
	f.repair, err = repaired(ctx, c, func(ctx context.Context) {
		for ctx.Err() == nil {
			select {
			case <-a.Changed():
			case <-time.After(interval):
			case <-ctx.Done():
				return
			}
			_, _ = a.Pass(ctx) // ends with ctx
		}
	})
	return f, err
}

// window measures a number of passes, one every interval.
func window(
	ctx context.Context, c *cluster.Cluster, name string, passes int, interval time.Duration, pass func(context.Context) (int64, error),
) (figure, error) {
	f := figure{name: name}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	before, err := c.CPU()
	if err != nil {
		return f, err
	}
	own := ownCPU()
	for range passes {
		began := time.Now()
		n, err := pass(ctx)
		if err != nil {
			return f, fmt.Errorf("%s: %w", name, err)
		}
		f.requests += n
		f.took = max(f.took, time.Since(began))
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return f, context.Cause(ctx)
		}
	}
	after, err := c.CPU()
	f.cpu, f.own = after-before, ownCPU()-own
	return f, err
}

// applyAll applies every object, eight at a time as our passes do.
func applyAll(ctx context.Context, client *api.Client, all []*object.Object) (int64, error) {
	var requests, next atomic.Int64
	ctx = api.Counting(client.Logging(ctx), &requests)
	kinds, err := client.Kinds(ctx)
	if err != nil {
		return 0, err
	}
	var workers sync.WaitGroup
	const parallel = 8
	failures := make(chan error, parallel)
	for range parallel {
		workers.Go(func() {
			for n := next.Add(1) - 1; int(n) < len(all); n = next.Add(1) - 1 {
				kind, err := kinds.Of(all[n])
				if err == nil {
					_, err = client.Apply(ctx, kind, all[n], api.Apply{Force: true})
				}
				if err != nil {
					failures <- err
					return
				}
			}
		})
	}
	workers.Wait()
	close(failures)
	return requests.Load(), errors.Join(<-failures)
}

func table(total, passes int, interval time.Duration, idle figure, figures ...figure) {
	fmt.Printf("%d objects, nothing to do, %d passes, one every %v\n\n", total, passes, interval)
	line := func(name string, columns ...string) {
		fmt.Printf("%-34s", name)
		for _, c := range columns {
			fmt.Printf(" %20s", c)
		}
		fmt.Println()
	}
	line("", "from nothing", "repair of a change", "requests/pass", "API server CPU", "CPU/pass beyond idle", "our CPU/pass", "longest pass", "heap")
	short := func(d time.Duration) string {
		if d == 0 {
			return "-"
		}
		return d.Round(10 * time.Microsecond).String()
	}
	for _, f := range append([]figure{idle}, figures...) {
		net, own := (f.cpu-idle.cpu)/time.Duration(passes), f.own/time.Duration(passes)
		line(f.name, short(f.nothing), short(f.repair), fmt.Sprint(f.requests/int64(passes)), f.cpu.String(), net.String(), short(own), short(f.took),
			fmt.Sprintf("%.1f MiB", float64(f.heap)/(1<<20)))
	}
	ours, theirs := figures[0], figures[1]
	fmt.Printf("\nAPI server CPU in the whole window: %.1f times less\n", float64(theirs.cpu)/float64(max(ours.cpu, 10*time.Millisecond)))
}

// manifests writes a directory of manifests. Together with the release's own objects there are
// total objects.
func manifests(dir string, total int) ([]*object.Object, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	all, err := builtin.Objects(builtin.Selection{Names: builtin.All()})
	if err != nil {
		return nil, err
	}
	const namespaces = 20
	var text strings.Builder
	for n := range total - len(all) {
		namespace := fmt.Sprintf("team-%d", n%namespaces)
		switch {
		case n < namespaces:
			fmt.Fprintf(&text, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n", namespace)
		case n/namespaces%4 == 0:
			fmt.Fprintf(&text, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a%d, namespace: %s}\n---\n", n, namespace)
		case n/namespaces%4 == 1:
			fmt.Fprintf(&text, "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r%d, namespace: %s}\n"+
				"rules: [{apiGroups: [''], resources: [configmaps, secrets], verbs: [get, list, watch]}]\n---\n", n, namespace)
		case n/namespaces%4 == 2:
			fmt.Fprintf(&text, "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: b%d, namespace: %s}\n"+
				"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r%d}\n"+
				"subjects: [{kind: ServiceAccount, name: a%d, namespace: %s}]\n---\n", n, namespace, n, n, namespace)
		default:
			fmt.Fprintf(&text, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d, namespace: %s}\n"+
				"data: {a: one, b: two, c: three, d: four}\n---\n", n, namespace)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(text.String()), 0o600); err != nil {
		return nil, err
	}
	objects, faults := manifest.Parse("all.yaml", []byte(text.String()))
	if len(faults) > 0 {
		return nil, faults[0].Err
	}
	if all = append(all, objects...); len(all) != total {
		return nil, fmt.Errorf("%d objects, want %d", len(all), total)
	}
	return all, nil
}
