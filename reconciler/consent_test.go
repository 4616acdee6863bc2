package reconciler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/service"
	"github.com/ironherd/ironherd/reconciler/node"
)

// TestManifestsGateNobody: what fails besides what API servers need is told, and neither keeps the
// status from being written nor makes the process unhealthy. So it is from nothing, and in place of
// a status that cannot be read, when API servers serve already.
func TestManifestsGateNobody(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"from nothing": "", "a garbled status": "?"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, layout := shared.Client(t), ownLayout()
			b := build("v1.0.0", "v1.0.0", "v1.0.0")
			if before != "" {
				if _, err := client.Put(t.Context(), layout.Status(), before); err != nil {
					t.Fatal(err)
				}
			}
			r := resources{broken: errBroken, optional: true}
			s := start(t, client, Config{Node: "n1", Build: b, Layout: layout, FullPass: 200 * time.Millisecond}, &r)
			awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
			if ok, reason := ready(t, client, layout, "n1", b); !ok {
				t.Errorf("the API server waits: %s", reason)
			}
			_, first := r.now()
			eventually(t, "it is tried again and again", func() bool {
				_, passes := r.now()
				return passes > first+2
			})
			if o := look(t, client, layout, b); o.Trouble == nil || o.Trouble.Blocks || len(o.Trouble.Failures) != 1 {
				t.Errorf("the trouble is %+v", o.Trouble)
			}
			for _, h := range s.tree.Health(t.Context()) {
				if h.Name == "lead" && h.Error != "" {
					t.Errorf("unhealthy: %+v", h)
				}
			}
			r.set(func(r *resources) { r.broken = nil })
			eventually(t, "the trouble is over", func() bool { return look(t, client, layout, b).Trouble == nil })
		})
	}
}

// TestRequiredGates is the other side: what API servers need keeps them waiting.
func TestRequiredGates(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	b := build("v1.0.0", "v1.0.0", "v1.0.0")
	r := resources{broken: errBroken}
	s := start(t, client, Config{Node: "n1", Build: b, Layout: layout, FullPass: 200 * time.Millisecond}, &r)
	eventually(t, "some passes", func() bool {
		_, passes := r.now()
		return passes > 3
	})
	if o := statusNow(t, client, layout); o.Found {
		t.Errorf("a status is written: %+v", o)
	}
	eventually(t, "it is unhealthy, and says that it blocks", func() bool {
		o := look(t, client, layout, b)
		return o.Trouble != nil && o.Trouble.Blocks && s.checkPass(t.Context()) != nil
	})
}

func TestAgreed(t *testing.T) {
	t.Parallel()
	own := node.Source{Digest: "d1", Objects: 3}
	with := func(name, r string, s *node.Source) node.Node {
		return node.Node{Name: name, Known: true, Record: node.Record{Roles: []string{node.Controller}, Release: v(r), Source: s}}
	}
	old := with("old", "v1.0.0", &node.Source{Digest: "d0"})
	for _, c := range []struct {
		what  string
		nodes []node.Node
		want  string
	}{
		{"alone", []node.Node{with("self", "v2.0.0", nil)}, ""},
		{"the same", []node.Node{with("n2", "v2.0.0", &node.Source{Digest: "d1", Objects: 3})}, ""},
		{"an older release has the same", []node.Node{with("old", "v1.0.0", &own)}, ""},
		{"an older release has others", []node.Node{old}, "old of release v1.0.0 (d0, 0 objects)"},
		{"an older release has not said", []node.Node{with("old", "v1.0.0", nil)}, "old of release v1.0.0 (has not said"},
		{"another role is not asked", []node.Node{{Name: "w", Known: true, Record: node.Record{Roles: []string{"worker"}, Release: v("v2.0.0")}}}, ""},
		{"others", []node.Node{with("n2", "v2.0.0", &node.Source{Digest: "d2", Objects: 9})}, "n2 (d2, 9 objects)"},
		{"not all readable", []node.Node{with("n2", "v2.0.0", &node.Source{Digest: "d1", Objects: 3, Faults: 1})}, "n2 (cannot read all of its own)"},
		{"a record of before", []node.Node{with("n2", "v2.0.0", nil)}, "n2 (has not said"},
		{"unknown", []node.Node{{Name: "n2", Fault: "x"}}, "n2 (its record cannot be read)"},
	} {
		verdict := agreed(node.Set{Nodes: c.nodes}, "self", v("v2.0.0"), own)
		if verdict.OK != (c.want == "") || !strings.Contains(verdict.Reason, c.want) {
			t.Errorf("%s: %+v, want %q", c.what, verdict, c.want)
		}
	}
}

// sourced is a hand on the resources, on a node that has files.
type sourced struct {
	*hand
	source chan node.Source // holds one
	ask    func(context.Context, node.Source) (Consent, error)
}

