package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/watch"
)

// shared is one member for the tests that do nothing to it; each has keys of its own.
var (
	shared *etcdtest.Cluster
	keys   atomic.Int64
)

func TestMain(m *testing.M) {
	os.Exit(etcdtest.Main(context.Background(), m, &shared, etcdtest.MembersLeave()...))
}

func ownKey() string { return fmt.Sprintf("/test/%d/", keys.Add(1)) }

func put(t *testing.T, client *clientv3.Client, key, value string) int64 {
	t.Helper()
	answer, err := client.Put(t.Context(), key, value)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Header.GetRevision()
}

// followed runs a follower for the length of the test.
func followed(t *testing.T, client *clientv3.Client, r etcd.Range) (<-chan etcd.Snapshot, *etcd.Follower) {
	t.Helper()
	return rereading(t, client, r, time.Second)
}

func rereading(t *testing.T, client *clientv3.Client, r etcd.Range, every time.Duration) (<-chan etcd.Snapshot, *etcd.Follower) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var latest watch.Memory[etcd.Snapshot]
	f := &etcd.Follower{Client: client, Range: r, Logger: slog.New(slog.DiscardHandler), Reread: every}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := f.Run(ctx, latest.Set); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return latest.Watch(ctx), f
}

// until receives snapshots until one is as wanted.
func until(t *testing.T, snapshots <-chan etcd.Snapshot, wanted func(etcd.Snapshot) bool) etcd.Snapshot {
	t.Helper()
	var last etcd.Snapshot
	for patience := time.After(3 * time.Minute); ; {
		select {
		case s, ok := <-snapshots:
			if last = s; !ok {
				t.Fatal("the follower ended")
			}
			if wanted(s) {
				return s
			}
		case <-patience:
			t.Fatalf("not what is wanted, for three minutes: %+v", last)
		}
	}
}

// awaitStep waits until the follower says that it is in step with etcd, or that it is not.
func awaitStep(t *testing.T, f *etcd.Follower, wanted bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for patience := time.After(time.Minute); (f.Check(t.Context()) == nil) != wanted; {
		select {
		case <-tick.C:
		case <-patience:
			t.Fatalf("for a minute, the follower says that it is in step: %t", !wanted)
		}
	}
}

func TestFollowerAppliesEverything(t *testing.T) {
	t.Parallel()
	client, prefix := shared.Client(t), ownKey()
	put(t, client, prefix+"a", "1")
	// Reading anew publishes the revision of all of etcd, where other tests write, too.
	snapshots, _ := rereading(t, client, etcd.Range{Key: prefix, Prefix: true}, time.Hour)
	until(t, snapshots, func(s etcd.Snapshot) bool { return len(s.Entries) == 1 })
	put(t, client, prefix+"b", "1")
	if _, err := client.Delete(t.Context(), prefix+"a"); err != nil {
		t.Fatal(err)
	}
	last := put(t, client, prefix+"b", "2")
	put(t, client, "/elsewhere"+prefix, "1")
	s := until(t, snapshots, func(s etcd.Snapshot) bool { return s.Revision >= last })
	if b := s.Entries[prefix+"b"]; len(s.Entries) != 1 || string(b.Value) != "2" || b.Revision != last || s.Revision != last {
		t.Errorf("%+v, want only b, of revision %d", s, last)
	}
}

