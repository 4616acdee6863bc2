package resources_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/node"
)

// mutate returns the built-in set of another release, in which one object is another.
func mutate(t *testing.T, set []*object.Object, key string, change func(content map[string]any)) []*object.Object {
	t.Helper()
	set = slices.Clone(set)
	for n, o := range set {
		if o.Key.String() != key {
			continue
		}
		content := deepCopy(o.With("", object.Precondition{})).(map[string]any)
		change(content)
		changed, err := object.NewBuiltIn(content, "another release", o.Need)
		if err != nil {
			t.Fatal(err)
		}
		set[n] = changed
		return set
	}
	t.Fatalf("there is no %s", key)
	return nil
}

func deepCopy(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := map[string]any{}
		for key, field := range v {
			c[key] = deepCopy(field)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for n, item := range v {
			c[n] = deepCopy(item)
		}
		return c
	}
	return v
}

// otherRelease changes a field of each kind that cannot be changed.
func otherRelease(t *testing.T) []*object.Object {
	t.Helper()
	set := objects(t)
	set = mutate(t, set, "ClusterRoleBinding ironherd:network-services", func(c map[string]any) {
		c["roleRef"].(map[string]any)["name"] = "ironherd:csi-provisioner"
	})
	set = mutate(t, set, "StorageClass local-strict", func(c map[string]any) { c["provisioner"] = "other.example.com" })
	set = mutate(t, set, "RuntimeClass gvisor", func(c map[string]any) { c["handler"] = "other" })
	return mutate(t, set, "CSIDriver local.csi.ironherd.dev", func(c map[string]any) { c["spec"].(map[string]any)["attachRequired"] = true })
}

var immutable = []struct {
	resource     schema.GroupVersionResource
	name         string
	path         []string
	before, then any
}{
	{bindings, "ironherd:network-services", []string{"roleRef", "name"}, "ironherd:network-services", "ironherd:csi-provisioner"},
	{classes, "local-strict", []string{"provisioner"}, "local.csi.ironherd.dev", "other.example.com"},
	{runtimes, "gvisor", []string{"handler"}, "runsc", "other"},
	{drivers, "local.csi.ironherd.dev", []string{"spec", "attachRequired"}, false, true},
}

func nested(content map[string]any, path []string) any {
	for _, name := range path[:len(path)-1] {
		content, _ = content[name].(map[string]any)
	}
	return content[path[len(path)-1]]
}

func TestImmutableFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.start(resources.Options{})
	old.done()
	old.stop()
	uids := map[string]types.UID{}
	for _, i := range immutable {
		uids[i.name] = w.get(i.resource, "", i.name).GetUID()
	}

	// API servers do not wait for a label of somebody's
	w.patch(bindings, "", "ironherd:network-services", `{"metadata":{"labels":{"example.com/team":"network"}}}`)
	a := w.start(resources.Options{BuiltIn: otherRelease(t)})
	diff, err := a.Plan(t.Context())
	if err != nil || len(diff.Changes) != len(immutable) {
		t.Fatalf("the plan has %+v, %v", diff, err)
	}
	for _, c := range diff.Changes {
		if c.Action != reconciler.Recreate || !strings.Contains(c.Text, "\n+") && !strings.HasPrefix(c.Text, "-") {
			t.Errorf("planned: %+v", c)
		}
	}
	if r := a.done(); r.Recreated != len(immutable) || r.Created+r.Updated+r.Pruned != 0 {
		t.Errorf("upgrade: %+v", r)
	}
	a.silent()
	for _, i := range immutable {
		o := w.get(i.resource, "", i.name)
		if got := nested(o.Object, i.path); got != i.then {
			t.Errorf("%s has %v", i.name, got)
		}
		if o.GetUID() == uids[i.name] {
			t.Errorf("%s is the same object", i.name)
		}
	}
	a.stop()

	back := w.start(resources.Options{})
	if r := back.done(); r.Recreated != len(immutable) {
		t.Errorf("downgrade: %+v", r)
	}
	back.silent()
	for _, entry := range w.inventory().Entries {
		if entry.Mark != "" || entry.UID == "" {
			t.Errorf("not adopted: %+v", entry)
		}
	}
}

