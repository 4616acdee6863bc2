package reconciler

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/release"
)

func TestFromNothingToDone(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	b := build("v1.0.0", "v1.0.0", "v1.0.0")
	waited := make(chan error, 1)
	go func() {
		waited <- WaitReady(t.Context(), Ready{Client: client, Layout: layout, Node: "n1", Build: b, Register: true, Logger: quiet(t)})
	}()
	s := start(t, client, Config{Node: "n1", Build: b, Layout: layout}, &r)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	if is, passes := r.now(); is != "v1.0.0" || passes != 1 {
		t.Errorf("the resources are of %s after %d passes", is, passes)
	}
	if got := joined(announced(t, client, layout)); got != "done v1.0.0/v1.0.0" {
		t.Errorf("announced: %s", got)
	}
	o := look(t, client, layout, b)
	if o.Leader == nil || o.Leader.Name != "n1" || len(o.Nodes) != 1 || !o.Nodes[0].Admitted.OK || o.Holds {
		t.Errorf("%+v", o)
	}
	eventually(t, "the state says so", func() bool {
		state := s.State()
		return state.Term == 1 && state.Doing == "keeping everything as our release wants it" && state.Campaign.OK
	})
	// Drift: a pass at once.
	r.set(func(r *resources) { r.is = "something else" })
	s.hand.changed <- struct{}{}
	eventually(t, "the drift is repaired", func() bool {
		is, _ := r.now()
		return is == "v1.0.0"
	})
	s.stop()
	if leader, found, err := election.Leader(t.Context(), client, layout.Election()); found || err != nil {
		t.Errorf("%+v still leads, %v", leader, err)
	}
}

// TestUpgradeAndDowngrade takes two nodes from release 1 to 2, whose base resources do not admit
// API servers of release 1, and back.
func TestUpgradeAndDowngrade(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	one, two := build("v1.0.0", "v1.0.0", "v1.0.0"), build("v2.0.0", "v1.0.0", "v2.0.0")
	config := func(name string, b release.Build) Config {
		return Config{Node: name, Build: b, Layout: layout, TTL: time.Minute}
	}
	a := start(t, client, config("a", one), &r)
	b := start(t, client, config("b", one), &r)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))

	// Node a: its reconciler and its API server are replaced.
	a.stop()
	register(t, client, layout, "a", "v2.0.0")
	a = start(t, client, config("a", two), &r)
	eventually(t, "the old release no longer leads", func() bool { return b.State().Term == 0 && !b.State().Campaign.OK })
	eventually(t, "the new one holds", func() bool { return strings.HasPrefix(a.State().Doing, "holding: ") })
	if doing := a.State().Doing; !strings.Contains(doing, "older than v2.0.0: b (v1.0.0)") {
		t.Errorf("it does not say what it waits for: %s", doing)
	}
	o := look(t, client, layout, one)
	if !o.Holds || !strings.Contains(o.Reason, "b (v1.0.0)") || o.Leader.Name != "a" {
		t.Errorf("others cannot see why: %+v", o)
	}
	if is, _ := r.now(); is != "v1.0.0" {
		t.Fatalf("the resources became %s while an API server of v1.0.0 serves", is)
	}
	// it needs no more than v1.0.0, and is not below its minimum
	if ok, reason := ready(t, client, layout, "a", two); !ok {
		t.Errorf("the new API server is kept waiting: %s", reason)
	}
	b.stop()
	register(t, client, layout, "b", "v2.0.0")
	b = start(t, client, config("b", two), &r)
	awaitStatus(t, client, layout, done("v2.0.0", "v2.0.0"))
	if is, _ := r.now(); is != "v2.0.0" {
		t.Errorf("the resources are of %s", is)
	}

	// And back. The first node that goes back is kept from serving.
	a.stop()
	register(t, client, layout, "a", "v1.0.0")
	a = start(t, client, config("a", one), &r)
	eventually(t, "the newest leads", func() bool { return b.State().Term > 0 && a.State().Term == 0 })
	if ok, reason := ready(t, client, layout, "a", one); ok || reason != "our release v1.0.0 is below the minimum compatible release v2.0.0 of the status" {
		t.Errorf("%v: %s", ok, reason)
	}
	b.stop()
	register(t, client, layout, "b", "v1.0.0")
	start(t, client, config("b", one), &r)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	want := []string{
		"done v1.0.0/v1.0.0",
		"working v1.0.0/v2.0.0", "done v2.0.0/v2.0.0", // up: restricted first
		"working v1.0.0/v2.0.0", "done v1.0.0/v1.0.0", // down: restricted to the same
	}
	if got := announced(t, client, layout); joined(got) != joined(want) {
		t.Errorf("announced:\n%s\nwant:\n%s", joined(got), joined(want))
	}
}

