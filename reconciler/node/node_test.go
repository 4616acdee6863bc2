package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/node"
	"github.com/ironherd/ironherd/reconciler/release"
	"github.com/ironherd/ironherd/reconciler/watch"
)

var (
	shared *etcdtest.Cluster
	roots  atomic.Int64
	v      = release.MustParse
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Main(context.Background(), m, &shared)) }

func setup(t *testing.T) (*clientv3.Client, etcd.Layout, *node.Registry) {
	t.Helper()
	client, layout := shared.Client(t), etcd.Layout{Root: fmt.Sprintf("/test/%d", roots.Add(1))}
	return client, layout, node.NewRegistry(client, layout, slog.New(slog.DiscardHandler))
}

func controller(r string) node.Record {
	return node.Record{Roles: []string{node.Controller}, Release: v(r)}
}

func put(t *testing.T, client *clientv3.Client, key, text string) int64 {
	t.Helper()
	answer, err := client.Put(t.Context(), key, text)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Header.GetRevision()
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	client, layout, registry := setup(t)
	ctx := t.Context()
	expect := func(what string, wrote bool, err error, want bool) {
		t.Helper()
		if wrote != want || err != nil {
			t.Errorf("%s: wrote %v, %v; want %v", what, wrote, err, want)
		}
	}
	wrote, err := registry.Register(ctx, "n1", controller("v1.0.0"))
	expect("new", wrote, err, true)
	wrote, err = registry.Register(ctx, "n1", controller("v1.0.0"))
	expect("the same", wrote, err, false)
	wrote, err = registry.Ensure(ctx, "n1", controller("v2.0.0"))
	expect("ensured, though there is another", wrote, err, false)
	wrote, err = registry.Register(ctx, "n1", controller("v2.0.0"))
	expect("another release", wrote, err, true)
	wrote, err = registry.Ensure(ctx, "n2", node.Record{Roles: []string{"storage"}, Release: v("v9.0.0")})
	expect("ensured", wrote, err, true)
	put(t, client, layout.Node("n2x"), "{")
	wrote, err = registry.Ensure(ctx, "n2x", controller("v1.0.0"))
	expect("ensured, though it is unreadable", wrote, err, false)
	if err := registry.Remove(ctx, "n2x"); err != nil {
		t.Error(err)
	}
	set, err := registry.List(ctx)
	if err != nil || len(set.Nodes) != 2 || set.Nodes[0].Release != v("v2.0.0") {
		t.Fatalf("%+v, %v", set, err)
	}
	g := set.Gate()
	if oldest, newest := g.Range(v("v1.5.0")); len(g.Known) != 1 || oldest != v("v1.5.0") || newest != v("v2.0.0") {
		t.Errorf("%+v: %s to %s", g, oldest, newest)
	}
	if err := registry.Remove(ctx, "n3"); fleet.KindOf(err) != fleet.KindNotFound {
		t.Errorf("removed what is not there: %v", err)
	}
	for _, name := range []string{"", "N1", "a/b", "-a", strings.Repeat("a", 254)} {
		if _, err := registry.Register(ctx, name, controller("v1.0.0")); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := registry.Register(ctx, "n4", node.Record{Roles: []string{node.Controller}}); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("without a release: %v", err)
	}
}

// unreadable is what can be found in the place of a record.
var unreadable = map[string]string{
	"no JSON":           "\x00\xff",
	"nothing":           "",
	"malformed release": `{"roles":["kubernetes-controller"],"release":"1.2"}`,
	"no release":        `{"roles":["kubernetes-controller"]}`,
	"none":              `{"roles":["kubernetes-controller"],"release":"none"}`,
	"no roles":          `{"release":"v1.0.0"}`,
	"another type":      `{"roles":"kubernetes-controller","release":"v1.0.0"}`,
	"a list":            `[]`,
	"huge":              `{"roles":["` + strings.Repeat("x", 5000) + `"],"release":"v1.0.0"}`,
}

