package reconciler

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/release"
)

func campaign(t *testing.T, client *clientv3.Client, layout etcd.Layout, name string) (*election.Leadership, error) {
	t.Helper()
	return election.Campaign(t.Context(), election.Config{
		Client: client, Prefix: layout.Election(), TTL: time.Minute, Logger: quiet(t),
		Candidate: election.Candidate{Name: name, Build: release.Own()},
	})
}

// TestAnnouncementsAreConditional: each condition on its own.
func TestAnnouncementsAreConditional(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	l, err := campaign(t, client, layout, "n1")
	if err != nil {
		t.Fatal(err)
	}
	write := func(a announcement) (int64, error) {
		a.status = done("v1.0.0", "v1.0.0")
		return announce(t.Context(), client, layout, l, a)
	}
	refused := func(what string, a announcement, want fleet.Kind) {
		t.Helper()
		before := statusNow(t, client, layout)
		if _, err := write(a); fleet.KindOf(err) != want {
			t.Errorf("%s: %v", what, err)
		}
		if now := statusNow(t, client, layout); now != before {
			t.Errorf("%s: the status was written", what)
		}
	}
	refused("a status is expected, but there is none", announcement{instead: 1}, fleet.KindConflict)
	revision, err := write(announcement{})
	if err != nil {
		t.Fatal(err)
	}
	refused("no status is expected, but there is one", announcement{}, fleet.KindConflict)
	refused("another status is expected", announcement{instead: revision - 1}, fleet.KindConflict)
	if revision, err = write(announcement{instead: revision}); err != nil {
		t.Error(err)
	}
	register(t, client, layout, "n2", "v1.0.0")
	refused("a node has come", announcement{instead: revision, guarded: true, nodes: revision}, fleet.KindConflict)
	now, err := client.Get(t.Context(), layout.Node("n2"))
	if err != nil {
		t.Fatal(err)
	}
	seen := now.Kvs[0].ModRevision
	refused("a node has changed, one revision ago", announcement{instead: revision, guarded: true, nodes: seen - 1}, fleet.KindConflict)
	if revision, err = write(announcement{instead: revision, guarded: true, nodes: seen}); err != nil {
		t.Errorf("nothing has changed: %v", err)
	}
	register(t, client, layout, "n2", "v1.1.0")
	if revision, err = write(announcement{instead: revision}); err != nil {
		t.Errorf("it does not matter that a node has changed: %v", err)
	}
	keys, err := client.Get(t.Context(), layout.Election()+"candidates/", clientv3.WithPrefix())
	if err != nil || len(keys.Kvs) != 1 {
		t.Fatal(keys, err)
	}
	if _, err := client.Delete(t.Context(), string(keys.Kvs[0].Key)); err != nil {
		t.Fatal(err)
	}
	if _, err := write(announcement{instead: revision}); !errors.Is(err, election.ErrDeposed) {
		t.Errorf("deposed: %v", err)
	}
	if now := statusNow(t, client, layout); now.Revision != revision {
		t.Error("a deposed leader has written")
	}
	<-l.Done() // it knows at once
	_ = l.Resign(t.Context())
}

// TestRestrictingAgainstStarting lets a node of the old release register and ask whether it may
// serve, at the very moment at which a leader that has not seen it restricts the status. Either may
// win, but not both.
func TestRestrictingAgainstStarting(t *testing.T) {
	t.Parallel()
	client, other := shared.Client(t), shared.Client(t)
	served, restricted := 0, 0
	for range 150 {
		layout := ownLayout()
		l, err := campaign(t, client, layout, "n1")
		if err != nil {
			t.Fatal(err)
		}
		register(t, client, layout, "n1", "v2.0.0")
		revision, err := announce(t.Context(), client, layout, l, announcement{status: done("v1.0.0", "v1.0.0")})
		if err != nil {
			t.Fatal(err)
		}
		view := answered(t, func() (etcd.Snapshot, error) { return etcd.Read(t.Context(), client, layout.Nodes()) })
		plan := gate.Decide(build("v2.0.0", "v1.0.0", "v2.0.0"), statusNow(t, client, layout),
			gate.Nodes{Known: []gate.Node{{Name: "n1", Release: v("v2.0.0")}}, Revision: view.Revision})
		var both sync.WaitGroup
		var mayServe bool
		both.Go(func() {
			register(t, other, layout, "n2", "v1.0.0")
			mayServe, _ = ready(t, other, layout, "n2", build("v1.0.0", "v1.0.0", "v1.0.0"))
		})
		<-time.After(time.Duration(rand.IntN(1500)) * time.Microsecond)
		_, err = announce(t.Context(), client, layout, l, announcement{
			status: *plan.Before, instead: revision, guarded: plan.Guarded, nodes: view.Revision,
		})
		both.Wait()
		switch {
		case mayServe && err == nil:
			t.Fatal("an API server of the old release may serve, and the status was restricted without it")
		case mayServe:
			served++
		case err == nil:
			restricted++
		}
		_ = l.Resign(t.Context())
	}
	t.Logf("the node was first %d times, the leader %d times", served, restricted)
	if served == 0 || restricted == 0 {
		t.Log("only one of them was ever first: this machine shows nothing")
	}
}

