package resources_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// foreseen makes a plan and then a pass, and fails unless the pass does what is planned, and fails
// where the plan says so. It returns the plan's changes as "action object", or
// "action object: why it is held back".
func (a *applier) foreseen(what string) (changes []string, diff reconciler.Diff) {
	a.Helper()
	diff, err := a.Plan(a.Context())
	if err != nil {
		a.Fatalf("%s: %v", what, err)
	}
	did := map[reconciler.Action]int{}
	for _, c := range diff.Changes {
		change := fmt.Sprintf("%s %s", c.Action, c.Object)
		if c.Held != "" {
			change += ": " + c.Held
		} else {
			did[c.Action]++
		}
		changes = append(changes, change)
	}
	r, err := a.pass()
	if len(r.Failures) == 0 && err != nil {
		a.Errorf("%s: %v", what, err)
	}
	for action, n := range map[reconciler.Action]int{
		reconciler.Create: r.Created, reconciler.Update: r.Updated, reconciler.Recreate: r.Recreated, reconciler.Prune: r.Pruned,
	} {
		if did[action] != n {
			a.Errorf("%s: %d times %s is planned, and the pass did %d: %q", what, did[action], action, n, changes)
		}
	}
	slices.SortStableFunc(r.Failures, func(a, b reconciler.Failure) int { return strings.Compare(a.Object, b.Object) })
	if !cmp.Equal(r.Failures, diff.Failures) {
		a.Errorf("%s: the failures differ: %s", what, cmp.Diff(diff.Failures, r.Failures))
	}
	return changes, diff
}

// TestPlanGivesWay: a class of ours that gives way to another default is not planned as the
// default.
func TestPlanGivesWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(classes, "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: theirs, annotations: {"+builtin.DefaultAnnotation+": \"true\"}}\nprovisioner: example.com\n")
	t.Cleanup(func() { w.removeAfter(classes, "theirs") })
	a := w.start(resources.Options{Selection: builtin.Selection{Names: []string{builtin.Driver, builtin.ClassLocal}, DefaultClass: "local"}})
	changes, diff := a.foreseen("another default")
	if len(changes) != 2 || strings.Contains(diff.Changes[1].Text, builtin.DefaultAnnotation+`: "true"`) {
		t.Errorf("planned: %q, %s", changes, diff.Changes)
	}
	if changes, _ := a.foreseen("afterwards"); len(changes) != 0 {
		t.Errorf("planned: %q", changes)
	}
	w.remove(classes, "", "theirs")
	w.await("that the pass sees it", func() bool {
		drain(a)
		_, err := a.pass()
		return err == nil && w.get(classes, "", "local").GetAnnotations()[builtin.DefaultAnnotation] == "true"
	})
	if changes, _ := a.foreseen("the default"); len(changes) != 0 {
		t.Errorf("planned: %q", changes)
	}
}

// TestPlanObeysPauses: what is paused is shown as held back, and nothing else is.
func TestPlanObeysPauses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("kept", "1")+configMap("changed", "1")+configMap("gone", "1")+configMap("other", "1"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	w.write("a.yaml", configMap("kept", "1")+configMap("changed", "2")+configMap("new", "1")+"apiVersion: v1\nkind: Secret\nmetadata: {name: new, namespace: default}\n")
	pause := reconciler.Override{Effect: reconciler.Pause, Scope: "ConfigMap", By: "anna", Reason: "an incident"}
	a.SetOverrides([]reconciler.Override{pause})
	held := ": it is paused: " + pause.String()
	changes, diff := a.foreseen("paused")
	want := []string{
		"update ConfigMap default/changed" + held, "create ConfigMap default/new" + held, "create Secret default/new",
		"prune ConfigMap default/other" + held, "prune ConfigMap default/gone" + held,
	}
	if !cmp.Equal(changes, want) || len(diff.Failures) != 0 || !strings.Contains(diff.Changes[3].Text, "-  key:") {
		t.Errorf("%s: %+v", cmp.Diff(want, changes), diff)
	}
	a.SetOverrides(nil)
	if changes, _ := a.foreseen("resumed"); len(changes) != 4 || strings.Contains(fmt.Sprint(changes), "paused") {
		t.Errorf("%q", changes)
	}
}

