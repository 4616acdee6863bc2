package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/ironherd/ironherd/internal/reconciler/resources/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeServer has one list, and watches that the test feeds.
type fakeServer struct {
	mu   sync.Mutex
	list metav1.PartialObjectMetadataList
	down error
	// unwatched is what the server says to each watch.
	unwatched error
	hung      bool
	// handshake is how long client-go waits for a hung server.
	handshake time.Duration
	old       bool // the server knows no initial events
	silent    bool // the bookmark after them does not come
	// refusal is what the server says in the stream instead of them, and meanwhile what happens before
	// the bookmark.
	refusal   *metav1.Status
	meanwhile []watch.Event
	lists     int
	initial   int // how often all was sent
	watches   int
	from      string // version that the last watch went on from
	watch     *watch.FakeWatcher
}

func (f *fakeServer) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	if f.down != nil {
		return nil, f.down
	}
	return f.list.DeepCopy(), nil
}

func (f *fakeServer) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches++
	switch {
	case f.down != nil: // as client-go says it
		return nil, &url.Error{Op: "Get", URL: fmt.Sprintf("https://server/things?timeoutSeconds=%d", *o.TimeoutSeconds), Err: f.down}
	case f.unwatched != nil:
		return nil, f.unwatched
	case f.hung: // what client-go does when a request has taken too long
		f.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(f.handshake):
		}
		f.mu.Lock()
		return watch.NewEmptyWatch(), nil
	}
	f.from = o.ResourceVersion
	f.watch = watch.NewFakeWithChanSize(100, false)
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		if f.old {
			return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
		}
		if f.refusal != nil {
			f.watch.Error(f.refusal)
			f.watch.Stop()
			return f.watch, nil
		}
		f.initial++
		for i := range f.list.Items {
			f.watch.Add(f.list.Items[i].DeepCopy())
		}
		for _, event := range f.meanwhile {
			f.watch.Action(event.Type, event.Object)
		}
		if !f.silent {
			end := object("", 0)
			end.ResourceVersion, end.Annotations = f.list.ResourceVersion, map[string]string{metav1.InitialEventsAnnotationKey: "true"}
			f.watch.Action(watch.Bookmark, end)
		}
	}
	return f.watch, nil
}

// now is the watch that is there, and how it came to be.
func (f *fakeServer) now() (w *watch.FakeWatcher, lists, watches int, from string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watch, f.lists + f.initial, f.watches, f.from
}

// events is the watch that is there.
func (f *fakeServer) events() *watch.FakeWatcher {
	w, _, _, _ := f.now()
	return w
}

func (f *fakeServer) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = err
	if f.watch != nil {
		f.watch.Stop()
	}
}

func object(name string, version int) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), ResourceVersion: fmt.Sprint(version),
	}}
}

// elapse lets time pass, and then all that is due happen.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func named(name string) mirror.Name { return mirror.Name{Name: name} }

// start runs a mirror of a fake server in a bubble.
func start(t *testing.T, objects ...*metav1.PartialObjectMetadata) (*fakeServer, *mirror.Mirror, *atomic.Int64) {
	t.Helper()
	f := &fakeServer{}
	m, changes := f.start(t, objects...)
	return f, m, changes
}

// start runs a mirror of it in a bubble, until the test ends.
func (f *fakeServer) start(t *testing.T, objects ...*metav1.PartialObjectMetadata) (*mirror.Mirror, *atomic.Int64) {
	t.Helper()
	f.list.ResourceVersion = "10"
	for _, o := range objects {
		f.list.Items = append(f.list.Items, *o)
	}
	changes := new(atomic.Int64)
	m := mirror.New(f, "l=true", func(mirror.Name, *metav1.PartialObjectMetadata) { changes.Add(1) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return m, changes
}

func version(m *mirror.Mirror, name string) string {
	if o := m.Get(named(name)); o != nil {
		return o.ResourceVersion
	}
	return ""
}

func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, m, changes := start(t, object("a", 5), object("b", 6))
		if err := m.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.events().Modify(object("a", 11))
		f.events().Add(object("c", 12))
		f.events().Delete(object("b", 13))
		f.events().Action(watch.Bookmark, object("", 20))
		synctest.Wait()
		if version(m, "a") != "11" || version(m, "b") != "" || version(m, "c") != "12" {
			t.Errorf("a %s, b %s, c %s", version(m, "a"), version(m, "b"), version(m, "c"))
		}
		before := changes.Load()
		// What our own request has returned is known before the watch tells it, and what the watch tells
		// late is no news.
		if !m.Put(object("a", 30)) || m.Put(object("a", 30)) || m.Put(object("a", 29)) {
			t.Error("Put does not know what is news")
		}
		f.events().Modify(object("a", 25))
		f.events().Modify(object("a", 30))
		f.events().Delete(object("a", 26)) // of its predecessor
		synctest.Wait()
		if version(m, "a") != "30" || changes.Load() != before {
			t.Errorf("a is %q after old news, %d changes", version(m, "a"), changes.Load()-before)
		}
		m.Remove(named("a"), "another")
		if version(m, "a") == "" {
			t.Error("another object was forgotten")
		}
		m.Remove(named("a"), "uid-a")
		if version(m, "a") != "" {
			t.Error("it was not forgotten")
		}
		// The server ends the watch, as it does: the next goes on from the last bookmark or event, and
		// nobody notices.
		elapse(10 * time.Minute)
		f.events().Stop()
		elapse(time.Second)
		if _, lists, watches, from := f.now(); lists != 1 || watches != 2 || from != "26" || m.Await(t.Context()) != nil {
			t.Errorf("%d lists, %d watches, from %s, %v", lists, watches, from, m.Await(t.Context()))
		}
	})
}

