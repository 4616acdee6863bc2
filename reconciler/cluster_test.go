package reconciler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

// leads returns who leads, and its fault.
func leads(t *testing.T, client *clientv3.Client, layout etcd.Layout) election.Candidate {
	t.Helper()
	return answered(t, func() (election.Candidate, error) {
		leader, _, err := election.Leader(t.Context(), client, layout.Election())
		return leader, err
	})
}

// TestOtherClusterIsLeftAlone: a node of cluster b that was given the etcd of cluster a neither
// changes b, nor tells people of b anything, nor announces anything to a, also where it alone can
// lead. It says why, and hands over to a node of a.
func TestOtherClusterIsLeftAlone(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	one, two := build("v1.0.0", "v1.0.0", "v1.0.0"), build("v1.1.0", "v1.0.0", "v1.0.0")
	a, b := resources{cluster: "uid-of-a"}, resources{cluster: "uid-of-b"}
	config := Config{Node: "n1", Build: one, Layout: layout, TTL: time.Minute, FullPass: 100 * time.Millisecond, Settle: time.Millisecond}
	first := start(t, client, config, &a)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	first.stop()
	register(t, client, layout, "n1", "v1.1.0")
	stray := &publishing{hand: b.hand("v1.1.0"), shown: make(chan Standing, 1)}
	config.Node, config.Build = "n2", two
	startSourced(t, client, config, stray)
	eventually(t, "it leads, and tells its fault", func() bool {
		leader := leads(t, client, layout)
		return leader.Name == "n2" && strings.Contains(leader.Fault, "uid-of-a") && strings.Contains(leader.Fault, "uid-of-b")
	})
	eventually(t, "people of a see it as trouble", func() bool {
		o := look(t, client, layout, two)
		return o.Trouble != nil && o.Trouble.Node == "n2" && strings.Contains(o.Trouble.Error, layout.Cluster())
	})
	if now := statusNow(t, client, layout).Status; now != done("v1.0.0", "v1.0.0") {
		t.Errorf("it has announced %s", now)
	}
	config.Node = "n1"
	start(t, client, config, &a)
	awaitStatus(t, client, layout, done("v1.1.0", "v1.0.0"))
	if leader := leads(t, client, layout); leader.Name != "n1" || leader.Fault != "" {
		t.Errorf("not the node of a leads: %+v", leader)
	}
	if is, passes := b.now(); passes != 0 {
		t.Errorf("cluster b had %d passes, and is as %q wants it", passes, is)
	}
	select {
	case s := <-stray.shown:
		t.Errorf("people of b were shown %+v", s)
	default:
	}
	if got, want := joined(announced(t, client, layout)), "done v1.0.0/v1.0.0, working v1.0.0/v1.0.0, done v1.1.0/v1.0.0"; got != want {
		t.Errorf("announced: %s, want: %s", got, want)
	}
}

// TestClusterMadeAnew: a cluster that takes the place of another one while the leader runs is left
// alone until a person has said that the keys in etcd are of that one. That the API server does not
// tell its cluster for a while changes nothing. Probes are more frequent than passes here, so that
// one of them finds first that all is well again.
func TestClusterMadeAnew(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	r := resources{cluster: "uid-before"}
	config := Config{
		Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, TTL: 2 * time.Second, FullPass: 5 * time.Second,
	}
	leader := start(t, client, config, &r)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	r.set(func(r *resources) { r.cluster = "uid-after" })
	told := func() bool { return strings.Contains(leader.State().PassError, "uid-after") }
	eventually(t, "it tells", told)
	_, before := r.now()
	since := leader.State().PassedAt
	eventually(t, "it has tried again", func() bool { return leader.State().PassedAt.Sub(since) > time.Second })
	r.set(func(r *resources) { r.silent = errors.New("too many requests") })
	since = leader.State().PassedAt
	eventually(t, "nobody can tell for a while", func() bool { return leader.State().PassedAt.Sub(since) > time.Second })
	if _, after := r.now(); after != before || leader.State().Fault == "" {
		t.Errorf("%d passes over the other cluster: %+v", after-before, leader.State())
	}
	r.set(func(r *resources) { r.silent = nil })
	put(t, client, layout.Cluster(), "uid-after")
	eventually(t, "it goes on", func() bool {
		_, passes := r.now()
		return passes > before && leader.State().PassError == "" && leader.State().Fault == "" && leader.shows()
	})
}

