package live

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of what is watched at the same time. Beyond them a caller is let in for one who has more
// than they would have, so that nobody has all. Whoever is not let in, or had to leave for another,
// has a page that is loaded anew once a minute.
const (
	// MaxViewers counts streams.
	MaxViewers = 512
	// MaxViews counts views that differ.
	MaxViews = 64
)

var errCrowded = errors.New("too many live views are open")

// Hub serves live streams: it has one feed for each view that is watched.
type Hub struct {
	cache   *Cache
	options Options

	mu    sync.Mutex
	feeds map[string]*feed
	seats []*seat // the oldest first
}

// seat is the place of one viewer.
type seat struct {
	caller string
	feed   *feed
	taken  chan struct{} // closed when another caller is let in for this one
}

// NewHub returns a hub whose feeds load views through the cache.
func NewHub(cache *Cache, options Options) *Hub {
	return &Hub{cache: cache, options: options, feeds: map[string]*feed{}}
}

// Look returns a view as it is now, for a page that somebody loads. Its stream has the same answer,
// so a view that another caller watches is asked for none of them here, too. See Cache.Look.
func (h *Hub) Look(r *http.Request, v View) (Answer[*Content], error) {
	ctx := r.Context()
	if h.options.Shared != nil && h.othersWatch(v, h.options.callerOf(r)) {
		ctx = h.options.Shared(ctx)
	}
	return h.cache.Look(ctx, v)
}

// othersWatch reports whether the feed of a view is another caller's, or of several.
func (h *Hub) othersWatch(v View, caller string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.feeds[v.Key()]
	return f != nil && (f.caller != caller || f.shared.Load())
}

// join makes the caller a viewer of a view until they call leave, once. When leave returns for the
// last viewer of a view, the feed has ended. The feed outlives ctx, with its values, because it may
// have other viewers by then; see Options.Shared.
func (h *Hub) join(ctx context.Context, v View, caller string) (s *seat, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.roomFor(v, caller) {
		return nil, nil, errCrowded
	}
	f := h.feeds[v.Key()]
	if f == nil {
		running, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &feed{view: v, caller: caller, cache: h.cache, options: h.options, cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{})}
		h.feeds[v.Key()] = f
		go f.run(running)
	}
	if f.caller != caller {
		f.shared.Store(true)
	}
	s = &seat{caller: caller, feed: f, taken: make(chan struct{})}
	f.seats = append(f.seats, s)
	h.seats = append(h.seats, s)
	return s, func() { h.leave(s) }, nil
}

// roomFor reports whether there is room for one more viewer of a view, and makes some where it can.
// The caller has the lock.
func (h *Hub) roomFor(v View, caller string) bool {
	if h.feeds[v.Key()] == nil && len(h.feeds) >= MaxViews {
		f, ok := yielding(h.alone(), caller)
		if !ok {
			return false
		}
		for len(f.seats) > 0 {
			h.take(f.seats[0])
		}
	}
	if len(h.seats) >= MaxViewers {
		by := map[string][]*seat{}
		for _, s := range h.seats {
			by[s.caller] = append(by[s.caller], s)
		}
		s, ok := yielding(by, caller)
		if !ok {
			return false
		}
		h.take(s)
	}
	return true
}

// alone returns the views that each caller watches alone, the oldest first. What several watch is
// nobody's to give away.
func (h *Hub) alone() map[string][]*feed {
	by := map[string][]*feed{}
	for _, s := range h.seats {
		others := slices.ContainsFunc(s.feed.seats, func(other *seat) bool { return other.caller != s.caller })
		if !others && s.feed.seats[0] == s {
			by[s.caller] = append(by[s.caller], s.feed)
		}
	}
	return by
}

// yielding returns what ends for a caller: the oldest of whoever has the most, if that is more than
// the caller would have. So two who come again and again do not take turns.
func yielding[T any](by map[string][]T, caller string) (oldest T, ok bool) {
	most := len(by[caller]) + 1
	for _, has := range by {
		if len(has) > most {
			most, oldest, ok = len(has), has[0], true
		}
	}
	return oldest, ok
}

// take takes a viewer's seat for another one.
func (h *Hub) take(s *seat) {
	h.remove(s)
	close(s.taken)
}

// remove takes a viewer out, once. The feed of the last one ends. The caller has the lock.
func (h *Hub) remove(s *seat) {
	i := slices.Index(h.seats, s)
	if i < 0 {
		return
	}
	h.seats = slices.Delete(h.seats, i, i+1)
	f := s.feed
	f.seats = slices.DeleteFunc(f.seats, func(other *seat) bool { return other == s })
	if len(f.seats) == 0 {
		delete(h.feeds, f.view.Key())
		f.cancel()
	}
}

func (h *Hub) leave(s *seat) {
	h.mu.Lock()
	h.remove(s)
	last := len(s.feed.seats) == 0
	h.mu.Unlock()
	if last {
		<-s.feed.ended
	}
}

// feed loads one view again and again, for all of its viewers.
type feed struct {
	view   View
	caller string // who came first, and is behind what is asked until another caller comes
	// shared: another caller has come. The first one may have left, and the others must not wait for
	// what that one asks besides.
	shared  atomic.Bool
	cache   *Cache
	options Options
	cancel  context.CancelFunc
	ended   chan struct{}
	seats   []*seat // of its viewers, the oldest first; guarded by the hub's lock

	mu      sync.Mutex
	newest  *Content
	changed chan struct{} // closed and replaced whenever newest is replaced
}

// run loads the view until ctx ends. A panic ends the feed, not the process; its viewers connect
// again.
func (f *feed) run(ctx context.Context) {
	defer close(f.ended)
	defer f.cancel()
	defer func() {
		if v := recover(); v != nil {
			f.options.Logger.Error("a live view panicked", slog.String("view", f.view.Key()), slog.Any("err", v),
				slog.String("stack", string(debug.Stack())))
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		seen, err := f.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			f.options.Logger.Error("a live view could not be made", slog.String("view", f.view.Key()), slog.Any("err", err))
		default:
			f.publish(seen)
		}
		timer.Reset(f.options.Interval)
	}
}

func (f *feed) look(ctx context.Context) (*Content, error) {
	if f.shared.Load() && f.options.Shared != nil {
		ctx = f.options.Shared(ctx)
	}
	a, err := f.cache.Look(ctx, f.view)
	if err != nil {
		return nil, err
	}
	return Compose(ctx, f.view, a)
}

// publish wakes the viewers; each works out what is new to it.
func (f *feed) publish(seen *Content) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newest = seen
	close(f.changed)
	f.changed = make(chan struct{})
}

// now returns the newest content (nil before the first), and what is closed when there is a newer
// one.
func (f *feed) now() (*Content, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newest, f.changed
}
