package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Range is one key, or all keys with a prefix.
type Range struct {
	Key    string
	Prefix bool
}

func (r Range) options(more ...clientv3.OpOption) []clientv3.OpOption {
	if r.Prefix {
		more = append(more, clientv3.WithPrefix())
	}
	return more
}

// Unchanged is the condition that nothing in the range was put after a revision.
func (r Range) Unchanged(since int64) clientv3.Cmp {
	condition := clientv3.Compare(clientv3.ModRevision(r.Key), "<", since+1)
	if r.Prefix {
		condition = condition.WithPrefix()
	}
	return condition
}

// Entry is the value of a key and the revision of its last change.
type Entry struct {
	Value    []byte
	Revision int64
}

// Snapshot is a range at a revision. It is shared: nobody may change it.
type Snapshot struct {
	Entries map[string]Entry
	// Revision of the last event that is applied, or at which the range was read.
	Revision int64
}

const defaultReread = 10 * time.Second

// Follower keeps up with a range. It must not be copied.
type Follower struct {
	Client *clientv3.Client
	Range  Range
	Logger *slog.Logger
	// Reread is how often the follower reads the range anew in any case; zero: 10 s. A watch that has
	// lost its connection is silent, and reading is how the follower notices.
	Reread time.Duration

	mu     sync.Mutex
	behind error // why the last snapshot may be behind; nil: it is not
}

// errNotRead is what Check returns before the first snapshot.
var errNotRead = errors.New("etcd has not been read yet")

// Check returns why the last snapshot may be behind etcd, or nil while a watch keeps it in step.
func (f *Follower) Check(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.behind
}

// Run publishes a snapshot of the range, and one after each change, until ctx ends. Then it returns
// nil. It logs a failure, shows it in Check, and tries again after at most 2 s.
func (f *Follower) Run(ctx context.Context, publish func(Snapshot)) error {
	f.setBehind(ctx, errNotRead)
	pause := &backoff.ExponentialBackOff{
		InitialInterval: 50 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 2 * time.Second,
	}
	pause.Reset()
	for ctx.Err() == nil {
		err := f.follow(ctx, func(s Snapshot) {
			pause.Reset()
			f.setBehind(ctx, nil)
			publish(s)
		})
		if err == nil || ctx.Err() != nil {
			continue
		}
		f.setBehind(ctx, err)
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
		}
	}
	return nil
}

func (f *Follower) setBehind(ctx context.Context, err error) {
	f.mu.Lock()
	before := f.behind
	f.behind = err
	f.mu.Unlock()
	switch {
	case err != nil && !errors.Is(err, errNotRead) && (before == nil || errors.Is(before, errNotRead)):
		f.Logger.WarnContext(ctx, "lost sight of etcd", slog.String("key", f.Range.Key), slog.Any("err", err))
	case err == nil && before != nil && !errors.Is(before, errNotRead):
		f.Logger.InfoContext(ctx, "back in step with etcd", slog.String("key", f.Range.Key))
	}
}

// follow reads the range and watches it until Reread has passed. It returns nil when the range is
// to be read anew.
func (f *Follower) follow(ctx context.Context, publish func(Snapshot)) error {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), cmp.Or(f.Reread, defaultReread))
	defer cancel()
	snapshot, err := Read(ctx, f.Client, f.Range)
	if err != nil {
		return err
	}
	publish(snapshot)
	for answer := range f.Client.Watch(ctx, f.Range.Key, f.Range.options(clientv3.WithRev(snapshot.Revision+1))...) {
		if err := answer.Err(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch %s: %w", f.Range.Key, err) // compaction is one of these
		}
		if len(answer.Events) > 0 {
			snapshot = snapshot.apply(answer.Events)
			publish(snapshot)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("watch %s: the watch has ended", f.Range.Key)
}

// Read reads a range, linearizably.
func Read(ctx context.Context, client *clientv3.Client, r Range) (Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := client.Get(ctx, r.Key, r.options()...)
	if err != nil {
		return Snapshot{}, Failed(ctx, client, "read "+r.Key+" from etcd", err)
	}
	snapshot := Snapshot{Entries: make(map[string]Entry, len(answer.Kvs)), Revision: answer.Header.GetRevision()}
	for _, kv := range answer.Kvs {
		snapshot.Entries[string(kv.Key)] = Entry{Value: kv.Value, Revision: kv.ModRevision}
	}
	return snapshot, nil
}

// apply returns the snapshot after the events; its revision is theirs, not that of the answer that
// brought them.
func (s Snapshot) apply(events []*clientv3.Event) Snapshot {
	s.Entries = maps.Clone(s.Entries)
	for _, e := range events {
		if e.Type == clientv3.EventTypeDelete {
			delete(s.Entries, string(e.Kv.Key))
		} else {
			s.Entries[string(e.Kv.Key)] = Entry{Value: e.Kv.Value, Revision: e.Kv.ModRevision}
		}
		s.Revision = max(s.Revision, e.Kv.ModRevision)
	}
	return s
}
