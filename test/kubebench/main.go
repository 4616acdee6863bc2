// Command kubebench measures what passes cost an API server when there is nothing to do. It
// compares our passes with passes that apply every object, as tools do that do not know what has
// changed. `make bench-reconciler` prints the table.
//
// Both keep the same objects of the same real API server, with the same number of passes in windows
// of the same length. A window without passes shows what the API server uses by itself.
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
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	took     time.Duration // the longest pass
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
	fmt.Fprintln(os.Stderr, "starting the API server (the first time, it is compiled: some minutes)")
	c, err := cluster.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer c.Close()
	a, err := resources.New(c.Config(""), resources.Options{Manifests: filepath.Join(dir, "manifests")}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer a.Close()
	first, err := reach(ctx, a)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d objects from nothing in %v; now %d passes, one every %v\n", total, first.Round(time.Millisecond), passes, interval)

	idle, err := window(ctx, c, "nobody", passes, interval, func(context.Context) (int64, error) { return 0, nil })
	if err != nil {
		return err
	}
	ours, err := oursWindow(ctx, c, a, passes, interval)
	if err != nil {
		return err
	}
	client, err := api.New(c.Config(""), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer client.Close()
	theirs, err := window(ctx, c, "server-side apply of everything", passes, interval, func(ctx context.Context) (int64, error) {
		return applyAll(ctx, client, all)
	})
	if err != nil {
		return err
	}
	table(total, passes, interval, idle, ours, theirs)
	return nil
}

// reach runs passes until everything is as wanted.
func reach(ctx context.Context, a *resources.Applier) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
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
func oursWindow(ctx context.Context, c *cluster.Cluster, a *resources.Applier, passes int, interval time.Duration) (figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = a.Run(ctx) })
	if _, err := a.Pass(ctx); err != nil { // fills the mirrors
		return figure{}, err
	}
	return window(ctx, c, "our passes", passes, interval, func(ctx context.Context) (int64, error) {
		r, err := a.Pass(ctx)
		return int64(r.Requests), err
	})
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
	f.cpu = after - before
	return f, err
}

// applyAll applies every object, eight at a time as our passes do.
func applyAll(ctx context.Context, client *api.Client, all []*object.Object) (int64, error) {
	var requests, next atomic.Int64
	ctx = api.Counting(ctx, &requests)
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
	line := func(name, requests, cpu, net, took string) {
		fmt.Printf("%-34s %14s %18s %22s %14s\n", name, requests, cpu, net, took)
	}
	line("", "requests/pass", "API server CPU", "CPU/pass beyond idle", "longest pass")
	for _, f := range append([]figure{idle}, figures...) {
		net := (f.cpu - idle.cpu) / time.Duration(passes)
		line(f.name, fmt.Sprint(f.requests/int64(passes)), f.cpu.String(), net.String(), f.took.Round(10*time.Microsecond).String())
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
	all, err := builtin.Objects()
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
	objects, faults := manifest.At(dir).Read()
	if len(faults) > 0 {
		return nil, faults[0].Err
	}
	if all = append(all, objects...); len(all) != total {
		return nil, fmt.Errorf("%d objects, want %d", len(all), total)
	}
	return all, nil
}
