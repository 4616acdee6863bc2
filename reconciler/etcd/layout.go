package etcd

import (
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Layout is where the keys are. Nothing that changes often may be below the nodes' prefix, because
// every change there leads to a new decision.
type Layout struct {
	// Root is a path without a slash at its end; DefaultRoot unless a cluster shares its etcd with
	// another one.
	Root string
}

// DefaultRoot is where the keys are by default.
const DefaultRoot = "/ironherd/kubernetes"

// Validate returns failure.Invalid unless the root begins with a slash, ends without one, and is
// not empty.
func (l Layout) Validate() error {
	if len(l.Root) < 2 || !strings.HasPrefix(l.Root, "/") || strings.HasSuffix(l.Root, "/") {
		return fleet.Errorf(fleet.KindInvalid, "the root of the keys in etcd must be a path like %s, not %q", DefaultRoot, l.Root)
	}
	return nil
}

// Nodes is the range of the nodes' records.
func (l Layout) Nodes() Range { return Range{Key: l.Root + "/nodes/", Prefix: true} }

// Node is the key of one node's record.
func (l Layout) Node(name string) string { return l.Nodes().Key + name }

// Status is the key of the reconciler's status.
func (l Layout) Status() string { return l.Root + "/reconciler/status" }

// Cluster is the key that says which cluster the keys are of, by the UID of the namespace
// kube-system.
func (l Layout) Cluster() string { return l.Root + "/reconciler/cluster" }

// Trouble is the key under which the leader tells why its passes fail.
func (l Layout) Trouble() string { return l.Root + "/reconciler/trouble" }

// Deletions is the key under which the leader tells which objects it waits for to go.
func (l Layout) Deletions() string { return l.Root + "/reconciler/deletions" }

// Approval is the key of a person's word that what the manifests say is a decision.
func (l Layout) Approval() string { return l.Root + "/reconciler/approval" }

// Overrides is the prefix of the keys of what people want to be treated in another way for a while.
func (l Layout) Overrides() string { return l.Root + "/reconciler/overrides/" }

// Election is the prefix of the election's keys.
func (l Layout) Election() string { return l.Root + "/reconciler/election/" }
