package node_test

import (
	"testing"

	"github.com/ironherd/ironherd/reconciler/node"
)

// TestDeclare: what a node's files say is in its record beside what it says of its API server, and
// neither writer takes away what the other one has written. A record of before, without it, is read
// as it was.
func TestDeclare(t *testing.T) {
	t.Parallel()
	client, layout, registry := setup(t)
	ctx := t.Context()
	source := node.Source{Digest: "d1", Objects: 2}
	if wrote, err := registry.Declare(ctx, "n1", source); wrote || err != nil {
		t.Errorf("without a record: %v, %v", wrote, err)
	}
	put(t, client, layout.Node("n1"), `{"roles":["kubernetes-controller"],"release":"v1.0.0"}`)
	of := func() node.Node {
		t.Helper()
		set, err := registry.List(ctx)
		if err != nil || len(set.Nodes) != 1 {
			t.Fatalf("%+v, %v", set, err)
		}
		return set.Nodes[0]
	}
	if n := of(); n.Source != nil || n.Fault != "" || n.Release != v("v1.0.0") {
		t.Errorf("a record of before: %+v", n)
	}
	for n, want := range []bool{true, false} {
		if wrote, err := registry.Declare(ctx, "n1", source); wrote != want || err != nil {
			t.Errorf("declaration %d: %v, %v", n, wrote, err)
		}
	}
	if wrote, err := registry.Register(ctx, "n1", controller("v2.0.0")); !wrote || err != nil {
		t.Errorf("registered: %v, %v", wrote, err)
	}
	if n := of(); n.Source == nil || *n.Source != source || n.Release != v("v2.0.0") || !n.Controller() {
		t.Errorf("registered anew: %+v", n)
	}
	source.Faults = 1
	if wrote, err := registry.Declare(ctx, "n1", source); !wrote || err != nil || of().Source.Whole() || of().Release != v("v2.0.0") {
		t.Errorf("with a fault: %v, %v, %+v", wrote, err, of())
	}
	put(t, client, layout.Node("n1"), "?")
	if wrote, err := registry.Declare(ctx, "n1", node.Source{}); wrote || err != nil {
		t.Errorf("a record that cannot be read: %v, %v", wrote, err)
	}
}
