package live

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// maxCached is how many views a cache remembers. It forgets the one that nobody has looked at for
// the longest.
const maxCached = 64

// Cache keeps the last content of views. Pages and streams of one view share its loads, and the
// last content is still there when a load fails.
type Cache struct {
	options Options

	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	content *Question[*Content]
	looked  time.Time
}

// NewCache returns an empty cache.
func NewCache(options Options) *Cache {
	return &Cache{options: options, entries: map[string]*entry{}}
}

// Look returns a view as it is now. It loads the view when the last content is older than the
// interval. Its error is that of ctx alone; a failed load is in the answer.
func (c *Cache) Look(ctx context.Context, v View) (Answer[*Content], error) {
	return c.question(v).Answer(ctx)
}

func (c *Cache) question(v View) *Question[*Content] {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[v.Key()]
	if e == nil {
		c.makeRoom()
		e = &entry{content: NewQuestion(c.options.Interval, c.options.Timeout, func(ctx context.Context) (*Content, error) {
			return c.load(ctx, v)
		})}
		e.content.cost = func(c *Content, _ time.Duration) time.Duration {
			if c == nil {
				return 0
			}
			return c.Cost
		}
		c.entries[v.Key()] = e
	}
	e.looked = time.Now()
	return e.content
}

func (c *Cache) load(ctx context.Context, v View) (*Content, error) {
	content, err := v.Load(ctx)
	if p, ok := errors.AsType[*panicError](err); ok {
		c.options.Logger.Error("a question for a page panicked", slog.String("view", v.Key()), slog.String("err", p.value),
			slog.String("stack", p.stack))
	}
	if err != nil {
		return content, err
	}
	if err := renderAll(ctx, content.Fragments); err != nil {
		return nil, err
	}
	return content, nil
}

// makeRoom forgets a view where there are as many as may be. The caller holds the lock.
func (c *Cache) makeRoom() {
	if len(c.entries) < maxCached {
		return
	}
	oldest := ""
	for key, e := range c.entries {
		if oldest == "" || e.looked.Before(c.entries[oldest].looked) {
			oldest = key
		}
	}
	delete(c.entries, oldest)
}
