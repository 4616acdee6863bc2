package resources_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

var gvisor = object.Key{Group: "node.k8s.io", Kind: "RuntimeClass", Name: "gvisor"}

// pauseAll is what an operator says in an incident.
func pauseAll() []reconciler.Override {
	return []reconciler.Override{{Effect: reconciler.Pause, Scope: reconciler.ScopeAll, By: "anna", Reason: "an incident"}}
}

// diesAt starts the second release, whose process dies at the first request that is as asked for:
// before the server has it, or when it has been answered.
func (w *world) diesAt(answered bool, at func(*http.Request) bool) {
	w.Helper()
	over := &wire{before: pass, after: pass}
	dead := make(chan struct{})
	over.before = func(_ int, r *http.Request) error {
		select {
		case <-dead:
			return errDied
		default:
		}
		if !at(r) {
			return nil
		}
		close(dead)
		if !answered {
			return errDied
		}
		return nil
	}
	a := w.startWith(w.wired(over), resources.Options{BuiltIn: small(w.T, 2)})
	defer a.stop()
	a.until("death", func(reconciler.Report, error) bool {
		select {
		case <-dead:
			return true
		default:
			return false
		}
	})
}

// record puts other words in place of the UID of gvisor in the stored inventory: a format for it.
func (w *world) record(words string) {
	w.Helper()
	const kind = "RuntimeClass.node.k8s.io"
	uid := "uid=" + string(w.get(runtimes, "", "gvisor").GetUID())
	lines, _ := nested(w.get(configMaps, inventory.Namespace, inventory.Name).Object, []string{"data", kind}).(string)
	lines = strings.Replace(lines, uid, fmt.Sprintf(words, uid), 1)
	w.patch(configMaps, inventory.Namespace, inventory.Name, fmt.Sprintf(`{"data":{%q:%q}}`, kind, lines))
}

func deletes(r *http.Request) bool { return r.Method == http.MethodDelete }

// TestDeathBeforeAPause: a leader dies between the two requests that replace an object, and a pause
// holds when the next one begins. That one creates the object, and then heeds the pause.
func TestDeathBeforeAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.firstRelease()
	w.diesAt(true, deletes)
	if w.there(runtimes, "", "gvisor") {
		t.Fatal("it was not deleted")
	}
	third := w.start(resources.Options{BuiltIn: small(t, 2)})
	third.SetOverrides(pauseAll())
	if r, err := third.pass(); err != nil || !w.there(runtimes, "", "gvisor") {
		t.Fatalf("it stays deleted: %+v, %v", r, err)
	}
	w.remove(runtimes, "", "gvisor")
	w.await("the pause to hold", func() bool {
		r, _ := third.pass()
		return r.Paused > 0 && !w.there(runtimes, "", "gvisor")
	})
	third.SetOverrides(nil)
	third.done()
	w.consistent("after the pause")
}

// TestPauseHoldsForWhatIsThereAgain: what a leader deleted to create it again, and somebody else
// has created since, is not half of a replacement any more: a pause holds for it.
func TestPauseHoldsForWhatIsThereAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.firstRelease()
	w.diesAt(true, deletes)
	w.create(runtimes, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: gvisor, labels: {whose: theirs}}\nhandler: runsc\n")
	t.Cleanup(func() { w.removeAfter(runtimes, "gvisor") })
	before := w.get(runtimes, "", "gvisor")
	third := w.start(resources.Options{BuiltIn: small(t, 2)})
	third.SetOverrides(pauseAll())
	for range 3 {
		if r, _ := third.pass(); r.Paused == 0 || w.get(runtimes, "", "gvisor").GetResourceVersion() != before.GetResourceVersion() {
			t.Fatalf("it is changed: %+v", r)
		}
	}
}

// TestPauseHoldsForWhatComesMeanwhile: a leader finishes the replacement of another one during a
// pause, and somebody else creates the object just before it does. The pause holds for that.
func TestPauseHoldsForWhatComesMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.firstRelease()
	w.diesAt(true, deletes)
	version := ""
	over := &wire{before: pass, after: pass}
	over.before = func(_ int, r *http.Request) error {
		if version == "" && r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/gvisor") {
			w.create(runtimes, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: gvisor}\nhandler: other\n")
			version = w.get(runtimes, "", "gvisor").GetResourceVersion()
		}
		return nil
	}
	t.Cleanup(func() { w.removeAfter(runtimes, "gvisor") })
	third := w.startWith(w.wired(over), resources.Options{BuiltIn: small(t, 2)})
	third.SetOverrides(pauseAll())
	for range 3 {
		if r, err := third.pass(); version == "" || w.get(runtimes, "", "gvisor").GetResourceVersion() != version {
			t.Fatalf("it is changed (it was there at version %q): %+v, %v", version, r, err)
		}
	}
}