func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, m, _ := start(t, object("a", 5))
		if err := m.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		elapse(time.Minute)
		down := errors.New("connection refused")
		f.fail(down)
		elapse(time.Minute)
		// What each attempt says anew would pass for news.
		if err := m.Await(t.Context()); !errors.Is(err, down) || err.Error() != "watch: connection refused" {
			t.Errorf("without a server: %v", err)
		}
		if _, _, watches, _ := f.now(); watches > 60 {
			t.Errorf("%d attempts in a minute", watches)
		}
		f.fail(nil)
		elapse(4 * time.Second)
		_, lists, _, _ := f.now()
		if err := m.Await(t.Context()); err != nil || lists != 2 || version(m, "a") != "5" {
			t.Errorf("back again: %v, %d lists, a %s", err, lists, version(m, "a"))
		}
	})
}

// TestTooLongAgo: what cannot be gone on from is listed anew; what is gone from the list is gone.
func TestTooLongAgo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, m, changes := start(t, object("a", 5), object("b", 6))
		if err := m.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		elapse(time.Minute)
		f.mu.Lock()
		f.list.Items, f.list.ResourceVersion = []metav1.PartialObjectMetadata{*object("b", 6), *object("c", 50)}, "60"
		f.mu.Unlock()
		before := changes.Load()
		expired := apierrors.NewResourceExpired("too old").Status()
		f.events().Error(&expired)
		elapse(time.Second)
		_, lists, watches, _ := f.now()
		if lists != 2 || version(m, "a") != "" || version(m, "c") != "50" || changes.Load() != before+2 {
			t.Errorf("%d lists, a %q, c %q, %d changes", lists, version(m, "a"), version(m, "c"), changes.Load()-before)
		}
		// A server that ends each watch at once is not asked in a busy loop.
		for range 100 {
			if !f.events().IsStopped() {
				f.events().Error(&expired)
			}
			elapse(100 * time.Millisecond)
		}
		if _, _, now, _ := f.now(); now-watches > 20 {
			t.Errorf("%d watches in ten seconds", now-watches)
		}
	})
}

// TestNotInStepAfterTooLongAgo: a server that has accepted a watch, and then says that it cannot go
// on from there, has not told what has changed. Whoever asks waits until it has sent all anew.
func TestNotInStepAfterTooLongAgo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, m, _ := start(t, object("a", 5))
		if err := m.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		elapse(10 * time.Minute)
		f.mu.Lock()
		f.silent = true
		f.list.Items, f.list.ResourceVersion = nil, "60"
		f.mu.Unlock()
		f.events().Stop() // and the next one goes on
		elapse(4 * time.Second)
		expired := apierrors.NewResourceExpired("too old").Status()
		f.events().Error(&expired)
		elapse(20 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.Await(ctx); !errors.Is(err, context.DeadlineExceeded) || version(m, "a") != "5" {
			t.Errorf("before the server has sent all: %v, a %q", err, version(m, "a"))
		}
		if err := m.Await(t.Context()); err == nil {
			t.Error("a server that does not send all is none that does not answer")
		}
		elapse(4 * time.Second)
		if err := m.Await(t.Context()); err != nil || version(m, "a") != "" {
			t.Errorf("once it has: %v, a %q", err, version(m, "a"))
		}
	})
}

func TestKindIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, m, _ := start(t, object("a", 5))
		if err := m.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		elapse(time.Minute)
		f.fail(apierrors.NewNotFound(schema.GroupResource{Resource: "widgets"}, ""))
		elapse(time.Hour)
		if _, _, watches, _ := f.now(); !mirror.Gone(m.Await(t.Context())) || watches != 2 {
			t.Errorf("%v, %d watches", m.Await(t.Context()), watches)
		}
	})
}

