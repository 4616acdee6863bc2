package reconciler

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/ironherd/ironherd/internal/reconciler/etcdtest"
)

// trio runs a reconciler on each of three nodes over an etcd of three members.
func trio(t *testing.T, r *resources) (*etcdtest.Cluster, []*running) {
	t.Helper()
	cluster, layout := etcdtest.New(t, 3), ownLayout()
	var all []*running
	for _, name := range []string{"n1", "n2", "n3"} {
		all = append(all, start(t, cluster.Client(t), Config{
			Node: name, Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, TTL: 2 * time.Second, FullPass: 50 * time.Millisecond,
		}, r))
	}
	awaitStatus(t, cluster.Client(t), layout, done("v1.0.0", "v1.0.0"))
	return cluster, all
}

func leading(all []*running) (n int) {
	for _, s := range all {
		if s.State().Term > 0 {
			n++
		}
	}
	return n
}

// repairs shows that somebody leads: what is made wrong is put right.
func repairs(t *testing.T, r *resources) {
	t.Helper()
	r.set(func(r *resources) { r.is = "something else" })
	eventually(t, "drift is repaired", func() bool {
		is, _ := r.now()
		return is == "v1.0.0"
	})
}

// TestQuorumLostAndBack: nothing is done that nobody may do, and all goes on by itself.
func TestQuorumLostAndBack(t *testing.T) {
	t.Parallel()
	outage := 4 * time.Second
	if n, err := strconv.Atoi(os.Getenv("IRONHERD_TORTURE_ROUNDS")); err == nil && n > 0 {
		outage = time.Minute
	}
	var r resources
	cluster, all := trio(t, &r)
	layout := all[0].config.Layout
	eventually(t, "one leads", func() bool { return leading(all) == 1 })
	cluster.Down(0)
	cluster.Down(1)
	begun := time.Now()
	eventually(t, "nobody trusts to lead any more", func() bool { return leading(all) == 0 })
	ended := time.Since(begun)
	_, before := r.now()
	r.set(func(r *resources) { r.is = "something else" })
	<-time.After(outage)
	if is, passes := r.now(); passes != before || is == "v1.0.0" || leading(all) > 0 {
		t.Errorf("without a quorum there were %d passes", passes-before)
	}
	failed := make(chan error, 2)
	for i := range 2 {
		go func() { failed <- cluster.Up(t.Context(), i) }()
	}
	for range 2 {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	begun = time.Now()
	eventually(t, "one leads again", func() bool { return leading(all) == 1 })
	back := time.Since(begun)
	repairs(t, &r)
	client := cluster.Client(t)
	if got := joined(announced(t, client, layout)); got != "done v1.0.0/v1.0.0" {
		t.Errorf("announced: %s", got)
	}
	t.Logf("outage of %s: trusted for %s after the quorum was lost, led again %s after it was back", outage, ended.Round(time.Millisecond),
		back.Round(time.Millisecond))
	eventually(t, "all are healthy", func() bool {
		for _, s := range all {
			for _, h := range s.tree.Health(t.Context()) {
				if h.Error != "" {
					return false
				}
			}
		}
		return true
	})
}

// TestMemberReplaced: a member is lost for good and replaced by an empty one; then another one is
// stopped, so that the new one counts.
func TestMemberReplaced(t *testing.T) {
	t.Parallel()
	var r resources
	cluster, all := trio(t, &r)
	client := cluster.Client(t)
	cluster.Down(2)
	repairs(t, &r)
	if err := cluster.Replace(t.Context(), client, 2); err != nil {
		t.Fatal(err)
	}
	cluster.Down(0)
	eventually(t, "one leads", func() bool { return leading(all) == 1 })
	repairs(t, &r)
	register(t, client, all[0].config.Layout, "n4", "v0.9.0") // and changes are seen
	eventually(t, "all see the new node", func() bool {
		for _, s := range all {
			if len(s.State().Nodes.Nodes) != 4 {
				return false
			}
		}
		return true
	})
	if got := joined(announced(t, client, all[0].config.Layout)); got != "done v1.0.0/v1.0.0" {
		t.Errorf("announced: %s", got)
	}
}

// TestRefusedCandidacy: an etcd that is full refuses candidates at once. They pause before they try
// again, say why, and stand as soon as there is space.
func TestRefusedCandidacy(t *testing.T) {
	t.Parallel()
	client, layout := etcdtest.New(t, 1).Client(t), ownLayout()
	register(t, client, layout, "n1", "v1.0.0")
	alarm := func(action etcdserverpb.AlarmRequest_AlarmAction) {
		t.Helper()
		request := etcdserverpb.AlarmRequest{Action: action, Alarm: etcdserverpb.AlarmType_NOSPACE}
		if _, err := etcdserverpb.NewMaintenanceClient(client.ActiveConnection()).Alarm(t.Context(), &request); err != nil {
			t.Fatal(err)
		}
	}
	proposals := func() uint64 {
		t.Helper()
		now, err := client.Status(t.Context(), client.Endpoints()[0])
		if err != nil {
			t.Fatal(err)
		}
		return now.RaftIndex
	}
	alarm(etcdserverpb.AlarmRequest_ACTIVATE)
	before := proposals()
	var r resources
	s := start(t, client, Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout}, &r)
	eventually(t, "the candidate tells, and has paused", func() bool {
		if n := proposals() - before; n > 500 {
			t.Fatalf("%d proposals, without a pause", n)
		}
		for _, h := range s.tree.Health(t.Context()) {
			if h.Name == "elect" && strings.Contains(h.Error, "space") && h.Restarts > 8 {
				return true
			}
		}
		return false
	})
	alarm(etcdserverpb.AlarmRequest_DEACTIVATE)
	eventually(t, "it leads", func() bool { return s.State().Term > 0 })
}