// TestPauseHoldsAfterADeath: what the leader before did not delete is not created while it is
// paused, also where that leader was about to create it, or about to replace it.
func TestPauseHoldsAfterADeath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, replaced := range []bool{false, true} {
		w.clean()
		w.firstRelease()
		if !replaced {
			w.remove(runtimes, "", "gvisor")
		}
		w.diesAt(false, func(r *http.Request) bool {
			return deletes(r) || r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/gvisor") && !replaced
		})
		third := w.start(resources.Options{BuiltIn: small(t, 2), Landing: time.Nanosecond})
		third.SetOverrides(pauseAll())
		if r, _ := third.pass(); r.Paused == 0 || w.there(runtimes, "", "gvisor") != replaced {
			t.Fatalf("about to be replaced %t: the pause does not hold: %+v", replaced, r)
		}
		if replaced { // a person deletes it during the pause
			drain(third)
			w.remove(runtimes, "", "gvisor")
			w.await("the news", func() bool { return len(third.Changed()) == 1 })
			if r, _ := third.pass(); r.Paused == 0 || w.there(runtimes, "", "gvisor") {
				t.Fatalf("the pause does not hold: %+v", r)
			}
		}
		third.stop()
		fourth := w.start(resources.Options{BuiltIn: small(t, 2)})
		fourth.SetOverrides(pauseAll())
		if r, _ := fourth.pass(); r.Paused == 0 || w.there(runtimes, "", "gvisor") {
			t.Fatalf("about to be replaced %t: the pause does not hold for the leader after the next: %+v", replaced, r)
		}
		fourth.SetOverrides(nil)
		fourth.done()
		w.consistent("after the pause")
		fourth.stop()
	}
}

// TestInventoryOfAnOlderRelease: an older release left the same record of an object that it was
// about to create again after others had deleted it as of one that it had deleted itself. A pause
// holds for both.
func TestInventoryOfAnOlderRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.firstRelease()
	w.record(fmt.Sprintf("%%s mark=OLDER at=%d", time.Now().Unix()))
	if e := w.inventory().Entries[gvisor]; e.Mark != "OLDER" || e.UID == "" {
		t.Fatalf("%+v", e)
	}
	w.remove(runtimes, "", "gvisor")
	second := w.start(resources.Options{BuiltIn: small(t, 1)})
	second.SetOverrides(pauseAll())
	for range 2 {
		if r, _ := second.pass(); r.Paused == 0 || w.there(runtimes, "", "gvisor") {
			t.Fatalf("the pause does not hold: %+v", r)
		}
	}
	second.SetOverrides(nil)
	second.done()
	w.consistent("after the pause")
}

// TestPauseAfterADeleteWithoutEffect: the request that deletes an object, to create it again, never
// arrives, and a pause begins. What a person deletes once it can arrive no more is not created.
func TestPauseAfterADeleteWithoutEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.firstRelease()
	over := &wire{before: pass, after: pass}
	over.before = func(_ int, r *http.Request) error {
		if deletes(r) {
			return errDied
		}
		return nil
	}
	second := w.startWith(w.wired(over), resources.Options{BuiltIn: small(t, 2), Landing: 300 * time.Millisecond})
	if r, err := second.pass(); err == nil || !w.there(runtimes, "", "gvisor") {
		t.Fatalf("%+v, %v", r, err)
	}
	second.SetOverrides(pauseAll())
	second.until("the end of the wait", func(r reconciler.Report, _ error) bool {
		if r.Paused == 0 {
			t.Fatalf("the pause does not hold: %+v", r)
		}
		return !w.inventory().Entries[gvisor].Replacing
	})
	drain(second)
	w.remove(runtimes, "", "gvisor")
	w.await("the news", func() bool { return len(second.Changed()) == 1 })
	if r, _ := second.pass(); r.Paused == 0 || w.there(runtimes, "", "gvisor") {
		t.Fatalf("the pause does not hold: %+v", r)
	}
	second.SetOverrides(nil)
	over.before = pass
	second.done()
	w.consistent("after the pause")
}

// TestLateDeleteUnderAPause: the request that deletes an object, to create it again, is carried out
// when the leader, or the next one, has looked, and a pause has begun. The object is created again.
func TestLateDeleteUnderAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, next := range []bool{false, true} {
		w.clean()
		w.firstRelease()
		over := &wire{before: pass, after: pass}
		over.before = func(_ int, r *http.Request) error {
			if deletes(r) {
				return errDied
			}
			return nil
		}
		leader := w.startWith(w.wired(over), resources.Options{BuiltIn: small(t, 2)})
		// An earlier replacement came to nothing.
		w.record(fmt.Sprintf("%%s mark=OLDER at=%d", time.Now().Add(-2*time.Minute).Unix()))
		if r, err := leader.pass(); err == nil || !w.there(runtimes, "", "gvisor") {
			t.Fatalf("%+v, %v", r, err)
		}
		if next {
			leader.stop()
			leader = w.start(resources.Options{BuiltIn: small(t, 2)})
		}
		leader.SetOverrides(pauseAll())
		for range 2 {
			if r, _ := leader.pass(); r.Paused == 0 {
				t.Fatalf("the pause does not hold: %+v", r)
			}
		}
		w.remove(runtimes, "", "gvisor") // that is the request
		leader.until("what was begun to be finished", func(reconciler.Report, error) bool {
			return w.there(runtimes, "", "gvisor")
		})
		leader.SetOverrides(nil)
		leader.done()
		w.consistent("after the pause")
		leader.stop()
	}
}