// TestForeign: what others made is never deleted, whatever it looks like; what they have is taken
// only when told so.
func TestForeign(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// It was there before us, with a field that can be changed and one that cannot.
	w.create(classes, "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: local}\nprovisioner: local.csi.ironherd.dev\n"+
		"volumeBindingMode: WaitForFirstConsumer\nallowVolumeExpansion: false\n")
	w.create(runtimes, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: gvisor}\nhandler: theirs\n")
	theirs := w.get(runtimes, "", "gvisor").GetUID()
	a := w.start(resources.Options{})
	r := a.until("two conflicts", func(r reconciler.Report, err error) bool { return err != nil && len(r.Failures) == 2 })
	reasons := fmt.Sprint(r.Failures)
	for _, want := range []string{"StorageClass local", "allowVolumeExpansion", "somebody", "RuntimeClass gvisor", ".handler"} {
		if !strings.Contains(reasons, want) {
			t.Errorf("the failures do not name %q: %s", want, reasons)
		}
	}
	if got := nested(w.get(classes, "", "local").Object, []string{"allowVolumeExpansion"}); got != false {
		t.Errorf("a field of somebody else was taken: %v", got)
	}
	if labels := w.get(classes, "", "local").GetLabels(); len(labels) > 0 {
		t.Errorf("of what has a conflict a part was applied: %v", labels)
	}
	if o := w.get(runtimes, "", "gvisor"); o.GetUID() != theirs {
		t.Error("somebody else's object was deleted")
	}
	if n := len(w.inventory().Entries); n != r.Created || n != len(objects(t))-2 {
		t.Errorf("the inventory has %d entries, %d were created", n, r.Created)
	}
	a.stop()

	forced := w.start(resources.Options{Force: true})
	forced.until("only what cannot be changed", func(r reconciler.Report, err error) bool {
		return len(r.Failures) == 1 && strings.Contains(err.Error(), "not created by us")
	})
	if got := nested(w.get(classes, "", "local").Object, []string{"allowVolumeExpansion"}); got != true {
		t.Errorf("told to take it, it has %v", got)
	}
	if o := w.get(runtimes, "", "gvisor"); o.GetUID() != theirs {
		t.Error("somebody else's object was deleted by force")
	}
	w.patch(classes, "", "local", `{"allowVolumeExpansion":false}`) // now it is drift: we have held it
	forced.stop()
	mild := w.start(resources.Options{})
	mild.until("drift in somebody else's object repaired", func(r reconciler.Report, err error) bool { return r.Updated == 1 })
	w.remove(runtimes, "", "gvisor") // the remedy that the failure names
	mild.done()
	mild.silent()
	mild.stop()

	// No longer wanted: ours go, theirs stays.
	none := w.start(resources.Options{BuiltIn: []*object.Object{}})
	if r := none.done(); r.Pruned != len(objects(t))-1 {
		t.Errorf("pruned: %+v", r)
	}
	if !w.there(classes, "", "local") || w.there(runtimes, "", "gvisor") || w.there(classes, "", "local-strict") {
		t.Error("not exactly what we created was deleted")
	}
	none.silent()
}