func (s *sourced) Source(context.Context) node.Source {
	now := <-s.source
	s.source <- now
	return now
}

func (s *sourced) AskConsent(ask func(context.Context, node.Source) (Consent, error)) { s.ask = ask }

// TestConsent: each node says what its files say, and again when that changes or somebody registers
// it anew; who asks is told whether they are the same; and a person's word is of one digest, and
// ends.
func TestConsent(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	b := build("v1.0.0", "v1.0.0", "v1.0.0")
	var r resources
	files := map[string]*sourced{}
	for _, name := range []string{"n1", "n2"} {
		s := &sourced{hand: r.hand("v1.0.0"), source: make(chan node.Source, 1)}
		s.source <- node.Source{Digest: "d1", Objects: 2}
		files[name] = s
		startSourced(t, client, Config{Node: name, Build: b, Layout: layout, FullPass: 100 * time.Millisecond, Settle: time.Millisecond}, s)
	}
	ask := func(own node.Source) Consent {
		return answered(t, func() (Consent, error) { return files["n1"].ask(t.Context(), own) })
	}
	d1, d2 := node.Source{Digest: "d1", Objects: 2}, node.Source{Digest: "d2", Objects: 1}
	eventually(t, "both have said which they have, and who says so", func() bool {
		set, err := node.NewRegistry(client, layout, quiet(t)).List(t.Context())
		return err == nil && len(set.Nodes) == 2 && !slices.ContainsFunc(set.Nodes, func(n node.Node) bool {
			return n.Source == nil || n.Source.Own.Release != b.Release
		})
	})
	if !ask(d1).Agreed.OK {
		t.Error("they do not agree")
	}
	if c := ask(d2); c.Agreed.OK || c.Approved || !strings.Contains(c.Agreed.Reason, "n2 (d1, 2 objects)") {
		t.Errorf("after the files of one have changed: %+v", c)
	}
	<-files["n2"].source
	files["n2"].source <- d2
	eventually(t, "the other one follows", func() bool { return ask(d2).Agreed.OK })

	// Whoever registers the node knows nothing of its files, or is of a version that does not.
	register(t, client, layout, "n2", "v1.0.1")
	register(t, client, layout, "n2", "v1.0.0")
	if !ask(d2).Agreed.OK {
		t.Error("a registration has lost what the files say")
	}
	if _, err := client.Put(t.Context(), layout.Node("n2"), `{"roles":["kubernetes-controller"],"release":"v1.0.0"}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is declared again", func() bool { return ask(d2).Agreed.OK })

	if err := Approve(t.Context(), client, layout, Approval{Digest: "d3", By: "n1", Reason: "why"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	mortal(t, client, layout.Approval())
	if ask(d2).Approved || !ask(node.Source{Digest: "d3"}).Approved || ask(node.Source{Digest: "d3", Faults: 1}).Approved {
		t.Error("an approval is of one digest")
	}
	o := look(t, client, layout, b)
	if o.Approval == nil || o.Approval.Reason != "why" || o.Approval.Until.Sub(o.Approval.At) != time.Hour {
		t.Errorf("%+v", o.Approval)
	}
	if err := Withdraw(t.Context(), client, layout); err != nil || ask(node.Source{Digest: "d3"}).Approved {
		t.Errorf("withdrawn: %v", err)
	}
	if err := Withdraw(t.Context(), client, layout); fleet.KindOf(err) != fleet.KindNotFound {
		t.Errorf("withdrawn again: %v", err)
	}
	if err := Approve(t.Context(), client, layout, Approval{Digest: "d3", Reason: "why"}, time.Second); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the word has ended", func() bool { return !ask(node.Source{Digest: "d3"}).Approved })
	for _, wrong := range []time.Duration{0, 25 * time.Hour} {
		if err := Approve(t.Context(), client, layout, Approval{Digest: "d3", Reason: "why"}, wrong); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	for _, wrong := range []Approval{{Digest: "d3"}, {Reason: "why"}} {
		if err := Approve(t.Context(), client, layout, wrong, time.Hour); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

func startSourced(t *testing.T, client *clientv3.Client, config Config, applier Applier) {
	t.Helper()
	config.Logger = quiet(t)
	s, err := NewService(config, client, applier)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := service.New(service.Options{Logger: config.Logger, Pause: 100 * time.Millisecond, Drain: 20 * time.Second}, supervised(s.Components())...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = tree.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func TestOverrideCovers(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]bool{
		"all": true, "Deployment": true, "Deployment.apps": true, "Deployment default/web": true, "Deployment.apps default/web": true,
		"All": true, "deployment": true, "deployment.Apps default/web": true, "DEPLOYMENT default/Web": false,
		"Deployment.batch": false, "ConfigMap": false, "Deployment default/other": false, "Deployment web": false, "Deployment.apps other/web": false, "": false,
	} {
		if got := (Override{Scope: scope}).Covers("apps", "Deployment", "default", "web"); got != want {
			t.Errorf("%q: %t", scope, got)
		}
	}
	if !(Override{Scope: "ClusterRole ironherd:owner"}).Covers("rbac.authorization.k8s.io", "ClusterRole", "", "ironherd:owner") {
		t.Error("an object in no namespace")
	}
}

// paused is a hand on the resources that is told the overrides.
type paused struct {
	*hand
	told chan []Override // holds one at most
}

func (p *paused) SetOverrides(overrides []Override) {
	select {
	case <-p.told:
	default:
	}
	p.told <- overrides
}

// mortal checks that etcd ends whatever has the prefix, also where no leader is there to end it.
func mortal(t *testing.T, client *clientv3.Client, prefix string) {
	t.Helper()
	stored, err := client.Get(t.Context(), prefix, clientv3.WithPrefix())
	if err != nil || len(stored.Kvs) == 0 {
		t.Fatalf("etcd has %v, %v", stored, err)
	}
	for _, kv := range stored.Kvs {
		if kv.Lease == 0 {
			t.Errorf("etcd never ends %s", kv.Key)
		}
	}
}

// TestOverrides: a pass is told what holds at that moment; an override ends by a word or by itself,
// one of the other effect is another one, and one that cannot be read pauses everything.
func TestOverrides(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	b := build("v1.0.0", "v1.0.0", "v1.0.0")
	var r resources
	p := &paused{hand: r.hand("v1.0.0"), told: make(chan []Override, 1)}
	startSourced(t, client, Config{Node: "n1", Build: b, Layout: layout, FullPass: 50 * time.Millisecond, Settle: time.Millisecond}, p)
	told := func(what string, want ...string) {
		t.Helper()
		eventually(t, what, func() bool {
			var scopes []string
			for _, each := range <-p.told {
				scopes = append(scopes, string(each.Effect)+" "+each.Scope)
			}
			return strings.Join(scopes, ", ") == strings.Join(want, ", ")
		})
	}
	told("nothing is paused")
	store := func(effect Effect, scope, reason string, length time.Duration) error {
		_, err := SetOverride(t.Context(), client, layout, Override{Effect: effect, Scope: scope, By: "n1", Reason: reason}, length)
		return err
	}
	set := func(scope, reason string, length time.Duration) error { return store(Pause, scope, reason, length) }
	if err := set("ConfigMap default/x", "an incident", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := set("Secret", "another one", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := store(Force, "Secret", "a third one", time.Hour); err != nil {
		t.Fatal(err)
	}
	told("three hold", "force Secret", "pause ConfigMap default/x", "pause Secret")
	mortal(t, client, layout.Overrides())
	o := look(t, client, layout, b)
	if len(o.Overrides) != 3 || o.Overrides[1].Reason != "an incident" || o.Overrides[1].Until.Sub(o.Overrides[1].At) != time.Hour {
		t.Errorf("%+v", o.Overrides)
	}
	if _, err := EndOverride(t.Context(), client, layout, Pause, "ConfigMap default/x"); err != nil {
		t.Fatal(err)
	}
	if _, err := EndOverride(t.Context(), client, layout, Pause, "ConfigMap default/x"); fleet.KindOf(err) != fleet.KindNotFound {
		t.Errorf("ended again: %v", err)
	}
	if _, err := EndOverride(t.Context(), client, layout, Pause, "secret"); err != nil {
		t.Errorf("a kind in lower case: %v", err)
	}
	told("one pause of a kind ends, the force of it does not", "force Secret")
	if _, err := EndOverride(t.Context(), client, layout, Pause, "Secret"); fleet.KindOf(err) != fleet.KindNotFound {
		t.Errorf("a force is ended as a pause: %v", err)
	}
	if err := store(Force, "Secret", "for a moment", time.Second); err != nil {
		t.Fatal(err)
	}
	told("the last one has ended")
	if _, err := client.Put(t.Context(), layout.Overrides()+"x", "?"); err != nil {
		t.Fatal(err)
	}
	told("one that cannot be read", "pause all")
	if _, err := EndOverride(t.Context(), client, layout, Pause, ScopeAll); err != nil {
		t.Errorf("it cannot be ended: %v", err)
	}
	told("it is gone")
	if _, err := client.Put(t.Context(), layout.Overrides()+"x", `{"effect":"later","scope":"Secret"}`); err != nil {
		t.Fatal(err)
	}
	told("one with an effect of another release", "pause all")
	for _, wrong := range []error{
		set("", "why", time.Hour), set("a b c", "why", time.Hour), set("a  b", "why", time.Hour), set("all", "", time.Hour), set("all", "why", 0),
		set("all", "why", 8*24*time.Hour), set("Deployment/default/web", "why", time.Hour), set("Deployment default/web/x", "why", time.Hour),
		set("Deployment ", "why", time.Hour), set("Deployment. default/web", "why", time.Hour), store("later", "all", "why", time.Hour),
	} {
		if fleet.KindOf(wrong) != fleet.KindInvalid {
			t.Errorf("accepted: %v", wrong)
		}
	}
}

// held is one whose passes go on until their context ends, as long as nothing is paused.
type held struct {
	*paused
	now   []Override // what the next pass leaves alone
	begun chan struct{}
}

func (h *held) SetOverrides(overrides []Override) { h.now = overrides }

func (h *held) Pass(ctx context.Context) (Report, error) {
	if len(h.now) > 0 {
		report, err := h.paused.Pass(ctx)
		report.Created = 2
		return report, err
	}
	h.begun <- struct{}{}
	<-ctx.Done()
	return Report{Created: 1}, context.Cause(ctx)
}

// reports hands on what passes reported.
type reports struct {
	noObserver
	ended chan Report
}

func (r reports) PassEnded(report Report, _ time.Duration, _ error) { r.ended <- report }

// TestPauseBreaksOff: a pause ends the pass that is under way, and its end leads to a pass at once,
// not with the next full one. The pass that was broken off is no failure, and what it did is
// counted.
func TestPauseBreaksOff(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	var r resources
	h := &held{paused: &paused{hand: r.hand("v1.0.0")}, begun: make(chan struct{}, 9)}
	observer := reports{ended: make(chan Report, 9)}
	startSourced(t, client, Config{
		Node: "n1", Build: build("v1.0.0", "v1.0.0", "v1.0.0"), Layout: layout, FullPass: time.Hour, Settle: time.Millisecond, Observer: observer,
	}, h)
	for round := range 2 { // the first pass of a leadership, and one that keeps
		receive(t, "a pass that nobody has paused", h.begun)
		if _, err := SetOverride(t.Context(), client, layout, Override{Effect: Pause, Scope: ScopeAll, Reason: "an incident"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		report := receive(t, "the pass that keeps to the pause", observer.ended)
		if report.Created != 3 || !report.Ready {
			t.Errorf("round %d: %+v", round, report)
		}
		awaitStatus(t, client, layout, done("v1.0.0", "v1.0.0"))
		if _, err := EndOverride(t.Context(), client, layout, Pause, ScopeAll); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, "a pass after the pause", h.begun)
}

func receive[T any](t *testing.T, what string, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(90 * time.Second):
		t.Fatalf("not within a minute and a half: %s", what)
	}
	return value
}

// TestTroubleFits: what failed is told however much there is to say of it.
func TestTroubleFits(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	b := build("v1.0.0", "v1.0.0", "v1.0.0")
	r := resources{broken: errors.New("much to say" + strings.Repeat("ü", 1<<20)), optional: true}
	start(t, client, Config{Node: "n1", Build: b, Layout: layout, FullPass: 200 * time.Millisecond}, &r)
	eventually(t, "the trouble is told", func() bool {
		o := look(t, client, layout, b)
		if o.Trouble == nil {
			return false
		}
		for _, text := range []string{o.Trouble.Error, o.Trouble.Failures[0].Reason} {
			if !strings.HasPrefix(text, "much to say") || !strings.HasSuffix(text, "ü…") || len(text) > 2*maxTroubleText {
				t.Errorf("it is told as %q", text)
			}
		}
		return true
	})
}

// TestReach: one override can be of all that another is of, or of part of it.
func TestReach(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of, scope   string
		whole, part bool
	}{
		{"all", "ConfigMap default/x", true, true},
		{"All", "all", true, true},
		{"ConfigMap default/x", "all", false, true},
		{"ConfigMap", "configmap default/x", true, true},
		{"configmap default/x", "ConfigMap", false, true},
		{"configmap default/x", "ConfigMap default/x", true, true},
		{"ConfigMap default/X", "ConfigMap default/x", false, false},
		{"ConfigMap", "Secret default/x", false, false},
		{"Deployment", "deployment.apps default/x", true, true},
		{"Deployment.apps", "Deployment default/x", false, true},
		{"Deployment.apps default/x", "Deployment default/x", false, true},
		{"Deployment default/x", "Deployment.apps", false, true},
		{"Deployment.apps", "Deployment.example.com", false, false},
		{"Deployment default/x", "Deployment.apps default/y", false, false},
	} {
		if whole, part := (Override{Scope: c.of}).reach(c.scope); whole != c.whole || part != c.part {
			t.Errorf("%q is of all of %q: %t, of part of it: %t", c.of, c.scope, whole, part)
		}
	}
}