// TestPauseAfterADeleteAndAFault: a server that answers a deletion with a fault of its own may
// have carried it out. What it has deleted is created again, in spite of a pause.
func TestPauseAfterADeleteAndAFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	resource := schema.GroupResource{Resource: "runtimeclasses"}
	for name, answer := range map[string]error{
		"internal error": apierrors.NewInternalError(errDied),
		"timeout":        apierrors.NewTimeoutError("it took too long", 0),
		"server timeout": apierrors.NewServerTimeout(resource, "delete", 0),
		"unavailable":    apierrors.NewServiceUnavailable("etcd has no leader"),
	} {
		w.clean()
		w.firstRelease()
		over := &wire{before: pass, after: pass}
		second := w.startWith(w.wired(over), resources.Options{BuiltIn: small(t, 2)})
		over.after = func(_ int, r *http.Request) error {
			if !deletes(r) {
				return nil
			}
			second.SetOverrides(pauseAll())
			return answer
		}
		if r, err := second.pass(); err == nil || w.there(runtimes, "", "gvisor") {
			t.Fatalf("%s: it was not deleted, or all is well: %+v, %v", name, r, err)
		}
		third := second
		if name == "timeout" { // that it may be gone is known to the next leader, too
			second.stop()
			third = w.start(resources.Options{BuiltIn: small(t, 2)})
			third.SetOverrides(pauseAll())
		}
		w.soon(name+": what was begun to be finished", func() bool {
			_, _ = third.pass() // it fails until the watch has told
			return w.there(runtimes, "", "gvisor")
		})
		third.SetOverrides(nil)
		third.done()
		w.consistent(name)
		third.stop()
	}
}

// TestLateRequestsOfWhatNobodyWants: what a deposed leader has sent arrives when its successor has
// seen to the object, and does not want it. The successor deletes what there is then. The leader's
// record may be of long ago, when it was last about to do the same.
func TestLateRequestsOfWhatNobodyWants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	creates := func(r *http.Request) bool {
		return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/runtimeclasses/gvisor") && !w.there(runtimes, "", "gvisor")
	}
	for name, c := range map[string]struct {
		late   func(*http.Request) bool
		record string // in place of the UID
	}{
		"create again":                  {creates, ""},
		"create again, recorded before": {creates, "%s mark=OLDER at=1700000000"},
		"delete":                        {deletes, ""},
		"create":                        {creates, "mark=NONE at=%.0s1700000000"},
	} {
		w.clean()
		w.firstRelease()
		if c.record != "" {
			w.record(c.record)
		}
		if name == "create" {
			w.remove(runtimes, "", "gvisor")
		}
		waiting, arrive := make(chan struct{}), make(chan struct{})
		over := &wire{before: pass, after: pass}
		stall := sync.OnceFunc(func() {
			close(waiting)
			<-arrive
		})
		over.before = func(_ int, r *http.Request) error {
			if c.late(r) {
				stall()
			}
			return nil
		}
		deposed := w.startWith(w.wired(over), resources.Options{BuiltIn: small(t, 2)})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = deposed.pass() // whatever becomes of it
		}()
		<-waiting
		successor := w.start(resources.Options{BuiltIn: []*object.Object{}})
		successor.done()
		successor.silent()
		close(arrive)
		<-ended
		deposed.stop()
		if !w.there(runtimes, "", "gvisor") {
			t.Fatalf("%s: the request did not arrive", name)
		}
		w.soon(name+": that it is deleted", func() bool {
			successor.done()
			return !w.there(runtimes, "", "gvisor")
		})
		w.nothingLeft(name)
		successor.stop()
	}
}

// TestDeleteRefused: what was not deleted is not recorded as about to be created again.
func TestDeleteRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.firstRelease()
	before := w.inventory().Entries[gvisor]
	over := &wire{before: pass, after: pass}
	over.before = func(_ int, r *http.Request) error {
		if deletes(r) {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "runtimeclasses"}, "gvisor", errDied)
		}
		return nil
	}
	second := w.startWith(w.wired(over), resources.Options{BuiltIn: small(t, 2)})
	r, err := second.pass()
	if err == nil || len(r.Failures) == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if after := w.inventory().Entries[gvisor]; after != before {
		t.Errorf("%+v, want %+v", after, before)
	}
}