// TestAnswersHeaderIsAheadOfItsEvents shows what a write must not be conditional on. A watch that
// starts in the past is brought up to date in batches; the header of each has the revision of the
// store, which is newer than the events in it. A write on condition that nothing has changed since
// the header would pass, although what it relies on is stale.
func TestAnswersHeaderIsAheadOfItsEvents(t *testing.T) {
	t.Parallel()
	client, prefix := shared.Client(t), ownKey()
	node, witness := etcd.Range{Key: prefix, Prefix: true}, "/decided"+prefix
	start := put(t, client, prefix+"n1", "release 1")
	for range 1500 { // more than one batch
		put(t, client, prefix+"n2", "release 1")
	}
	newest := put(t, client, prefix+"n1", "release 2") // the change that matters
	answer := <-client.Watch(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithRev(start))
	if err := answer.Err(); err != nil {
		t.Fatal(err)
	}
	header := answer.Header.GetRevision()
	applied := answer.Events[len(answer.Events)-1].Kv.ModRevision
	if header < newest || applied >= newest {
		t.Fatalf("header %d, last event %d, newest change %d: this answer does not show it", header, applied, newest)
	}
	t.Logf("the header says %d, the last event is of %d, and what matters happened at %d", header, applied, newest)
	write := func(since int64) bool {
		done, err := client.Txn(t.Context()).If(node.Unchanged(since)).Then(clientv3.OpPut(witness, "all nodes run release 1")).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return done.Succeeded
	}
	if !write(header) {
		t.Error("the write that relies on the header was refused: then the header would do")
	}
	if write(applied) {
		t.Error("the write that relies on the last event passed, although a node has changed since")
	}
	// A follower gets there, and never says that it is further than it is.
	snapshots, _ := followed(t, client, node)
	s := until(t, snapshots, func(s etcd.Snapshot) bool { return s.Revision >= newest })
	if string(s.Entries[prefix+"n1"].Value) != "release 2" || !write(s.Revision) {
		t.Errorf("the follower is at %d with %s", s.Revision, s.Entries[prefix+"n1"].Value)
	}
}

// TestSnapshotsAreWhatTheySay puts while a follower follows, and compares each snapshot with what
// the store says it was at that revision.
func TestSnapshotsAreWhatTheySay(t *testing.T) {
	t.Parallel()
	client, prefix := shared.Client(t), ownKey()
	snapshots, _ := followed(t, client, etcd.Range{Key: prefix, Prefix: true})
	const changes = 300
	last := make(chan int64, 1)
	go func() {
		var revision int64
		for i := range changes {
			key := fmt.Sprintf("%sn%d", prefix, i%5)
			if i%7 == 3 {
				answer, err := client.Delete(context.WithoutCancel(t.Context()), key)
				if err != nil {
					t.Error(err)
					return
				}
				revision = answer.Header.GetRevision()
				continue
			}
			answer, err := client.Put(context.WithoutCancel(t.Context()), key, strconv.Itoa(i))
			if err != nil {
				t.Error(err)
				return
			}
			revision = answer.Header.GetRevision()
		}
		last <- revision
	}()
	compared, end := 0, int64(-1)
	until(t, snapshots, func(s etcd.Snapshot) bool {
		select {
		case end = <-last:
		default:
		}
		compare(t, client, prefix, s)
		compared++
		return end >= 0 && s.Revision >= end
	})
	t.Logf("%d snapshots compared", compared)
}

// compare compares a snapshot with what etcd had at its revision.
func compare(t *testing.T, client *clientv3.Client, prefix string, s etcd.Snapshot) {
	t.Helper()
	was, err := client.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithRev(s.Revision))
	if err != nil {
		t.Fatal(err)
	}
	if len(was.Kvs) != len(s.Entries) {
		t.Fatalf("at %d there were %d keys, not %d", s.Revision, len(was.Kvs), len(s.Entries))
	}
	for _, kv := range was.Kvs {
		if e := s.Entries[string(kv.Key)]; string(e.Value) != string(kv.Value) || e.Revision != kv.ModRevision {
			t.Fatalf("at %d %s was %s, not %s", s.Revision, kv.Key, kv.Value, e.Value)
		}
	}
}

