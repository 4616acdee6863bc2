package live

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxCached is how many views a cache remembers, besides those that are looked at or loaded. It
	// forgets the one that nobody has looked at for the longest.
	maxCached = 64
	// maxAbandoned is how many loads of a cache go on at most for callers who have left.
	maxAbandoned = 2
)

// Cache keeps the last content of views. Pages and streams of one view share its loads, and the
// last content is still there when a load fails.
type Cache struct {
	options   Options
	abandoned chan struct{} // see Question

	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	content *Question[*Content]
	looked  time.Time
	// callers is how many wait for it.
	callers int
}

// NewCache returns an empty cache.
func NewCache(options Options) *Cache {
	return &Cache{options: options, abandoned: make(chan struct{}, maxAbandoned), entries: map[string]*entry{}}
}

// Look returns a view as it is now. It loads the view when the last content is older than the
// interval. Its error is that of Question.Answer; a failed load is in the answer.
func (c *Cache) Look(ctx context.Context, v View) (Answer[*Content], error) {
	e := c.enter(v)
	defer c.leave(e)
	return e.content.Answer(ctx)
}

// enter returns the entry of a view for one caller, until leave.
func (c *Cache) enter(v View) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[v.Key()]
	if e == nil {
		c.makeRoom()
		e = &entry{content: NewQuestion(c.options, c.options.Interval, func(ctx context.Context) (*Content, error) {
			return c.load(ctx, v)
		})}
		e.content.abandoned = c.abandoned
		e.content.cost = func(c *Content, _ time.Duration) time.Duration {
			if c == nil {
				return 0
			}
			return c.Cost
		}
		c.entries[v.Key()] = e
	}
	e.looked = time.Now()
	e.callers++
	return e
}

func (c *Cache) leave(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.callers--
}

func (c *Cache) load(ctx context.Context, v View) (content *Content, err error) {
	err = Parallel(ctx, func(ctx context.Context) (err error) {
		if content, err = v.Load(ctx); err != nil {
			return err
		}
		return renderAll(ctx, content.Fragments)
	})
	if p, ok := errors.AsType[*panicError](err); ok {
		c.options.Logger.Error("a question for a page panicked", slog.String("view", v.Key()), slog.String("err", p.value),
			slog.String("stack", p.stack))
	}
	return content, err
}

// makeRoom forgets views where there are as many as may be, but none that is waited for or loaded:
// it would be loaded twice at once. The caller holds the lock.
func (c *Cache) makeRoom() {
	for len(c.entries) >= maxCached {
		oldest := ""
		for key, e := range c.entries {
			if e.callers == 0 && !e.content.underWay() && (oldest == "" || e.looked.Before(c.entries[oldest].looked)) {
				oldest = key
			}
		}
		if oldest == "" {
			return
		}
		delete(c.entries, oldest)
	}
}
