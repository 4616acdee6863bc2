package webui

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Bounds of what is watched at once, over all viewers. Who comes beyond them has a page that
// refreshes itself.
const (
	maximumViewers = 512
	maximumFeeds   = 64
)

var errCrowded = errors.New("too many live views are open")

// hub has one feed for each view that is watched.
type hub struct {
	shelf   *shelf
	options Options

	mu      sync.Mutex
	feeds   map[string]*feed
	viewers int
}

func newHub(s *shelf, opts Options) *hub {
	return &hub{shelf: s, options: opts, feeds: map[string]*feed{}}
}

// join makes the caller a viewer of a view until it calls leave, once. When leave returns for the
// last viewer of a view, the feed has ended. The feed lives beyond ctx, with its values.
func (h *hub) join(ctx context.Context, v view) (f *feed, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f = h.feeds[v.key()]
	if h.viewers >= maximumViewers || f == nil && len(h.feeds) >= maximumFeeds {
		return nil, nil, errCrowded
	}
	if f == nil {
		polling, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &feed{view: v, shelf: h.shelf, options: h.options, cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{})}
		h.feeds[v.key()] = f
		go f.run(polling)
	}
	f.viewers++
	h.viewers++
	return f, func() { h.leave(f) }, nil
}

func (h *hub) leave(f *feed) {
	h.mu.Lock()
	h.viewers--
	f.viewers--
	last := f.viewers == 0
	if last {
		delete(h.feeds, f.view.key())
	}
	h.mu.Unlock()
	if last {
		f.cancel()
		<-f.ended
	}
}

// feed polls one view for all of its viewers.
type feed struct {
	view    view
	shelf   *shelf
	options Options
	cancel  context.CancelFunc
	ended   chan struct{}
	viewers int // guarded by the hub

	mu      sync.Mutex
	frame   *frame
	changed chan struct{} // closed and replaced with every frame
}

// frame is a view at one time, as it is sent. It is not changed.
type frame struct {
	title     string
	fragments []*fragment
}

// run polls until ctx ends. A panic ends the feed, not the process; its viewers come again.
func (f *feed) run(ctx context.Context) {
	defer close(f.ended)
	defer f.cancel()
	defer func() {
		if v := recover(); v != nil {
			f.options.Logger.Error("a live view panicked", slog.String("view", f.view.key()), slog.Any("err", v),
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
		next, err := f.poll(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			f.options.Logger.Error("a live view could not be made", slog.String("view", f.view.key()), slog.Any("err", err))
		default:
			f.publish(next)
		}
		timer.Reset(f.options.Interval)
	}
}

func (f *feed) poll(ctx context.Context) (*frame, error) {
	a, err := f.shelf.look(ctx, f.view)
	if err != nil {
		return nil, err
	}
	return newFrame(ctx, f.view, a)
}

// newFrame puts the banner, if there is one, over the last content, if there is one.
func newFrame(ctx context.Context, v view, a answer[*content]) (*frame, error) {
	banner := section("notice", "notice", noticeBody(outageOf(v, a)))
	if err := settle(ctx, []*fragment{banner}); err != nil {
		return nil, err
	}
	next := &frame{title: v.name(), fragments: []*fragment{banner}}
	if a.value != nil {
		next.title = a.value.title
		next.fragments = append(next.fragments, a.value.fragments...)
	}
	return next, nil
}

// publish wakes the viewers; each works out what is new to it.
func (f *feed) publish(next *frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frame = next
	close(f.changed)
	f.changed = make(chan struct{})
}

// now returns the newest frame (nil before the first) and what is closed when there is a newer one.
func (f *feed) now() (*frame, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frame, f.changed
}
