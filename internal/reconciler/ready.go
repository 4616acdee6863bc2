package reconciler

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/etcd"
	"github.com/ironherd/ironherd/internal/reconciler/gate"
	"github.com/ironherd/ironherd/internal/reconciler/node"
	"github.com/ironherd/ironherd/internal/reconciler/release"
)

// Ready is what WaitReady waits for: that an API server of this build may start serving on this
// node.
type Ready struct {
	Client *clientv3.Client
	Layout etcd.Layout
	Node   string
	Build  release.Build
	// Register this node with the release of the build first. This is allowed only while no API server
	// runs here, as is usual for who waits until one may start. Unless it is set, somebody else has to
	// register the node.
	Register bool
	Logger   *slog.Logger
}

// reask is the time after which WaitReady asks again, even if no watch has seen a change.
const reask = 5 * time.Second

// WaitReady returns nil when the API server may start. It reads the node's record and the status
// together, linearizably, so that no leader can restrict the status without having seen this node.
// It also waits for an etcd that does not answer. It logs why it waits whenever the reason changes.
// When ctx ends, the error is KindTimeout and names the last reason.
func WaitReady(ctx context.Context, r Ready) error {
	if r.Layout.Root == "" {
		r.Layout.Root = etcd.DefaultRoot
	}
	registered, last := !r.Register, ""
	for {
		revision, verdict := r.ask(ctx, &registered)
		if ctx.Err() == nil && verdict.OK {
			r.Logger.InfoContext(ctx, "the API server may serve", slog.String("reason", verdict.Reason))
			return nil
		}
		if ctx.Err() == nil && verdict.Reason != last {
			last = verdict.Reason
			r.Logger.InfoContext(ctx, "the API server may not serve yet", slog.String("reason", last))
		}
		if ctx.Err() == nil {
			r.await(ctx, revision)
		}
		if ctx.Err() != nil {
			if last == "" {
				last = verdict.Reason
			}
			return &fleet.Error{Kind: fleet.KindTimeout, Message: "the API server may not serve yet: " + last, Err: context.Cause(ctx)}
		}
	}
}

// Ask reports whether the API server may serve now. It registers nothing. A failure counts as no,
// with the failure as the reason.
func (r Ready) Ask(ctx context.Context) gate.Verdict {
	if r.Layout.Root == "" {
		r.Layout.Root = etcd.DefaultRoot
	}
	registered := true
	_, verdict := r.ask(ctx, &registered)
	return verdict
}

// ask registers the node if that is still to be done, and asks the gate. A failure counts as no,
// with the failure as the reason.
func (r Ready) ask(ctx context.Context, registered *bool) (revision int64, verdict gate.Verdict) {
	failed := func(what string, err error) (int64, gate.Verdict) {
		return 0, gate.Verdict{Reason: fmt.Sprintf("%s: %v", what, err)}
	}
	if !*registered {
		registry := node.NewRegistry(r.Client, r.Layout, r.Logger)
		record := node.Record{Roles: []string{node.Controller}, Release: r.Build.Release}
		if _, err := registry.Register(ctx, r.Node, record); err != nil {
			return failed("this node cannot be registered", err)
		}
		*registered = true
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := r.Client.Txn(ctx).Then(clientv3.OpGet(r.Layout.Node(r.Node)), clientv3.OpGet(r.Layout.Status())).Commit()
	if err != nil {
		return failed("etcd cannot be read", err)
	}
	var own gate.Own
	var observed gate.Observed
	for _, kv := range answer.Responses[0].GetResponseRange().GetKvs() {
		record, err := node.Parse(kv.GetValue())
		own = gate.Own{Found: true, Readable: err == nil, Controller: record.Controller(), Release: record.Release}
	}
	for _, kv := range answer.Responses[1].GetResponseRange().GetKvs() {
		observed = observe(kv.GetValue(), kv.GetModRevision())
	}
	return answer.Header.GetRevision(), gate.Serve(r.Build, own, observed)
}

// await returns when a node or the status may have changed since the revision.
func (r Ready) await(ctx context.Context, revision int64) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), reask)
	defer cancel()
	if revision > 0 {
		for answer := range r.Client.Watch(ctx, r.Layout.Root+"/", clientv3.WithPrefix(), clientv3.WithRev(revision+1)) {
			for _, e := range answer.Events {
				if key := string(e.Kv.Key); key == r.Layout.Status() || key == r.Layout.Node(r.Node) {
					return
				}
			}
			if answer.Err() != nil {
				break
			}
		}
	}
	select { // not in a hurry while etcd does not answer
	case <-time.After(time.Second / 4):
	case <-ctx.Done():
	}
}