// TestLookalike: neither our label, nor a copy of all that we write on an object, makes it ours.
func TestLookalike(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("kept", "1")+configMap("copied", "1"))
	a := w.start(resources.Options{})
	a.done()
	ours := w.get(configMaps, "default", "copied")
	for _, name := range []string{"lookalike", "copied"} {
		stranger := ours.DeepCopy()
		stranger.SetName(name)
		stranger.SetUID("")
		stranger.SetResourceVersion("")
		stranger.SetManagedFields(nil)
		if name == "copied" { // deleted and made again by somebody, from a backup that has everything
			a.stop()
			w.remove(configMaps, "default", name)
		}
		if _, err := w.in(configMaps, "default").Create(t.Context(), stranger, metav1.CreateOptions{FieldManager: object.Manager}); err != nil {
			t.Fatal(err)
		}
		if name == "lookalike" {
			a.done()
			a.silent()
		}
	}
	w.write("a.yaml", configMap("kept", "1"))
	b := w.start(resources.Options{})
	b.done()
	b.silent()
	for _, name := range []string{"lookalike", "copied"} {
		if !w.there(configMaps, "default", name) {
			t.Errorf("%s, which somebody else made, was deleted", name)
		}
	}
}

// TestDeclared: a field that another manager declares by server-side apply is a conflict even in an
// object of ours.
func TestDeclared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("contested", "ours"))
	a := w.start(resources.Options{})
	a.done()
	force := true
	if _, err := w.in(configMaps, "default").Patch(t.Context(), "contested", types.ApplyPatchType,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"contested"},"data":{"key":"theirs","other":"x"}}`),
		metav1.PatchOptions{FieldManager: "gitops", Force: &force}); err != nil {
		t.Fatal(err)
	}
	r := a.until("a conflict", func(_ reconciler.Report, err error) bool { return err != nil })
	if text := fmt.Sprint(r.Failures); !strings.Contains(text, "gitops") || !strings.Contains(text, ".data.key") {
		t.Errorf("the conflict is not named: %s", text)
	}
	if got := nested(w.get(configMaps, "default", "contested").Object, []string{"data", "key"}); got != "theirs" {
		t.Errorf("it was taken: %v", got)
	}
	w.write("a.yaml", configMap("contested", "theirs")) // agreement solves it
	a.done()
	a.silent()
}

// TestForced: what people force is taken from the manager that declares it, at once, and a plan
// says so; what they do not force, or have paused as well, is not.
func TestForced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := []string{"forced", "paused", "contested"}
	w.write("a.yaml", configMap(names[0], "ours")+configMap(names[1], "ours")+configMap(names[2], "ours"))
	a := w.start(resources.Options{})
	a.done()
	force := true
	for _, name := range names {
		if _, err := w.in(configMaps, "default").Patch(t.Context(), name, types.ApplyPatchType,
			[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"},"data":{"key":"theirs","other":"x"}}`),
			metav1.PatchOptions{FieldManager: "gitops", Force: &force}); err != nil {
			t.Fatal(err)
		}
	}
	a.until("conflicts", func(r reconciler.Report, _ error) bool { return len(r.Failures) == 3 })
	for n := range 7 { // each failure makes the next pause longer
		w.patch(configMaps, "default", "forced", fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n))
		w.await("that it is tried again", func() bool { r, _ := a.pass(); return r.Requests > 0 })
	}
	of := func(effect reconciler.Effect, name string) reconciler.Override {
		return reconciler.Override{Effect: effect, Scope: "ConfigMap default/" + name, By: "anna", Reason: "an incident"}
	}
	a.SetOverrides([]reconciler.Override{of(reconciler.Force, "forced"), of(reconciler.Force, "paused"), of(reconciler.Pause, "paused")})
	d, err := a.Plan(t.Context())
	if err != nil || len(d.Changes) != 2 || d.Changes[0].Object != "ConfigMap default/forced" || d.Changes[0].Held != "" || d.Changes[1].Held == "" ||
		len(d.Failures) != 1 || !strings.HasPrefix(d.Failures[0].Object, "ConfigMap default/contested ") {
		t.Errorf("the plan has %+v, %v", d, err)
	}
	if r, _ := a.pass(); r.Updated != 1 || r.Paused != 1 || len(r.Failures) != 1 || !strings.HasPrefix(r.Failures[0].Object, "ConfigMap default/contested ") {
		t.Errorf("with a force: %+v", r)
	}
	a.SetOverrides(nil)
	if r, _ := a.pass(); r.Updated != 0 || len(r.Failures) != 2 {
		t.Errorf("what was taken stays taken, and nothing else is: %+v", r)
	}
	for name, want := range map[string]string{"forced": "ours", "paused": "theirs", "contested": "theirs"} {
		live := w.get(configMaps, "default", name).Object
		if got := nested(live, []string{"data", "key"}); got != want {
			t.Errorf("%s is %v", name, got)
		}
		if got := nested(live, []string{"data", "other"}); got != "x" {
			t.Errorf("%s: a field that nobody else wants is %v", name, got)
		}
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const gone = "apiVersion: v1\nkind: Namespace\nmetadata: {name: pruned}\n---\n"
	w.write("a.yaml", gone+configMap("one", "1")+configMap("two", "1")+configMap("three", "1"))
	w.write("b.yaml", configMap("four", "1"))
	w.write("others.yaml", configMap("five", "1")+configMap("six", "1"))
	a := w.start(resources.Options{})
	a.done()

	w.write("a.yaml", configMap("one", "1"))
	w.write("b.yaml", ": this is not YAML\n") // what it wants is not known
	w.patch(configMaps, "default", "three", `{"metadata":{"labels":null}}`)
	diff, err := a.Plan(t.Context())
	if err != nil || len(diff.Changes) != 0 || len(diff.Failures) != 1 {
		t.Errorf("the plan has %+v, %v", diff, err)
	}
	for range 2 {
		if r, err := a.pass(); err == nil || r.Pruned != 0 || !strings.Contains(fmt.Sprint(r.Failures), "b.yaml#1") {
			t.Errorf("with a manifest that cannot be read: %+v, %v", r, err)
		}
	}
	w.write("b.yaml", "")
	diff, err = a.Plan(t.Context())
	if err != nil || len(diff.Changes) != 3 || diff.Changes[0].Action != reconciler.Prune {
		t.Errorf("the plan has %+v, %v", diff, err)
	}
	if r := a.done(); r.Pruned != 3 {
		t.Errorf("pruned: %+v", r)
	}
	a.silent()
	for name, want := range map[string]bool{"one": true, "two": false, "three": false, "four": false, "five": true} {
		if w.there(configMaps, "default", name) != want {
			t.Errorf("%s is there: %t", name, !want)
		}
	}
	if !w.there(namespaces, "", "pruned") {
		t.Error("a namespace was deleted, with all that others have in it")
	}

	// What a finalizer holds is kept in mind until it is gone.
	w.write("c.yaml", strings.Replace(configMap("held", "1"), "namespace: default", "namespace: default, finalizers: [example.com/hold]", 1))
	a.done()
	w.write("c.yaml", "")
	a.done()
	key := object.Key{Kind: "ConfigMap", Namespace: "default", Name: "held"}
	if _, known := w.inventory().Entries[key]; !known {
		t.Error("it is forgotten before it is gone")
	}
	w.patch(configMaps, "default", "held", `{"metadata":{"finalizers":null}}`)
	w.await("that it is forgotten", func() bool {
		a.done()
		_, known := w.inventory().Entries[key]
		return !known
	})
}