// TestPlanWaits: what depends on what would not be healthy at once is not planned, and says for
// what it waits; what depends on what would be healthy is.
func TestPlanWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const after = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default, annotations: {ironherd.dev/depends-on: %s}}\ndata: {key: \"1\"}\n---\n"
	w.write("a.yaml", fmt.Sprintf(after, "second", "ConfigMap default/first")+fmt.Sprintf(after, "third", "ConfigMap default/second")+configMap("first", "1")+
		database(1, "example.com/db:1", "")+fmt.Sprintf(settings, "one")+fmt.Sprintf(after, "last", "ConfigMap default/settings")+
		fmt.Sprintf(after, "never", "ConfigMap default/never"))
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	want := []string{"create ConfigMap default/first", "create Deployment default/db", "create ConfigMap default/second", "create ConfigMap default/third"}
	changes, diff := a.foreseen("from nothing")
	if !cmp.Equal(changes, want) || len(diff.Failures) != 3 {
		t.Errorf("%s: %+v", cmp.Diff(want, changes), diff.Failures)
	}
	failed := reconciler.Report{Failures: diff.Failures}
	for name, reason := range map[string]string{
		"settings": "it waits for Deployment default/db, which is not healthy: ", "last": "it waits for ConfigMap default/settings, which is not as wanted",
		"never": "it depends on itself",
	} {
		if got := reasonOf(failed, "ConfigMap default/"+name); !strings.Contains(got, reason) {
			t.Errorf("%s: %q, want %q", name, got, reason)
		}
	}
	w.status(1)
	if changes, _ := a.foreseen("the database is healthy"); !cmp.Equal(changes, []string{"create ConfigMap default/settings", "create ConfigMap default/last"}) {
		t.Errorf("%q", changes)
	}
	w.write("a.yaml", database(1, "example.com/db:2", "")+fmt.Sprintf(settings, "two")+configMap("first", "1")+configMap("second", "1")+configMap("third", "1"))
	a.AskConsent(approve)
	changes, diff = a.foreseen("a rollout")
	if len(changes) != 2+1+1 || !strings.Contains(fmt.Sprint(changes), "update Deployment default/db") || !strings.Contains(fmt.Sprint(diff.Failures), "waits for Deployment") {
		t.Errorf("%q, %+v", changes, diff.Failures)
	}
}

// TestPlanKeepsFailingKinds: of a kind of which something fails nothing is planned to be deleted;
// and what a person's word holds back is held back for that first.
func TestPlanKeepsFailingKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: gone, namespace: default}\n---\n"
	kept := configMap("one", "1") + configMap("two", "1") + configMap("three", "1")
	w.write("a.yaml", kept+configMap("replaced", "1")+secret)
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	w.write("a.yaml", kept+"datum: {a: b}\n"+configMap("replacement", "1"))
	const reason = ": something of its kind fails, and it may be what takes its place"
	changes, diff := a.foreseen("it fails")
	if !cmp.Equal(changes, []string{"prune Secret default/gone", "prune ConfigMap default/replaced" + reason}) && !cmp.Equal(changes, []string{"prune ConfigMap default/replaced" + reason, "prune Secret default/gone"}) {
		t.Errorf("%q, %+v", changes, diff.Failures)
	}
	w.write("a.yaml", kept+configMap("replacement", "1"))
	if changes, _ := a.foreseen("corrected"); !cmp.Equal(changes, []string{"create ConfigMap default/replacement", "prune ConfigMap default/replaced"}) {
		t.Errorf("%q", changes)
	}
}

// TestPlanCountsWhatComes: what would be created counts as created where a plan asks whether more
// than half is lost, although the server is not asked about it, because its namespace comes first.
func TestPlanCountsWhatComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	namespace := unused("moved")
	both := configMap("three", "1") + configMap("four", "1")
	w.write("a.yaml", both)
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	a.done()
	w.write("a.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n---\n"+strings.ReplaceAll(both, "default", namespace))
	want := []string{
		"create Namespace " + namespace, "create ConfigMap " + namespace + "/four", "create ConfigMap " + namespace + "/three",
		"prune ConfigMap default/three", "prune ConfigMap default/four",
	}
	changes, diff := a.foreseen("everything moves to a new namespace")
	if !cmp.Equal(changes, want) || len(diff.Failures) != 0 || diff.Approve != "" {
		t.Errorf("%s: %+v", cmp.Diff(want, changes), diff)
	}
}

// TestPlanIsSilent: a plan signals no pass, and does not change what the next pass knows.
func TestPlanIsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("one", "1"))
	a := w.start(resources.Options{})
	a.done()
	a.silent()
	w.write("a.yaml", configMap("one", "2"))
	drain(a)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if diff, err := a.Plan(ctx); err != nil || len(diff.Changes) != 1 {
		t.Errorf("%+v, %v", diff, err)
	}
	if len(a.Changed()) != 0 {
		t.Error("a plan says that there is something to do")
	}
	if r, err := a.pass(); err != nil || r.Updated != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}