// TestUnreadableStatus: bytes that nobody understands; while there is a leader, and before there is
// one.
func TestUnreadableStatus(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\x00\xfe", `{"state":"done"}`, `{"state":"resting","version":"v1.0.0","minimumCompatible":"v1.0.0"}`, "[]"} {
		t.Run(fmt.Sprintf("%q", text), func(t *testing.T) {
			t.Parallel()
			client, layout := shared.Client(t), ownLayout()
			if _, err := client.Put(t.Context(), layout.Status(), text); err != nil {
				t.Fatal(err)
			}
			register(t, client, layout, "n1", "v1.0.0")
			register(t, client, layout, "old", "v0.9.0")
			b := build("v1.0.0", "v1.0.0", "v1.0.0")
			if ok, reason := ready(t, client, layout, "n1", b); ok || !strings.HasPrefix(reason, "the status cannot be read") {
				t.Errorf("%v: %s", ok, reason)
			}
			var r resources
			s := start(t, client, Config{Node: "n1", Build: b, Layout: layout}, &r)
			eventually(t, "it waits for the old node", func() bool { return strings.Contains(s.State().Doing, "old (v0.9.0)") })
			if _, passes := r.now(); passes > 0 {
				t.Error("a pass was run")
			}
			register(t, client, layout, "old", "v1.0.0")
			awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
			if _, err := client.Put(t.Context(), layout.Status(), text); err != nil {
				t.Fatal(err)
			}
			awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
			want := "unreadable, working none/v1.0.0, done v1.0.0/v1.0.0, unreadable, working none/v1.0.0, done v1.0.0/v1.0.0"
			if got := joined(announced(t, client, layout)); got != want {
				t.Errorf("announced:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// TestMalformedNodeBlocks: nobody leads while a node's release is not known; then all goes on.
func TestMalformedNodeBlocks(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	if _, err := client.Put(t.Context(), layout.Node("odd"), `{"roles":["kubernetes-controller"],"release":"latest"}`); err != nil {
		t.Fatal(err)
	}
	var r resources
	s := start(t, client, Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout}, &r)
	eventually(t, "it says why it does not stand", func() bool {
		return s.State().Campaign.Reason == "the release of odd is not known and may be newer than ours"
	})
	if _, found, err := election.Leader(t.Context(), client, layout.Election()); found || err != nil {
		t.Errorf("somebody leads: %v", err)
	}
	register(t, client, layout, "odd", "v0.9.0")
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
}

// TestFirstPassIsTriedUntilItSucceeds: nothing is announced before.
func TestFirstPassIsTriedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	r := resources{broken: errBroken}
	s := start(t, client, Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout}, &r)
	eventually(t, "it is tried again", func() bool {
		_, passes := r.now()
		return passes >= 4
	})
	if statusNow(t, client, layout).Found {
		t.Error("a status was announced, though no pass has succeeded")
	}
	unhealthy := false
	for _, h := range s.tree.Health(t.Context()) {
		unhealthy = unhealthy || h.Name == "lead" && !h.Healthy && h.Error == errBroken.Error()
	}
	if !unhealthy {
		t.Errorf("it counts as healthy: %+v", s.tree.Health(t.Context()))
	}
	o := look(t, client, layout, s.config.Build)
	if o.Trouble == nil || o.Trouble.Error != errBroken.Error() || len(o.Trouble.Failures) != 1 || o.Trouble.Node != "n1" {
		t.Errorf("others are not told: %+v", o.Trouble)
	}
	r.set(func(r *resources) { r.broken = nil })
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
	if o := look(t, client, layout, s.config.Build); o.Trouble != nil {
		t.Errorf("others are still told: %+v", o.Trouble)
	}
	for _, h := range s.tree.Health(t.Context()) {
		if !h.Healthy {
			t.Errorf("unhealthy afterwards: %+v", h)
		}
	}
}

// TestSettles: whoever follows another leader waits before its first pass, and the very first one
// does not.
func TestSettles(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	const settle = 1500 * time.Millisecond
	config := Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, Settle: time.Hour}
	first := start(t, client, config, &r)
	awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0")) // not after an hour
	first.stop()
	_, before := r.now()
	config.Settle = settle
	begun := time.Now()
	start(t, client, config, &r)
	eventually(t, "the second leader's pass", func() bool {
		_, passes := r.now()
		return passes > before
	})
	if took := time.Since(begun); took < settle {
		t.Errorf("the second leader began after %s", took)
	}
}

// TestFullPass: a pass now and then, although nothing was seen to change.
func TestFullPass(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	start(t, client, Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, FullPass: 50 * time.Millisecond}, &r)
	eventually(t, "passes", func() bool {
		_, passes := r.now()
		return passes > 5
	})
}