// shows reports whether people of the cluster are shown how things stand.
func (r *running) shows() bool {
	_, known := r.standing(r.State().Term)
	return known
}

// TestClusterMadeAnewDuringAHold: a leader that holds compares, too. It does not begin what it held
// back before a person has said that the keys in etcd are of the new cluster.
func TestClusterMadeAnewDuringAHold(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	register(t, client, layout, "n1", "v2.0.0")
	put(t, client, layout.Status(), `{"state":"done","version":"v1.0.0","minimumCompatible":"v1.0.0"}`)
	r := resources{cluster: "uid-before", silent: errors.New("too many requests")}
	config := Config{
		Node: "n1", Build: build("v2.0.0", "v2.0.0", "v2.0.0"), Layout: layout, TTL: 2 * time.Second, FullPass: 50 * time.Millisecond,
	}
	leader := start(t, client, config, &r)
	eventually(t, "it waits", func() bool { return leader.State().PassError == "too many requests" })
	register(t, client, layout, "n2", "v1.0.0") // its API server may serve
	r.set(func(r *resources) { r.silent = nil })
	eventually(t, "it holds, and no pass fails", func() bool {
		now := leader.State()
		return now.Blocked != "" && now.PassError == "" && leader.shows()
	})
	r.set(func(r *resources) { r.cluster = "uid-after" })
	eventually(t, "it shows nothing", func() bool { return !leader.shows() && leader.State().Fault != "" })
	register(t, client, layout, "n2", "v2.0.0")
	eventually(t, "it tells", func() bool { return strings.Contains(leader.State().PassError, "uid-after") })
	if _, passes := r.now(); passes > 0 || statusNow(t, client, layout).Status != done("v1.0.0", "v1.0.0") {
		t.Errorf("%d passes over the other cluster, and it has announced %s", passes, statusNow(t, client, layout).Status)
	}
	put(t, client, layout.Cluster(), "uid-after\n") // as echo writes it
	awaitStatus(t, client, layout, done("v2.0.0", "v2.0.0"))
	eventually(t, "it shows", leader.shows)
}

// TestOtherClusterIsAFaultAtOnce: what is certain when it is found out once is a fault then, and
// told in the log, also after another fault.
func TestOtherClusterIsAFaultAtOnce(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", errBroken.Error()} {
		t.Run("after "+before, func(t *testing.T) {
			t.Parallel()
			client, layout := shared.Client(t), ownLayout()
			put(t, client, layout.Cluster(), "uid-of-a")
			b := resources{cluster: "uid-of-b"}
			var log bytes.Buffer // of one goroutine
			s, err := NewService(Config{
				Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, TTL: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			}, client, b.hand("v1.0.0"))
			if err != nil {
				t.Fatal(err)
			}
			s.fault.Set(before)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- s.probe(ctx) }()
			eventually(t, "its fault", func() bool { return strings.Contains(s.State().Fault, "uid-of-b") })
			cancel()
			if err := <-ended; err != nil || !strings.Contains(log.String(), "uid-of-a") || !strings.Contains(log.String(), "uid-of-b") {
				t.Errorf("%v, and the log: %s", err, log.String())
			}
		})
	}
}

