package reconciler

import (
	"testing"

	"github.com/ironherd/ironherd/reconciler/node"
)

// TestDiffer: nodes of one release that are set to keep other objects of it are named, and no
// others: neither those of another release or role nor those that have not said. The release is the
// reconciler's: the API server's of the record is another one for a while, in an upgrade.
func TestDiffer(t *testing.T) {
	t.Parallel()
	serves := func(name, role, r string, own node.Own) node.Node {
		return node.Node{Name: name, Known: true, Record: node.Record{Roles: []string{role}, Release: v(r), Source: &node.Source{Own: own}}}
	}
	with := func(name, role, r, digest string) node.Node {
		return serves(name, role, r, node.Own{Release: v(r), Digest: digest})
	}
	silent := with("n0", node.Controller, "v1.0.0", "")
	silent.Source = nil
	nodes := []node.Node{
		silent, with("n1", node.Controller, "v1.0.0", "a"), with("n2", node.Controller, "v1.0.0", "a"), with("n3", node.Controller, "v1.0.0", ""),
		with("n4", node.Controller, "v2.0.0", "b"), with("n5", "worker", "v1.0.0", "c"),
		{Name: "n6", Fault: "x"},
	}
	if got := differ(node.Set{Nodes: nodes}); got != "" {
		t.Errorf("alike: %q", got)
	}
	nodes = append(nodes, with("n7", node.Controller, "v1.0.0", "b"), with("n8", node.Controller, "v2.0.0", "a"))
	if got := differ(node.Set{Nodes: nodes}); got != "n1 and n7, n4 and n8" {
		t.Errorf("not alike: %q", got)
	}
	older, newer := node.Own{Release: v("v1.0.0"), Digest: "a"}, node.Own{Release: v("v2.0.0"), Digest: "b"}
	for what, first := range map[string]node.Node{
		"the newer reconciler runs before the node is registered": serves("n1", node.Controller, "v1.0.0", newer),
		"the node is registered before the newer reconciler runs": serves("n1", node.Controller, "v2.0.0", older),
	} {
		others := []node.Node{serves("n2", node.Controller, "v1.0.0", older), serves("n3", node.Controller, "v2.0.0", newer)}
		if got := differ(node.Set{Nodes: append(others, first)}); got != "" {
			t.Errorf("%s: %q", what, got)
		}
	}
}
