package node

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/etcd"
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
	return r.put(ctx, name, record, false)
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
		return false, etcd.Failed(r.client, "register node "+name, err)
	}
	var revision int64
	if len(answer.Kvs) > 0 {
		if onlyIfAbsent {
			return false, nil
		}
		revision = answer.Kvs[0].ModRevision
		if now, err := Parse(answer.Kvs[0].Value); err == nil && now.same(record) {
			return false, nil
		}
	}
	done, err := r.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpPut(key, string(text))).Commit()
	if err != nil {
		return false, etcd.Failed(r.client, "register node "+name, err)
	}
	if !done.Succeeded {
		return false, fleet.Errorf(fleet.KindConflict, "register node %s: its record was changed by somebody else at the same moment", name)
	}
	return true, nil
}

// Remove removes the record of a node that is gone for good: no API server runs there, or will
// start there before it has registered again. KindNotFound when there is none.
func (r *Registry) Remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := r.client.Delete(ctx, r.layout.Node(name))
	switch {
	case err != nil:
		return fmt.Errorf("remove node %s: %w", name, err)
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
