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
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	key := r.layout.Node(name)
	answer, err := r.client.Get(ctx, key)
	if err != nil {
		return false, etcd.Failed(ctx, r.client, "register node "+name, err)
	}
	var revision int64
	if len(answer.Kvs) > 0 {
		if onlyIfAbsent {
			return false, nil
		}
		revision = answer.Kvs[0].ModRevision
		if now, err := Parse(answer.Kvs[0].Value); err == nil {
			if now.same(record) {
				return false, nil
			}
			record.Source = now.Source // its files are where they were
			if text, err = record.encode(); err != nil {
				return false, err
			}
		}
	}
	err = r.replace(ctx, "register", name, revision, text)
	return err == nil, err
}

// replace writes a record if the key still has the revision; 0: if there is none.
func (r *Registry) replace(ctx context.Context, what, name string, revision int64, text []byte) error {
	key := r.layout.Node(name)
	done, err := r.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpPut(key, string(text))).Commit()
	if err != nil {
		return etcd.Failed(ctx, r.client, what+" node "+name, err)
	}
	if !done.Succeeded {
		return fleet.Errorf(fleet.KindConflict, "%s node %s: its record was changed by somebody else at the same moment", what, name)
	}
	return nil
}

// Declare writes into the record of this node what its files say, unless the record says so
// already, and reports whether it wrote. It changes nothing else. Without a record that can be read
// it writes nothing: which release may run here is not its business.
func (r *Registry) Declare(ctx context.Context, name string, source Source) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := r.client.Get(ctx, r.layout.Node(name))
	if err != nil {
		return false, etcd.Failed(ctx, r.client, "declare the manifests of node "+name, err)
	}
	if len(answer.Kvs) == 0 {
		return false, nil
	}
	record, err := Parse(answer.Kvs[0].Value)
	if err != nil || record.Source != nil && *record.Source == source {
		return false, nil //nolint:nilerr // whoever registers the node writes its record anew
	}
	record.Source = &source
	text, err := record.encode()
	if err != nil {
		return false, err
	}
	err = r.replace(ctx, "declare the manifests of", name, answer.Kvs[0].ModRevision, text)
	return err == nil, err
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
