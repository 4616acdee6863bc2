package mirror_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
