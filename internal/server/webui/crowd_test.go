package webui

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// crowd is a site whose callers are known by a header.
func crowd() http.Handler {
	return New(inBubble(smallFleet()), Options{
		Interval: time.Hour, Caller: func(r *http.Request) string { return r.Header.Get("Caller") },
	})
}

// guest is a viewer, and whether its stream has ended.
type guest struct {
	*viewer
	gone atomic.Bool
}

// live reports whether the stream was let in and goes on.
func (g *guest) live() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.gone.Load() && g.status == 0
}

func enter(t *testing.T, site http.Handler, caller, target string) *guest {
	t.Helper()
	g := new(guest)
	g.viewer = watch(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Caller", caller)
		site.ServeHTTP(w, r)
		g.gone.Store(true)
	}), target)
	return g
}

// count counts the streams that go on.
func count(all []*guest) (n int) {
	for _, g := range all {
		if g.live() {
			n++
		}
	}
	return n
}

// TestNobodyHasAllViews: who watches all views that can be watched gives away the oldest ones, to
// each who has fewer, until they have the same. What both watch goes on. Whoever had to leave does
// not come back in the place of another.
func TestNobodyHasAllViews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		site := crowd()
		var greedy, late []*guest
		watchOne := func(all *[]*guest, caller string, n int) bool {
			g := enter(t, site, caller, fmt.Sprintf("/live/machines/%s-%d", caller, n))
			*all = append(*all, g)
			return g.live()
		}
		overview := []*guest{enter(t, site, "greedy", "/live/")}
		for i := range live.MaxViews - 1 {
			if !watchOne(&greedy, "greedy", i) {
				t.Fatalf("there is room, and view %d is refused", i)
			}
		}
		overview = append(overview, enter(t, site, "late", "/live/"))
		if watchOne(&greedy, "greedy", live.MaxViews) {
			t.Error("a caller has one view too many")
		}
		for i := range live.MaxViews {
			if let, fair := watchOne(&late, "late", i), i < (live.MaxViews-1)/2; let != fair {
				t.Fatalf("view %d of the late one: let in %t", i, let)
			}
			if i < (live.MaxViews-1)/2 && greedy[i].live() {
				t.Fatalf("the oldest view of the greedy one goes on beside view %d of the late one", i)
			}
		}
		if a, b := count(greedy), count(late); a != 32 || b != 31 || count(overview) != 2 {
			t.Errorf("the greedy one has %d views, the late one %d, and %d watch the overview", a, b, count(overview))
		}
		for i := range 3 {
			if watchOne(&greedy, "greedy", i) {
				t.Error("who had to leave comes back in the place of another")
			}
		}
		if g := enter(t, site, "third", "/live/machines"); !g.live() || count(greedy)+count(late) != live.MaxViews-2 {
			t.Errorf("a third caller is let in: %t; the others have %d views", g.live(), count(greedy)+count(late))
		} else {
			g.leave()
		}
		for _, g := range append(append(overview, greedy...), late...) {
			g.leave()
		}
		synctest.Wait()
		if g := enter(t, site, "greedy", "/live/machines/new"); !g.live() {
			t.Error("everybody left, and there is no room")
		} else {
			g.leave()
		}
	})
}

// TestNobodyHasAllStreams of a view that many may watch.
func TestNobodyHasAllStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		site := crowd()
		var greedy []*guest
		for range live.MaxViewers {
			greedy = append(greedy, enter(t, site, "greedy", "/live/"))
		}
		g := enter(t, site, "late", "/live/")
		if !g.live() || greedy[0].live() || count(greedy) != live.MaxViewers-1 {
			t.Errorf("the late one is let in: %t; the greedy one has %d streams", g.live(), count(greedy))
		}
		if again := enter(t, site, "greedy", "/live/"); again.live() {
			t.Error("the greedy one has all again")
		}
		for _, g := range append(greedy, g) {
			g.leave()
		}
		synctest.Wait()
	})
}
