// Package reconciler is for programs that keep resources of their own through rolling upgrades of a
// Kubernetes control plane: the release gate, the registry of nodes, the election, and the service
// that drives them, without Ironherd's base resources and without a Kubernetes client. Its names
// are those of the packages that do the work, which say what is promised:
//
//   - the gate is pure functions: Campaign, Decide and Serve go from releases, nodes and a status
//     to who may lead, what a leader does, and which API server may serve, with the reason in
//     words;
//   - an Election has one leader, who knows until when it may trust that it leads;
//   - a Registry holds the nodes' records;
//   - a Service does all of it for one node, and calls the program's Applier while it leads. Its
//     Components are served by a supervision tree of the program's own; Run brings one along;
//   - package engine has an Applier that keeps any objects: server-side apply, inventory, drift;
//   - WaitReady returns when an API server may serve.
package reconciler

import (
	"context"
	"log/slog"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/reconciler"
	"github.com/ironherd/ironherd/internal/reconciler/election"
	"github.com/ironherd/ironherd/internal/reconciler/etcd"
	"github.com/ironherd/ironherd/internal/reconciler/gate"
	"github.com/ironherd/ironherd/internal/reconciler/node"
	"github.com/ironherd/ironherd/internal/reconciler/release"
)

// Releases.
type (
	// Release is one release of a node's software.
	Release = release.Release
	// Build is what a build is and what it gets on with.
	Build = release.Build
)

// ParseRelease reads v1.2.3 or v1.2.3-rc.1.
func ParseRelease(text string) (Release, error) { return release.Parse(text) }

// The gate.
type (
	// Status is the announcement that API servers go by; Observed is how it was read.
	Status   = gate.Status
	Observed = gate.Observed
	// Nodes is what is known of the nodes that count; Node is one of them.
	Nodes = gate.Nodes
	Node  = gate.Node
	// OwnRecord is a node's own record, read together with the status.
	OwnRecord = gate.Own
	// Verdict is a decision and why; Plan is what a leader does.
	Verdict = gate.Verdict
	Plan    = gate.Plan
)

// ParseStatus reads the stored form of a status.
func ParseStatus(text []byte) (Status, error) { return gate.ParseStatus(text) }

// Campaign says whether a build may lead.
func Campaign(ours Release, nodes Nodes) Verdict { return gate.Campaign(ours, nodes) }

// Decide says what a leader of a build does.
func Decide(build Build, observed Observed, nodes Nodes) Plan {
	return gate.Decide(build, observed, nodes)
}

// Serve says whether an API server of a build may serve.
func Serve(build Build, own OwnRecord, observed Observed) Verdict {
	return gate.Serve(build, own, observed)
}

// The election.
type (
	// Election is an election, and who stands in it.
	Election = election.Config
	// Candidate is who stands, for people.
	Candidate = election.Candidate
	// Leadership is one time of leading.
	Leadership = election.Leadership
)

// How a leadership can end.
var (
	ErrResigned = election.ErrResigned
	ErrExpired  = election.ErrExpired
	ErrDeposed  = election.ErrDeposed
)

// Stand stands for election and returns when it is won.
func Stand(ctx context.Context, e Election) (*Leadership, error) { return election.Campaign(ctx, e) }

// Leader returns who leads.
func Leader(ctx context.Context, client *clientv3.Client, prefix string) (Candidate, bool, error) {
	return election.Leader(ctx, client, prefix)
}

// Nodes in etcd.
type (
	// Layout says where the keys are.
	Layout = etcd.Layout
	// Registry is the nodes' records; Record is one; NodeSet is all, at a revision.
	Registry = node.Registry
	Record   = node.Record
	NodeSet  = node.Set
)

// Controller is the role of the nodes that count.
const Controller = node.Controller

// NewRegistry returns the registry of a cluster.
func NewRegistry(client *clientv3.Client, layout Layout, logger *slog.Logger) *Registry {
	return node.NewRegistry(client, layout, logger)
}

// Ready is what WaitReady waits for.
type Ready = reconciler.Ready

// WaitReady returns nil when the API server may start serving.
func WaitReady(ctx context.Context, r Ready) error { return reconciler.WaitReady(ctx, r) }
