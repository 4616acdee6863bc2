package reconciler

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/node"
	"github.com/ironherd/ironherd/reconciler/release"
)

// Overview is what etcd has of a cluster, and what follows from it.
type Overview struct {
	// Leader is nil when nobody leads.
	Leader *election.Candidate `json:"leader"`
	Status gate.Observed       `json:"status"`
	Nodes  []NodeOverview      `json:"nodes"`
	// Differ says which nodes are set to keep other objects of a release, though their reconcilers are
	// of the same one; empty: none is known. What is kept then changes with each leader.
	Differ string `json:"differ,omitempty"`
	// NoLeader is why nobody leads; empty when somebody does.
	NoLeader string `json:"noLeader,omitempty"`
	// Holds tells that the leader waits before it may change anything. Reason is why it waits, or
	// else what it does. Both are empty without a leader.
	Holds  bool   `json:"holds"`
	Reason string `json:"reason,omitempty"`
	// Trouble is why the leader's passes fail. Nil: they do not.
	Trouble *Trouble `json:"trouble,omitempty"`
	// Deletions are what is no longer wanted and is held by finalizers, and how much will not be
	// deleted. Nil: nothing of either.
	Deletions *Deletions `json:"deletions,omitempty"`
	// Approval is a person's word about the manifests. Nil: there is none.
	Approval *Approval `json:"approval,omitempty"`
	// Overrides are what people want to be treated in another way for a while.
	Overrides []Override `json:"overrides,omitempty"`
}

// NodeOverview is what is known of one node.
type NodeOverview struct {
	node.Node
	// Admitted tells whether the status admits an API server of the node's release. Which base
	// resources that needs is known of the release that asks, and of the leader's. For any other
	// this is about the minimum compatible release alone, and the reason of a yes says so.
	Admitted gate.Verdict `json:"admitted"`
}

// Look reads the overview. Own is the build that asks.
func Look(ctx context.Context, client *clientv3.Client, layout etcd.Layout, own release.Build, logger *slog.Logger) (Overview, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var o Overview
	set, err := node.NewRegistry(client, layout, logger).List(ctx)
	if err != nil {
		return Overview{}, err
	}
	view, err := readStatus(ctx, client, layout)
	if err != nil {
		return Overview{}, err
	}
	leader, found, err := election.Leader(ctx, client, layout.Election())
	if err != nil {
		return Overview{}, err
	}
	o.Status = view.Observed
	if o.Trouble, _, err = readJSON[Trouble](ctx, client, layout.Trouble()); err != nil {
		return Overview{}, err
	}
	if o.Deletions, _, err = readJSON[Deletions](ctx, client, layout.Deletions()); err != nil {
		return Overview{}, err
	}
	if o.Overrides, err = readOverrides(ctx, client, layout); err != nil {
		return Overview{}, err
	}
	if o.Approval, err = readApproval(ctx, client, layout, nil); err != nil {
		return Overview{}, err
	}
	if !found {
		o.NoLeader = whyNoLeader(set)
	}
	if o.Trouble != nil && (!found || o.Trouble.Node != leader.Name) {
		o.Trouble = nil // of an earlier leader
	}
	if o.Deletions != nil && (!found || o.Deletions.Node != leader.Name) {
		o.Deletions = nil
	}
	builds := map[release.Release]release.Build{}
	if found {
		o.Leader = &leader
		if leader.Build.Validate() == nil {
			builds[leader.Build.Release] = leader.Build
			plan := gate.Decide(leader.Build, o.Status, set.Gate())
			o.Holds, o.Reason = plan.Hold, plan.Reason
		}
	}
	builds[own.Release] = own
	o.Differ = differ(set)
	for _, n := range set.Nodes {
		build, known := builds[n.Release]
		build.Release = n.Release
		record := gate.Own{Found: true, Readable: n.Fault == "", Controller: n.Controller(), Release: n.Release}
		verdict := gate.Serve(build, record, o.Status)
		if verdict.OK && !known {
			verdict.Reason += ", as far as is known here: ask on that node"
		}
		o.Nodes = append(o.Nodes, NodeOverview{Node: n, Admitted: verdict})
	}
	return o, nil
}

// whyNoLeader says why nobody stands for election: whoever may lead does not.
func whyNoLeader(set node.Set) string {
	nodes := set.Gate()
	var newest release.Release
	for _, n := range nodes.Known {
		newest = release.Max(newest, n.Release)
	}
	var those []string
	for _, n := range nodes.Known {
		if n.Release == newest {
			those = append(those, n.Name)
		}
	}
	switch {
	case len(nodes.Unknown) > 0:
		return fmt.Sprintf("the release of %s is not known, and nobody leads before it is: run `node register` there while no API server runs, "+
			"or remove the node", strings.Join(nodes.Unknown, ", "))
	case len(those) == 0:
		return "no node has registered itself: no reconciler has run here, or none can reach etcd"
	}
	return fmt.Sprintf("only a reconciler of %s, the newest release present, may lead, and none stands for election: is it running on %s, "+
		"and can it reach etcd? If it is gone for good, remove the node", newest, strings.Join(those, ", "))
}

// differ says which nodes are set to keep other objects of a release, though their reconcilers are
// of the same one.
func differ(set node.Set) string {
	first := map[release.Release]node.Node{}
	var pairs []string
	for _, n := range set.Nodes {
		if !n.Counts() || !n.Known || n.Source == nil || n.Source.Own.Digest == "" {
			continue
		}
		own := n.Source.Own
		if before, found := first[own.Release]; !found {
			first[own.Release] = n
		} else if before.Source.Own != own {
			pairs = append(pairs, before.Name+" and "+n.Name)
		}
	}
	return strings.Join(pairs, ", ")
}