// TestRemovedNodeComesBack: a node that is there counts, whatever an operator has removed.
func TestRemovedNodeComesBack(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	s := start(t, client, Config{Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout}, &r)
	registered := func() bool {
		set, err := s.registry.List(t.Context())
		return err == nil && len(set.Nodes) == 1
	}
	eventually(t, "registered", registered)
	if err := s.registry.Remove(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "registered again", registered)
}

func TestWaitReadyObeysItsContext(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // etcd answers before
	defer cancel()
	r := Ready{Client: client, Layout: layout, Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Logger: quiet(t)}
	err := WaitReady(ctx, r)
	if fleet.KindOf(err) != fleet.KindTimeout || !strings.Contains(err.Error(), "this node is not registered") {
		t.Errorf("got %v", err)
	}
}

// TestWorkingDoesNotBlock: an API server that the status admits starts while a pass is under way.
func TestWorkingDoesNotBlock(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	text, err := gate.Status{State: gate.Working, Version: v("v1.0.0"), MinimumCompatible: v("v1.0.0")}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), layout.Status(), string(text)); err != nil {
		t.Fatal(err)
	}
	r := Ready{
		Client: client, Layout: layout, Node: "n1", Build: build("v1.1.0", "v1.0.0", "v1.0.0"), Register: true, Logger: quiet(t),
	}
	if err := WaitReady(t.Context(), r); err != nil {
		t.Error(err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	config := Config{Node: "N", Settle: -1, TTL: time.Millisecond, Logger: quiet(t)}
	_, err := NewService(config, &clientv3.Client{}, new(resources).hand("v1.0.0"))
	if fleet.KindOf(err) != fleet.KindInvalid {
		t.Fatal(err)
	}
	for _, part := range []string{"name of a node", "release must be set", "settling time", "TTL"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not reported: %v", part, err)
		}
	}
}

// TestLookAtAnotherRelease: what a node of another release needs is not known where somebody asks,
// unless the leader is of that release.
func TestLookAtAnotherRelease(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	register(t, client, layout, "n1", "v1.3.0")
	register(t, client, layout, "n2", "v1.2.0")
	put := func(key string, text []byte, err error) {
		t.Helper()
		if err == nil {
			_, err = client.Put(t.Context(), key, string(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := done("v1.2.0", "v1.2.0").Encode()
	put(layout.Status(), text, err)
	b := build("v1.2.0", "v1.2.0", "v1.2.0")
	const unsure = "as far as is known here"
	if n := look(t, client, layout, b).Nodes; len(n) != 2 || !n[0].Admitted.OK || !strings.Contains(n[0].Admitted.Reason, unsure) || !n[1].Admitted.OK ||
		strings.Contains(n[1].Admitted.Reason, unsure) {
		t.Errorf("nobody leads: %+v", n)
	}
	text, err = json.Marshal(election.Candidate{Name: "n1", Build: build("v1.3.0", "v1.3.0", "v1.3.0")})
	put(layout.Election()+"candidates/1", text, err)
	if n := look(t, client, layout, b).Nodes; n[0].Admitted.OK || strings.Contains(n[0].Admitted.Reason, unsure) || !n[1].Admitted.OK {
		t.Errorf("the newer one leads: %+v", n)
	}
}