// TestEnd: who waits for a mirror that ends is told.
func TestEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{down: errors.New("down")}
		m := mirror.New(f, "", func(mirror.Name, *metav1.PartialObjectMetadata) {})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m.Run(ctx)
		if err := m.Await(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// TestHungServer: a server that takes connections and does not answer is not one that the mirror is
// in step with, however client-go says so.
func TestHungServer(t *testing.T) {
	t.Parallel()
	for n, handshake := range []time.Duration{2 * time.Second, time.Hour, 2 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeServer{old: n >= 2} // then only its watches hang
			m, _ := f.start(t, object("a", 5))
			elapse(time.Second)
			if err := m.Await(t.Context()); err != nil {
				t.Fatal(err)
			}
			elapse(time.Minute)
			f.mu.Lock()
			f.hung, f.handshake = true, handshake
			f.mu.Unlock()
			f.events().Stop() // the connection was found dead
			elapse(15 * time.Second)
			if m.Await(t.Context()) == nil {
				t.Errorf("in step with a server that does not answer (client-go waits for %v; old: %t)", handshake, f.old)
			}
			f.mu.Lock()
			f.hung = false
			f.mu.Unlock()
			elapse(15 * time.Second)
			if err := m.Await(t.Context()); err != nil {
				t.Errorf("back again: %v", err)
			}
		})
	}
}

// TestFirstBookmark: a mirror is not in step before the server has said that it has sent all.
func TestFirstBookmark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{silent: true}
		f.list.ResourceVersion, f.list.Items = "10", []metav1.PartialObjectMetadata{*object("a", 5)}
		m := mirror.New(f, "", func(mirror.Name, *metav1.PartialObjectMetadata) {})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			m.Run(ctx)
		}()
		elapse(20 * time.Second)
		waiting, stop := context.WithTimeout(t.Context(), time.Second)
		if err := m.Await(waiting); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before the bookmark: %v", err)
		}
		stop()
		elapse(20 * time.Second) // then the server is asked for a list
		if err := m.Await(t.Context()); err != nil || version(m, "a") != "5" || f.lists != 1 {
			t.Errorf("%v, a %q, %d lists", err, version(m, "a"), f.lists)
		}
		cancel()
		<-ended
	})
}

// TestServerWithoutInitialEvents is asked for a list.
func TestServerWithoutInitialEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{old: true}
		f.list.ResourceVersion, f.list.Items = "10", []metav1.PartialObjectMetadata{*object("a", 5)}
		m := mirror.New(f, "", func(mirror.Name, *metav1.PartialObjectMetadata) {})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			m.Run(ctx)
		}()
		elapse(time.Second)
		if err := m.Await(t.Context()); err != nil || version(m, "a") != "5" || f.lists != 1 || f.from != "10" {
			t.Errorf("%v, a %q, %d lists, from %s", err, version(m, "a"), f.lists, f.from)
		}
		cancel()
		<-ended
	})
}

// TestLateAnswer: what a request returns after the watch has told more is not taken, for the object
// may be gone, and nobody would tell that again.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, m, _ := start(t, object("a", 5))
		if err := m.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		put := func(o *metav1.PartialObjectMetadata, news bool, when string) {
			t.Helper()
			if m.Put(o) != news || (version(m, o.Name) == o.ResourceVersion) != news {
				t.Errorf("%s %s is news: %t, and then the mirror has %q", when, o.Name, !news, version(m, o.Name))
			}
		}
		put(object("listed", 10), false, "as old as the list,")
		f.events().Add(object("gone", 11))
		f.events().Delete(object("gone", 12))
		synctest.Wait()
		put(object("gone", 11), false, "after its deletion,")
		put(object("gone", 13), true, "created again,")
		f.events().Action(watch.Bookmark, object("", 20))
		synctest.Wait()
		put(object("b", 20), false, "as old as a bookmark,")
		put(object("b", 21), true, "newer than a bookmark,")
		for _, name := range []string{"b", "c"} {
			strange := object(name, 0)
			strange.ResourceVersion = "x30"
			put(strange, false, "of no known age,")
		}
		elapse(time.Minute)
		f.mu.Lock()
		f.list.Items, f.list.ResourceVersion = nil, "8" // restored from a backup
		f.mu.Unlock()
		expired := apierrors.NewResourceExpired("too old").Status()
		f.events().Error(&expired)
		elapse(time.Second)
		put(object("b", 9), true, "newer than the last list,")
	})
}