func put(t *testing.T, client *clientv3.Client, key, value string) {
	t.Helper()
	if _, err := client.Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

// TestClusterNotKnownYet: an API server that does not tell which cluster it is of, as one that does
// not let us ask or that has just begun, is waited for. That is no fault of the node.
func TestClusterNotKnownYet(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	text, err := done("v1.0.0", "v1.0.0").Encode()
	if err == nil {
		_, err = client.Put(t.Context(), layout.Status(), string(text))
	}
	if err != nil {
		t.Fatal(err)
	}
	r := resources{cluster: "uid", silent: errors.New("namespaces is forbidden")}
	config := Config{Node: "n1", Build: build("v1.1.0", "v1.0.0", "v1.0.0"), Layout: layout, FullPass: 50 * time.Millisecond}
	leader := start(t, client, config, &r)
	eventually(t, "it tells", func() bool { return leader.State().PassError == "namespaces is forbidden" })
	if _, passes := r.now(); passes > 0 || leader.State().Fault != "" || statusNow(t, client, layout).Status != done("v1.0.0", "v1.0.0") {
		t.Errorf("%d passes, %+v", passes, leader.State())
	}
	r.set(func(r *resources) { r.silent = nil })
	awaitStatus(t, client, layout, done("v1.1.0", "v1.0.0"))
	if kept, err := client.Get(t.Context(), layout.Cluster()); err != nil || len(kept.Kvs) != 1 || string(kept.Kvs[0].Value) != "uid" {
		t.Errorf("etcd has %v, %v", kept, err)
	}
}

// TestClusterMayNotBeAsked: a leader that has no right to ask, as after an upgrade without the new
// rights, goes on while etcd does not say which cluster it is of. It asks again until it may. Once
// etcd says it, a leader without the right waits.
func TestClusterMayNotBeAsked(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	r := resources{cluster: "uid", silent: fmt.Errorf("%w: namespaces is forbidden", ErrMayNotAsk)}
	config := Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, FullPass: 50 * time.Millisecond}
	leader := start(t, client, config, &r)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	eventually(t, "it shows", leader.shows)
	kept := func() (value string) {
		stored := answered(t, func() (*clientv3.GetResponse, error) { return client.Get(t.Context(), layout.Cluster()) })
		for _, kv := range stored.Kvs {
			value = string(kv.Value)
		}
		return value
	}
	if kept() != "" {
		t.Errorf("etcd has %s", kept())
	}
	r.set(func(r *resources) { r.silent = nil })
	eventually(t, "etcd says it", func() bool { return kept() == "uid" })
	leader.stop()
	r.set(func(r *resources) { r.silent = fmt.Errorf("%w: namespaces is forbidden", ErrMayNotAsk) })
	_, before := r.now()
	config.Build = build("v1.1.0", "v1.0.0", "v1.0.0")
	leader = start(t, client, config, &r)
	eventually(t, "it waits", func() bool { return strings.Contains(leader.State().PassError, "namespaces is forbidden") })
	if _, after := r.now(); after != before || statusNow(t, client, layout).Status != done("v1.0.0", "v1.0.0") {
		t.Errorf("%d passes, %+v", after-before, leader.State())
	}
}

// TestClusterIsNotToldAnyMore: a leader that decides anew, and does not learn which cluster its API
// server is of, says that no pass can begin.
func TestClusterIsNotToldAnyMore(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	r := resources{cluster: "uid"}
	config := Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, FullPass: 50 * time.Millisecond}
	leader := start(t, client, config, &r)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	eventually(t, "a pass is ready", func() bool { return leader.State().PassReady })
	r.set(func(r *resources) { r.silent = errors.New("throttled") })
	put(t, client, layout.Status(), `{"state":"done","version":"v1.0.0","minimumCompatible":"v1.0.0"}`)
	eventually(t, "it fails", func() bool {
		err := leader.checkPass(t.Context())
		return err != nil && strings.Contains(err.Error(), "throttled")
	})
	r.set(func(r *resources) { r.silent = nil })
	eventually(t, "it goes on", func() bool { return leader.checkPass(t.Context()) == nil })
}

// TestClusterIsSaidByTheLeader: who no longer leads says nothing, and what was said counts, also
// for one who has not heard that his own word arrived.
func TestClusterIsSaidByTheLeader(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	a, b := resources{cluster: "uid-of-a"}, resources{cluster: "uid-of-b"}
	own, other := a.hand("v1.0.0"), b.hand("v1.0.0")
	campaign := func() *election.Leadership {
		t.Helper()
		l, err := election.Campaign(t.Context(), election.Config{
			Client: client, Prefix: layout.Election(), TTL: time.Minute, Logger: quiet(t),
			Candidate: election.Candidate{Name: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0")},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Resign(context.WithoutCancel(t.Context())) })
		return l
	}
	say := func(h *hand, l *election.Leadership, want error) {
		t.Helper()
		if err := checkCluster(t.Context(), client, layout, h, l); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	say(own, nil, nil) // nobody has said it
	say(other, nil, nil)
	deposed := campaign()
	if _, err := client.Delete(t.Context(), layout.Election()+"candidates/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	say(other, deposed, election.ErrDeposed)
	leader := campaign()
	say(own, leader, nil)
	say(own, leader, nil)
	say(other, leader, errOtherCluster)
	say(other, deposed, errOtherCluster)
	say(other, nil, errOtherCluster)
	say(own, nil, nil)
}