// TestThousandDeposed deposes leaders while they write, a thousand times, and then reads etcd's
// whole history: no write of a leader may come after its key has gone.
func TestThousandDeposed(t *testing.T) {
	t.Parallel()
	const depositions, candidates = 1000, 3
	client, layout := shared.Client(t), ownLayout()
	begin, err := client.Get(t.Context(), layout.Status())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	var accepted, refused atomic.Int64
	wrote := make(chan struct{}, 1)
	for range candidates {
		own := shared.Client(t)
		writers.Go(func() {
			for ctx.Err() == nil {
				l, err := election.Campaign(ctx, election.Config{
					Client: own, Prefix: layout.Election(), TTL: time.Minute, Logger: quiet(t), Candidate: election.Candidate{Name: "n"},
				})
				if err != nil {
					continue
				}
				writeUntilRefused(ctx, own, layout, l, func() {
					accepted.Add(1)
					select {
					case wrote <- struct{}{}:
					default:
					}
				})
				refused.Add(1)
				_ = l.Resign(t.Context())
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	for deposed := 0; deposed < depositions; {
		<-wrote // somebody leads, and writes
		oldest, err := client.Get(ctx, layout.Election()+"candidates/", clientv3.WithFirstCreate()...)
		if err != nil {
			t.Fatal(err)
		}
		if len(oldest.Kvs) == 0 {
			continue
		}
		<-time.After(time.Duration(random.IntN(2000)) * time.Microsecond)
		if random.IntN(2) == 0 {
			_, err = client.Revoke(ctx, clientv3.LeaseID(oldest.Kvs[0].Lease))
		} else {
			_, err = client.Delete(ctx, string(oldest.Kvs[0].Key))
		}
		if err == nil {
			deposed++
		}
	}
	cancel()
	writers.Wait()
	checked := checkHistory(t, client, layout, begin.Header.GetRevision()+1)
	t.Logf("%d depositions: %d writes accepted, %d refused; %d found in etcd's history, each of the leader of its moment",
		depositions, accepted.Load(), refused.Load(), checked)
	if int64(checked) < accepted.Load() || accepted.Load() < depositions || refused.Load() < depositions/2 {
		t.Error("too little happened for this to tell anything")
	}
}

// writeUntilRefused writes the status as fast as it can, as the leader would that has not noticed
// anything. The version tells the term.
func writeUntilRefused(ctx context.Context, client *clientv3.Client, layout etcd.Layout, l *election.Leadership, accepted func()) {
	version := release.MustParse("v1.0." + itoa(l.Term))
	for ctx.Err() == nil {
		view, err := readStatus(ctx, client, layout)
		if err != nil {
			return
		}
		_, err = announce(ctx, client, layout, l, announcement{
			status:  gate.Status{State: gate.Working, Version: version, MinimumCompatible: version},
			instead: view.Revision,
		})
		switch {
		case err == nil:
			accepted()
		case errors.Is(err, election.ErrDeposed):
			return
		}
	}
}

// checkHistory goes through everything that ever happened, in order, and returns how many writes of
// the status there were.
func checkHistory(t *testing.T, client *clientv3.Client, layout etcd.Layout, from int64) (writes int) {
	t.Helper()
	end, err := client.Get(t.Context(), layout.Root+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	last := end.Header.GetRevision()
	if _, err := client.Put(t.Context(), layout.Root+"/end", "x"); err != nil {
		t.Fatal(err)
	}
	alive := map[string]int64{} // candidates by key: creation revision
	var term int64
	var leader string // key of the one who began the term
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for answer := range client.Watch(ctx, layout.Root+"/", clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if err := answer.Err(); err != nil {
			t.Fatal(err)
		}
		for _, e := range answer.Events {
			key := string(e.Kv.Key)
			switch {
			case e.Kv.ModRevision > last:
				return writes
			case strings.Contains(key, "/candidates/") && e.Type == clientv3.EventTypeDelete:
				delete(alive, key)
			case strings.Contains(key, "/candidates/"):
				alive[key] = e.Kv.CreateRevision
			case strings.HasSuffix(key, "/term"):
				term, leader = e.Kv.Version, ""
				for candidate, created := range alive {
					if leader == "" || created < alive[leader] {
						leader = candidate
					}
				}
			case key == layout.Status():
				writes++
				wrote := observe(e.Kv.Value, e.Kv.ModRevision).Status.Version
				if _, leads := alive[leader]; !leads || wrote != release.MustParse("v1.0."+itoa(term)) {
					t.Errorf("at %d the status was written by %s, in term %d, whose leader is alive: %v", e.Kv.ModRevision, wrote, term, leads)
				}
			}
		}
	}
	return writes
}
