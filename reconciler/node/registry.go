package node

import (
	"context"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

// Registry is the nodes' records in etcd. Safe for concurrent use.
type Registry struct {
	client *clientv3.Client
	layout etcd.Layout
	logger *slog.Logger
}

// NewRegistry returns the registry of a cluster.
func NewRegistry(client *clientv3.Client, layout etcd.Layout, logger *slog.Logger) *Registry {
	return &Registry{client: client, layout: layout, logger: logger}
}

const requestTimeout = 5 * time.Second

// Register writes the record of this node, unless it is there already, and reports whether it
// wrote. It may be called only while no API server runs here.
func (r *Registry) Register(ctx context.Context, name string, record Record) (wrote bool, err error) {
	const most = 5 // the reconciler of this node may write its first record at the same moment
	for range most {
		wrote, err = r.put(ctx, name, record, false)
		if fleet.KindOf(err) != fleet.KindConflict {
			break
		}
	}
	return wrote, err
}

// Ensure registers this node if it has no record. It leaves any record as it is.
func (r *Registry) Ensure(ctx context.Context, name string, record Record) (wrote bool, err error) {
	return r.put(ctx, name, record, true)
}

func (r *Registry) put(ctx context.Context, name string, record Record, onlyIfAbsent bool) (bool, error) {
	if err := CheckName(name); err != nil {
		return false, err
	}
	text, err := record.encode()
	if err != nil {
		return false, err
	}
	if _, err := Parse(text); err != nil {
		return false, err
	}
	return r.update(ctx, "register node "+name, name, func(found bool, now *Record) (Record, bool) {
		if found && onlyIfAbsent {
			return Record{}, false
		}
		if now != nil {
			record.Source = now.Source // its files are where they were
		}
		return record, now == nil || !now.same(record)
	})
}

// update reads the record of a node, and writes what change makes of it, if that says so and nobody
// has changed it meanwhile. It reports whether it wrote. Change is called with nil where there is
// no record that can be read.
func (r *Registry) update(ctx context.Context, what, name string, change func(found bool, now *Record) (Record, bool)) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	key := r.layout.Node(name)
	answer, err := r.client.Get(ctx, key)
	if err != nil {
		return false, etcd.Failed(ctx, r.client, what, err)
	}
	var now *Record
	var revision int64
	for _, kv := range answer.Kvs {
		revision = kv.ModRevision
		if record, err := Parse(kv.Value); err == nil {
			now = &record
		}
	}
	record, write := change(revision > 0, now)
	if !write {
		return false, nil
	}
	text, err := record.encode()
	if err != nil {
		return false, err
	}
	done, err := r.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpPut(key, string(text))).Commit()
	if err != nil {
		return false, etcd.Failed(ctx, r.client, what, err)
	}
	if !done.Succeeded {
		return false, fleet.Errorf(fleet.KindConflict, "%s: its record was changed by somebody else at the same moment", what)
	}
	return true, nil
}

// Declare writes into the record of this node what its files say, unless the record says so
// already, and reports whether it wrote. It changes nothing else. Without a record that can be read
// it writes nothing: which release may run here is not its business.
func (r *Registry) Declare(ctx context.Context, name string, source Source) (wrote bool, err error) {
	return r.update(ctx, "declare the manifests of node "+name, name, func(_ bool, now *Record) (Record, bool) {
		if now == nil || now.Source != nil && *now.Source == source {
			return Record{}, false // whoever registers the node writes its record anew
		}
		now.Source = &source
		return *now, true
	})
}

// Remove removes the record of a node that is gone for good: no API server runs there, or will
// start there before it has registered again. failure.NotFound when there is none.
func (r *Registry) Remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := r.client.Delete(ctx, r.layout.Node(name))
	switch {
	case err != nil:
		return etcd.Failed(ctx, r.client, "remove node "+name, err)
	case answer.Deleted == 0:
		return fleet.Errorf(fleet.KindNotFound, "no node is named %s", name)
	}
	return nil
}

// List reads the nodes, linearizably.
func (r *Registry) List(ctx context.Context) (Set, error) {
	snapshot, err := etcd.Read(ctx, r.client, r.layout.Nodes())
	if err != nil {
		return Set{}, err
	}
	return r.reader().read(ctx, snapshot), nil
}

func (r *Registry) reader() *reader {
	return &reader{client: r.client, prefix: r.layout.Nodes().Key, logger: r.logger}
}

// Follower returns a follower of the registry's keys, for Follow.
func (r *Registry) Follower() *etcd.Follower {
	return &etcd.Follower{Client: r.client, Range: r.layout.Nodes(), Logger: r.logger}
}

// Follow publishes the nodes, and again after each change, until ctx ends.
func (r *Registry) Follow(ctx context.Context, follower *etcd.Follower, publish func(Set)) error {
	reader := r.reader()
	return follower.Run(ctx, func(s etcd.Snapshot) { publish(reader.read(ctx, s)) })
}
