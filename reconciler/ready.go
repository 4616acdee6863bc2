package reconciler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/node"
	"github.com/ironherd/ironherd/reconciler/release"
)

// Ready is what WaitReady waits for: that an API server of this build may serve on this node.
type Ready struct {
	Client *clientv3.Client
	Layout etcd.Layout
	Node   string
	Build  release.Build
	// Register this node with the release of the build first. This is allowed only while no API
	// server runs here. Unless it is set, somebody else has to register the node, before the API
	// server starts.
	Register bool
	Logger   *slog.Logger
}

// reask is the time after which WaitReady asks again, even if no watch has seen a change.
const reask = 5 * time.Second

// WaitReady returns nil when the API server may serve. Nobody may wait with its start: the leader
// may need this very API server to get there. It reads the node's record and the status
// together, linearizably, so that no leader can restrict the status without having seen this node.
// It also waits for an etcd that does not answer. It logs why it waits whenever the reason changes.
// When ctx ends, the error is failure.Timeout and names the last reason.
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

// Door answers again and again whether the API server of a node may serve. It remembers that it has
// been admitted: a status that can no longer be read does not stop an API server that serves.
// Nothing is registered. Safe for concurrent use.
type Door struct {
	ready Ready

	mu       sync.Mutex
	admitted int64 // revision of the record under which it was admitted; 0: none
}

// NewDoor returns the door of a node. r.Register is not used.
func NewDoor(r Ready) *Door {
	if r.Layout.Root == "" {
		r.Layout.Root = etcd.DefaultRoot
	}
	r.Register = false
	return &Door{ready: r}
}

// Ask reports whether the API server may serve now, and the revision of etcd at which that was so.
// A failure counts as no, with the failure as the reason.
func (d *Door) Ask(ctx context.Context) (verdict gate.Verdict, revision int64) {
	d.mu.Lock()
	admitted := d.admitted
	d.mu.Unlock()
	answer := d.ready.read(ctx, admitted)
	d.mu.Lock()
	defer d.mu.Unlock()
	if answer.verdict.OK && answer.record > d.admitted {
		d.admitted = answer.record
	}
	return answer.verdict, answer.revision
}

// askReady says whether the API server may serve and is ready; certain is whether etcd has said so.
func (d *Door) askReady(ctx context.Context, probe func(context.Context) error) (verdict gate.Verdict, certain bool) {
	ctx, cancel := context.WithTimeout(ctx, exposeTimeout)
	defer cancel()
	verdict, revision := d.Ask(ctx)
	if verdict.OK {
		if err := probe(ctx); err != nil {
			return gate.Verdict{Reason: err.Error()}, false
		}
	}
	return verdict, revision != 0
}

// Serving returns what answers whether clients may be sent to the API server: it may serve, and
// probe says that it is ready. Whoever reaches a port may ask, so those who ask at the same time
// share an answer, to a question that began after each of them asked. It takes six seconds at most.
// After the end of ctx every answer is no.
func (d *Door) Serving(ctx context.Context, probe func(context.Context) error) func(context.Context) gate.Verdict {
	shared := sharedAnswer[gate.Verdict]{start: func(run func()) { go run() }, put: func() gate.Verdict {
		verdict, _ := d.askReady(ctx, probe)
		return verdict
	}}
	return func(ctx context.Context) gate.Verdict {
		verdict, answered := shared.ask(ctx)
		if !answered {
			verdict.Reason = context.Cause(ctx).Error()
		}
		return verdict
	}
}

// ask registers the node if that is still to be done, and asks the gate. A failure counts as no,
// with the failure as the reason.
func (r Ready) ask(ctx context.Context, registered *bool) (revision int64, verdict gate.Verdict) {
	if !*registered {
		registry := node.NewRegistry(r.Client, r.Layout, r.Logger)
		record := node.Record{Roles: []string{node.Controller}, Release: r.Build.Release}
		if _, err := registry.Register(ctx, r.Node, record); err != nil {
			return 0, gate.Verdict{Reason: fmt.Sprintf("this node cannot be registered: %v", err)}
		}
		*registered = true
	}
	answer := r.read(ctx, 0)
	return answer.revision, answer.verdict
}

// answer is what the gate says, at a revision of etcd, and the revision of the node's record then.
type answer struct {
	verdict          gate.Verdict
	revision, record int64
}

// read reads record and status together and asks the gate. admitted is the revision of a record
// under which the API server was admitted before.
func (r Ready) read(ctx context.Context, admitted int64) answer {
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	both, err := r.Client.Txn(asking).Then(
		clientv3.OpGet(r.Layout.Node(r.Node)), clientv3.OpGet(r.Layout.Status()),
		clientv3.OpGet(r.Layout.Election()+"candidates/", clientv3.WithFirstCreate()...),
	).Commit()
	switch {
	case err != nil && ctx.Err() != nil: // no time is left to find out why
		return answer{verdict: gate.Verdict{Reason: fmt.Sprintf("etcd cannot be read: %v", err)}}
	case err != nil:
		return answer{verdict: gate.Verdict{Reason: etcd.Failed(ctx, r.Client, "etcd cannot be read", err).Error()}}
	}
	var own gate.Own
	var observed gate.Observed
	a := answer{revision: both.Header.GetRevision()}
	for _, kv := range both.Responses[0].GetResponseRange().GetKvs() {
		record, err := node.Parse(kv.GetValue())
		a.record = kv.GetModRevision()
		own = gate.Own{
			Found: true, Readable: err == nil, Controller: record.Controller(), Release: record.Release,
			Admitted: admitted > 0 && r.stood(asking, record, admitted, a.record),
		}
	}
	for _, kv := range both.Responses[1].GetResponseRange().GetKvs() {
		observed = observe(kv.GetValue(), kv.GetModRevision())
	}
	a.verdict = gate.Serve(r.Build, own, observed)
	for _, kv := range both.Responses[2].GetResponseRange().GetKvs() {
		leader := election.CandidateOf(kv.GetValue())
		if !a.verdict.OK && leader.Name == r.Node && leader.Fault != "" {
			a.verdict.Reason += "; the leader is this node's own reconciler, and it waits for the API server (" + leader.Fault +
				"): start the API server, but let only the reconciler reach it"
		}
	}
	return a
}

// stood reports whether the record has said since a revision which release may run here, in each of
// its versions until the one at now. What else is in it, such as what the manifests say, may have
// changed. If that cannot be told, it has not.
func (r Ready) stood(ctx context.Context, record node.Record, since, now int64) bool {
	const most = 16
	for range most {
		if now == since {
			return true
		}
		before, err := r.Client.Get(ctx, r.Layout.Node(r.Node), clientv3.WithRev(now-1))
		if err != nil || len(before.Kvs) == 0 {
			return false
		}
		older, err := node.Parse(before.Kvs[0].Value)
		if err != nil || older.Release != record.Release || !older.Controller() {
			return false
		}
		now = before.Kvs[0].ModRevision
	}
	return false
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
	sleep(ctx, time.Second/4) // not in a hurry while etcd does not answer
}
