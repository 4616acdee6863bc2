package reconciler

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler/etcd"
)

// readJSON returns what a key holds, and the snapshot that it is from; nil when there is none, or
// when it cannot be read.
func readJSON[T any](ctx context.Context, client *clientv3.Client, key string) (*T, etcd.Snapshot, error) {
	snapshot, err := etcd.Read(ctx, client, etcd.Range{Key: key})
	var value *T
	if entry, found := snapshot.Entries[key]; found && json.Unmarshal(entry.Value, &value) != nil {
		value = nil
	}
	return value, snapshot, err
}

// putFor stores a value under a lease, with which it ends. It returns what the key held until then;
// nil: nothing. An error begins with what was to be done.
func putFor(ctx context.Context, client *clientv3.Client, key string, value any, length time.Duration, what string) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	lease, err := client.Grant(ctx, int64(length.Seconds()))
	var put *clientv3.PutResponse
	if err == nil {
		put, err = client.Put(ctx, key, string(text), clientv3.WithLease(lease.ID), clientv3.WithPrevKV())
	}
	if err != nil {
		return nil, etcd.Failed(ctx, client, what, err)
	}
	if put.PrevKv == nil {
		return nil, nil
	}
	return put.PrevKv.Value, nil
}
