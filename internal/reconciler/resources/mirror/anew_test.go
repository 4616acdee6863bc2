package mirror_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// TestRefusedInTheStream: a server that accepts the watch, and says only in the stream that it
// cannot send all, is asked for a list, whatever error it names.
func TestRefusedInTheStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refusal := apierrors.NewInternalError(errors.New("the required storage feature RequestWatchProgress is disabled")).Status()
		f := &fakeServer{refusal: &refusal}
		m, _ := f.start(t, object("a", 5))
		elapse(time.Second)
		if err := m.Await(t.Context()); err != nil || version(m, "a") != "5" || f.lists != 1 || f.from != "10" {
			t.Errorf("%v, a %q, %d lists, from %s", err, version(m, "a"), f.lists, f.from)
		}
	})
}

// TestCutOffBeforeTheBookmark: a server that goes away while it sends all is not taken for one that
// cannot: it is not asked for lists from then on.
func TestCutOffBeforeTheBookmark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{silent: true}
		m, _ := f.start(t, object("a", 5))
		elapse(time.Second)
		f.mu.Lock()
		f.silent = false
		f.mu.Unlock()
		f.events().Stop()
		elapse(time.Second)
		if err := m.Await(t.Context()); err != nil || f.lists != 0 || f.initial != 2 {
			t.Errorf("%v, %d lists, all was sent %d times", err, f.lists, f.initial)
		}
	})
}

// TestWhatHappensBeforeTheBookmark: what is changed or deleted while the server sends all is told
// before the bookmark, too.
func TestWhatHappensBeforeTheBookmark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{meanwhile: []watch.Event{{Type: watch.Deleted, Object: object("a", 11)}, {Type: watch.Modified, Object: object("b", 12)}}}
		m, _ := f.start(t, object("a", 5), object("b", 6))
		if err := m.Await(t.Context()); err != nil || version(m, "a") != "" || version(m, "b") != "12" {
			t.Errorf("%v, a %q, b %q", err, version(m, "a"), version(m, "b"))
		}
	})
}

// TestRestored: a server that comes back over an etcd that was restored from a snapshot accepts a
// watch from the version seen before, which is yet to come, and tells of nothing. So everything is
// asked for anew, also where client-go has waited until the server was back.
func TestRestored(t *testing.T) {
	t.Parallel()
	for how, away := range map[string]func(*fakeServer){
		"refuses": func(f *fakeServer) {
			elapse(10 * time.Minute) // the watch has ended, as it was to
			f.fail(errors.New("connection refused"))
			elapse(time.Minute)
		},
		"is away for a moment": func(f *fakeServer) { elapse(time.Minute) },
	} {
		synctest.Test(t, func(t *testing.T) {
			f, m, _ := start(t, object("a", 5), object("b", 9))
			if err := m.Await(t.Context()); err != nil {
				t.Fatal(err)
			}
			away(f)
			f.mu.Lock()
			f.list.Items, f.list.ResourceVersion = []metav1.PartialObjectMetadata{*object("a", 4)}, "8"
			f.mu.Unlock()
			f.fail(nil)
			elapse(4 * time.Second)
			if err := m.Await(t.Context()); err != nil || version(m, "a") != "4" || version(m, "b") != "" {
				t.Errorf("a server that %s: %v, a %q, b %q", how, err, version(m, "a"), version(m, "b"))
			}
			f.events().Modify(object("a", 9))
			synctest.Wait()
			if version(m, "a") != "9" {
				t.Errorf("a server that %s: a %q", how, version(m, "a"))
			}
		})
	}
}

// TestListedOnceWithoutAWatch: a server that answers, and accepts no watch, is not asked for a list
// before each attempt.
func TestListedOnceWithoutAWatch(t *testing.T) {
	t.Parallel()
	things := schema.GroupResource{Resource: "things"}
	for why, c := range map[string]struct {
		err   error
		lists int
	}{
		"busy":      {apierrors.NewTooManyRequests("busy", 1), 1},
		"forbidden": {apierrors.NewForbidden(things, "", nil), 1},
		// Before every other attempt.
		"fault": {apierrors.NewInternalError(errors.New("a fault")), 100},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeServer{old: true}
			m, _ := f.start(t, object("a", 5))
			elapse(time.Minute)
			f.mu.Lock()
			f.unwatched = c.err
			f.mu.Unlock()
			f.events().Stop() // cut off
			elapse(5 * time.Minute)
			if _, lists, watches, _ := f.now(); lists-1 > c.lists || watches < 120 || m.Await(t.Context()) == nil {
				t.Errorf("%s: %d lists for %d watches, %v", why, lists-1, watches, m.Await(t.Context()))
			}
		})
	}
}
