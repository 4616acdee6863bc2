package live

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Bounds of what is watched at the same time. Whoever comes beyond them has a page that is loaded
// anew once a minute.
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

	mu      sync.Mutex
	feeds   map[string]*feed
	viewers int
}

// NewHub returns a hub whose feeds load views through the cache.
func NewHub(cache *Cache, options Options) *Hub {
	return &Hub{cache: cache, options: options, feeds: map[string]*feed{}}
}

// join makes the caller a viewer of a view until it calls leave, once. When leave returns for the
// last viewer of a view, the feed has ended. The feed outlives ctx, with its values, because it may
// have other viewers by then.
func (h *Hub) join(ctx context.Context, v View) (f *feed, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f = h.feeds[v.Key()]
	if h.viewers >= MaxViewers || f == nil && len(h.feeds) >= MaxViews {
		return nil, nil, errCrowded
	}
	if f == nil {
		running, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &feed{view: v, cache: h.cache, options: h.options, cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{})}
		h.feeds[v.Key()] = f
		go f.run(running)
	}
	f.viewers++
	h.viewers++
	return f, func() { h.leave(f) }, nil
}

func (h *Hub) leave(f *feed) {
	h.mu.Lock()
	h.viewers--
	f.viewers--
	last := f.viewers == 0
	if last {
		delete(h.feeds, f.view.Key())
	}
	h.mu.Unlock()
	if last {
		f.cancel()
		<-f.ended
	}
}

// feed loads one view again and again, for all of its viewers.
type feed struct {
	view    View
	cache   *Cache
	options Options
	cancel  context.CancelFunc
	ended   chan struct{}
	viewers int // guarded by the hub's lock

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