// TestTornManifests: an object that is moved from one file to another is in neither for a moment.
// It is deleted only when each pass has found it missing for a while.
func TestTornManifests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("moved", "1")+configMap("one", "1")+configMap("two", "1"))
	const absence = 2 * time.Second
	a := w.start(resources.Options{BuiltIn: []*object.Object{}, Absence: absence})
	a.done()
	uid := w.get(configMaps, "default", "moved").GetUID()
	begun := time.Now()
	w.write("a.yaml", configMap("one", "1")+configMap("two", "1"))
	if r, err := a.pass(); (err != nil || r.Pruned != 0) && time.Since(begun) < absence {
		t.Errorf("in between: %+v, %v", r, err)
	}
	w.write("b.yaml", configMap("moved", "1"))
	a.done()
	<-time.After(time.Until(begun.Add(absence)))
	w.write("b.yaml", "")
	begun = time.Now()
	if r, err := a.pass(); (err != nil || r.Pruned != 0) && time.Since(begun) < absence {
		t.Errorf("moved again: %+v, %v", r, err)
	}
	if w.get(configMaps, "default", "moved").GetUID() != uid {
		t.Error("it is another object")
	}
	a.until("that it is deleted when it stays away", func(r reconciler.Report, err error) bool { return err == nil && r.Pruned == 1 })
	if took := time.Since(begun); took < absence {
		t.Errorf("it was deleted after %v", took)
	}
}

