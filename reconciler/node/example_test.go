package node_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/node"
	"github.com/ironherd/ironherd/reconciler/release"
)

// A node registers its release while no API server runs there, and a record that somebody has
// garbled does not make it vanish.
func ExampleRegistry() {
	ctx := context.Background()
	client, err := etcd.Dial(ctx, etcd.Config{Endpoints: shared.Endpoints()})
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()
	layout := etcd.Layout{Root: "/example"}
	registry := node.NewRegistry(client, layout, slog.New(slog.DiscardHandler))
	record := node.Record{Roles: []string{node.Controller}, Release: release.MustParse("v1.2.0")}
	if _, err := registry.Register(ctx, "control-1", record); err != nil {
		panic(err)
	}
	if _, err := client.Put(ctx, layout.Node("control-1"), "garbled"); err != nil {
		panic(err)
	}
	set, err := registry.List(ctx)
	if err != nil {
		panic(err)
	}
	for _, n := range set.Nodes {
		fmt.Println(n.Name, n.Release, n.Counts(), n.Fault != "")
	}
	// Output:
	// control-1 v1.2.0 true true
}