// TestUnreadableRecordKeepsItsNode: seen before, found in etcd's history, or not known at all;
// never skipped.
func TestUnreadableRecordKeepsItsNode(t *testing.T) {
	t.Parallel()
	for name, text := range unreadable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, layout, registry := setup(t)
			if _, err := registry.Register(t.Context(), "n1", controller("v1.2.3")); err != nil {
				t.Fatal(err)
			}
			sets := follow(t, registry)
			until(t, sets, func(s node.Set) bool { return len(s.Nodes) == 1 })
			put(t, client, layout.Node("n1"), text)
			put(t, client, layout.Node("n2"), text)
			garbled := put(t, client, layout.Node("n1"), text+" ")
			set := until(t, sets, func(s node.Set) bool { return s.Revision >= garbled })
			check := func(who string, set node.Set) {
				t.Helper()
				if len(set.Nodes) != 2 {
					t.Fatalf("%s: a node has disappeared: %+v", who, set)
				}
				n1, n2, g := set.Nodes[0], set.Nodes[1], set.Gate()
				if !n1.Known || n1.Release != v("v1.2.3") || n1.Fault == "" || !n1.Counts() {
					t.Errorf("%s: n1 is %+v", who, n1)
				}
				if n2.Known || n2.Fault == "" || !n2.Counts() || !slices.Equal(g.Unknown, []string{"n2"}) || len(g.Known) != 1 {
					t.Errorf("%s: n2 is %+v, gate %+v", who, n2, g)
				}
			}
			check("who saw it before", set)
			late, err := registry.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			check("who found it in the history", late)
			put(t, client, layout.Node("n2"), `{"roles":["kubernetes-controller"],"release":"v1.0.0","since":"a newer release"}`)
			if set, err := registry.List(t.Context()); err != nil || set.Nodes[1].Fault != "" {
				t.Errorf("written again: %+v, %v", set, err)
			}
		})
	}
}

// TestHistoryEndsAtRemovalAndCompaction: what was before a removal is not known, and what was
// compacted away is not made up.
func TestHistoryEndsAtRemovalAndCompaction(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.New(t, 1)
	client, layout := cluster.Client(t), etcd.Layout{Root: etcd.DefaultRoot}
	registry := node.NewRegistry(client, layout, slog.New(slog.DiscardHandler))
	for _, name := range []string{"n1", "n2"} {
		if _, err := registry.Register(t.Context(), name, controller("v1.0.0")); err != nil {
			t.Fatal(err)
		}
	}
	if err := registry.Remove(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	sets := follow(t, registry)
	until(t, sets, func(s node.Set) bool { return len(s.Nodes) == 1 })
	put(t, client, layout.Node("n1"), "?")
	if set, err := registry.List(t.Context()); err != nil || len(set.Nodes) != 2 || set.Nodes[0].Known {
		t.Errorf("what it was before its removal counts again: %+v, %v", set, err)
	}
	last := put(t, client, layout.Node("n2"), "?")
	if _, err := client.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	set, err := registry.List(t.Context())
	if err != nil || len(set.Nodes) != 2 || set.Nodes[0].Known || set.Nodes[1].Known {
		t.Errorf("%+v, %v", set, err)
	}
	seen := until(t, sets, func(s node.Set) bool { return s.Revision >= last })
	if seen.Nodes[0].Known || !seen.Nodes[1].Known {
		t.Errorf("who has seen them: %+v", seen)
	}
}

func follow(t *testing.T, registry *node.Registry) <-chan node.Set {
	t.Helper()
	var latest watch.Memory[node.Set]
	go func() { _ = registry.Follow(t.Context(), registry.Follower(), latest.Set) }()
	return latest.Watch(t.Context())
}

func until(t *testing.T, sets <-chan node.Set, wanted func(node.Set) bool) node.Set {
	t.Helper()
	for s := range sets {
		if wanted(s) {
			return s
		}
	}
	t.Fatal("no more sets")
	return node.Set{}
}

func FuzzParse(f *testing.F) {
	for _, text := range unreadable {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"roles":["kubernetes-controller"],"release":"v1.0.0"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := node.Parse(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if same, err := node.Parse(again); err != nil || same.Release != r.Release || !slices.Equal(same.Roles, r.Roles) {
			t.Fatalf("%q becomes %q: %v", text, again, err)
		}
	})
}

// TestRegisterAgainstEnsure: a reconciler that registers its node because it has no record never
// overwrites the record that somebody else writes at the same moment.
func TestRegisterAgainstEnsure(t *testing.T) {
	t.Parallel()
	client := shared.Client(t)
	for n := range 200 {
		layout := etcd.Layout{Root: fmt.Sprintf("/ensure/%d", n)}
		registry := node.NewRegistry(client, layout, slog.New(slog.DiscardHandler))
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := registry.Register(t.Context(), "n1", controller("v2.0.0")); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			_, err := registry.Ensure(t.Context(), "n1", controller("v1.0.0"))
			if err != nil && fleet.KindOf(err) != fleet.KindConflict {
				t.Error(err)
			}
		})
		both.Wait()
		set, err := registry.List(t.Context())
		if err != nil || len(set.Nodes) != 1 || set.Nodes[0].Release.String() != "v2.0.0" {
			t.Fatalf("round %d: %+v, %v", n, set.Nodes, err)
		}
	}
}