// TestSuddenlyLittleIsWanted: an empty directory is more likely a disk that is not mounted than a
// decision, however little was in it, and so is a part that has become a link.
func TestSuddenlyLittleIsWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("a.yaml", configMap("one", "1")+configMap("two", "1")+configMap("three", "1"))
	if err := os.Mkdir(filepath.Join(w.manifests, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.write("sub/b.yaml", configMap("four", "1"))
	a := w.start(resources.Options{})
	a.done()

	elsewhere := t.TempDir()
	if err := errors.Join(os.Rename(filepath.Join(w.manifests, "sub"), filepath.Join(elsewhere, "sub")),
		os.Symlink(filepath.Join(elsewhere, "sub"), filepath.Join(w.manifests, "sub"))); err != nil {
		t.Fatal(err)
	}
	if r, err := a.pass(); err == nil || r.Pruned != 0 || !r.Ready || !strings.Contains(fmt.Sprint(r.Failures), "link to a directory") {
		t.Errorf("a link: %+v, %v", r, err)
	}
	if err := os.Remove(filepath.Join(w.manifests, "sub")); err != nil {
		t.Fatal(err)
	}
	w.write("a.yaml", "")
	if r, err := a.pass(); err == nil || r.Pruned != 0 || !r.Ready || !strings.Contains(fmt.Sprint(r.Failures), "4 of the 4") {
		t.Errorf("empty: %+v, %v", r, err)
	}
	planned := func(a *applier, n int, held, approve string) {
		t.Helper()
		diff, err := a.Plan(t.Context())
		if err != nil || len(diff.Changes) != n || (len(diff.Failures) != 0) != (held != "") || diff.Approve != approve {
			t.Errorf("the plan has %+v, %v", diff, err)
		}
		for _, c := range diff.Changes {
			if c.Action != reconciler.Prune || (c.Held == "") != (held == "") || !strings.Contains(c.Held, held) || !strings.Contains(c.Text, "-  key: \"1\"") {
				t.Errorf("planned: %+v, want it held back for %q", c, held)
			}
		}
	}
	planned(a, 4, "4 of the 4 objects that were created from manifests are no longer in them, which is more than half", a.Source(t.Context()).Digest)
	w.write("a.yaml", configMap("one", "1"))
	if r, err := a.pass(); err == nil || r.Pruned != 0 || !strings.Contains(fmt.Sprint(r.Failures), "3 of the 4") {
		t.Errorf("most of it: %+v, %v", r, err)
	}
	a.stop()
	limited := w.start(resources.Options{MaxPrune: 30}) // a limit is no word
	if r, err := limited.pass(); err == nil || r.Pruned != 0 {
		t.Errorf("with a limit: %+v, %v", r, err)
	}
	limited.stop()
	strict := w.start(resources.Options{MaxPrune: 2})
	planned(strict, 3, "which is more than max_prune allows (2)", strict.Source(t.Context()).Digest)
	strict.AskConsent(func(context.Context, node.Source) (reconciler.Consent, error) {
		return reconciler.Consent{}, errors.New("no etcd")
	})
	planned(strict, 3, "cannot be asked", "") // no word helps
	strict.stop()
	w.approving = true
	told := w.start(resources.Options{})
	planned(told, 3, "", "")
	if r := told.done(); r.Pruned != 3 {
		t.Errorf("told to: %+v", r)
	}
}