// TestSnapshotsWhileCatchingUp: the follower's watch begins so far behind that etcd sends several
// answers, whose headers are ahead of their events. The follower watches only when it has published
// what it read, so whatever is put meanwhile is what it has to catch up with, however long that
// takes.
func TestSnapshotsWhileCatchingUp(t *testing.T) {
	t.Parallel()
	const (
		batch = 1000 // revisions in an answer at most: etcd's watchBatchMaxRevs
		puts  = 2*batch + 1
	)
	cluster := etcdtest.New(t, 1) // nobody else makes revisions
	client, prefix := cluster.Client(t), ownKey()
	before := put(t, client, prefix+"n0", "first")
	follower := &etcd.Follower{
		Client: client, Range: etcd.Range{Key: prefix, Prefix: true}, Logger: slog.New(slog.DiscardHandler), Reread: time.Hour,
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var snapshots []etcd.Snapshot
	newest := before + puts
	err := follower.Run(ctx, func(s etcd.Snapshot) {
		snapshots = append(snapshots, s)
		if len(snapshots) == 1 {
			putAll(t, client, prefix, puts)
		}
		if s.Revision >= newest {
			stop()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if first := snapshots[0].Revision; first != before {
		t.Fatalf("what was read is of revision %d, not %d", first, before)
	}
	for _, s := range snapshots {
		compare(t, client, prefix, s)
	}
	last := snapshots[len(snapshots)-1].Revision
	if between := len(snapshots) - 2; last != newest || between < puts/batch {
		t.Errorf("%d snapshots while it caught up with %d puts, up to revision %d of %d", between, puts, last, newest)
	}
}

// putAll puts n values, each at a revision of its own: many at a time, because etcd writes them to
// its disk together.
func putAll(t *testing.T, client *clientv3.Client, prefix string, n int64) {
	t.Helper()
	var next atomic.Int64
	var putting sync.WaitGroup
	for range 128 {
		putting.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				if _, err := client.Put(t.Context(), prefix+"n"+strconv.FormatInt(i%5, 10), strconv.FormatInt(i, 10)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	putting.Wait()
}

// TestCompactionUnderWatch compacts away what a follower has not seen: it is cut off from etcd
// meanwhile.
func TestCompactionUnderWatch(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.New(t, 1)
	client, prefix := cluster.Client(t), "/nodes/"
	put(t, client, prefix+"n1", "1")
	link := etcdtest.NewLink(t, cluster.Endpoints()[0])
	through, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: []string{link.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = through.Close() })
	snapshots, follower := followed(t, through, etcd.Range{Key: prefix, Prefix: true})
	first := until(t, snapshots, func(s etcd.Snapshot) bool { return len(s.Entries) == 1 })
	link.Cut()
	for i := range 10 {
		put(t, client, prefix+"n2", strconv.Itoa(i))
	}
	last := put(t, client, prefix+"n1", "2")
	if _, err := client.Compact(t.Context(), last, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(t.Context(), prefix, clientv3.WithRev(first.Revision)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Fatalf("what the follower has is not compacted away: %v", err)
	}
	link.Restore()
	s := until(t, snapshots, func(s etcd.Snapshot) bool { return s.Revision >= last })
	if len(s.Entries) != 2 || string(s.Entries[prefix+"n1"].Value) != "2" {
		t.Errorf("%+v", s)
	}
	again := put(t, client, prefix+"n3", "1") // and it goes on watching
	until(t, snapshots, func(s etcd.Snapshot) bool { return s.Revision >= again && len(s.Entries) == 3 })
	awaitStep(t, follower, true)
}

// TestFollowerSaysThatItIsBehind: a member that is down, and comes back.
func TestFollowerSaysThatItIsBehind(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.New(t, 1)
	client := cluster.Client(t)
	put(t, client, "/nodes/n1", "1")
	snapshots, follower := followed(t, client, etcd.Range{Key: "/nodes/", Prefix: true})
	until(t, snapshots, func(s etcd.Snapshot) bool { return len(s.Entries) == 1 })
	cluster.Down(0)
	awaitStep(t, follower, false)
	if err := cluster.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	put(t, client, "/nodes/n2", "1")
	until(t, snapshots, func(s etcd.Snapshot) bool { return len(s.Entries) == 2 })
	awaitStep(t, follower, true)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]etcd.Config{
		"no endpoints":   {},
		"no URL":         {Endpoints: []string{"192.0.2.1:2379"}},
		"half a pair":    {Endpoints: []string{"https://192.0.2.1:2379"}, CertFile: "/x"},
		"not encrypted":  {Endpoints: []string{"http://192.0.2.1:2379"}, CAFile: "/x"},
		"no such file":   {Endpoints: []string{"https://192.0.2.1:2379"}, CAFile: "/does/not/exist"},
		"no certificate": {Endpoints: []string{"https://192.0.2.1:2379"}, CAFile: "follow_test.go"},
	} {
		if client, err := etcd.Dial(t.Context(), config); err == nil {
			_ = client.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}
