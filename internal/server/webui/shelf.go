package webui

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// maximumShelf is how many views are remembered; the one that was looked at least recently gives
// way.
const maximumShelf = 64

// shelf keeps the last content of views, so that pages and live streams of one view share the
// questions, and the last view is still there when the control plane does not answer.
type shelf struct {
	source  *source
	options Options

	mu    sync.Mutex
	books map[string]*book
}

type book struct {
	content *recent[*content]
	looked  time.Time
}

func newShelf(s *source, opts Options) *shelf {
	return &shelf{source: s, options: opts, books: map[string]*book{}}
}

// look returns a view as it is now, asking the control plane when the last content is older than
// the interval. Its error is that of ctx alone; what went wrong otherwise is in the answer.
func (s *shelf) look(ctx context.Context, v view) (answer[*content], error) {
	return s.book(v).get(ctx)
}

func (s *shelf) book(v view) *recent[*content] {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.books[v.key()]
	if b == nil {
		s.makeRoom()
		b = &book{content: newRecent(s.options.Interval, s.options.Timeout, func(ctx context.Context) (*content, error) {
			return s.load(ctx, v)
		})}
		s.books[v.key()] = b
	}
	b.looked = time.Now()
	return b.content
}

func (s *shelf) load(ctx context.Context, v view) (*content, error) {
	c, err := v.load(ctx, s.source)
	if p, ok := errors.AsType[*panicError](err); ok {
		s.options.Logger.Error("a question for a page panicked", slog.String("view", v.key()), slog.String("err", p.value),
			slog.String("stack", p.stack))
	}
	if err != nil {
		return nil, err
	}
	if err := settle(ctx, c.fragments); err != nil {
		return nil, err
	}
	return c, nil
}

// makeRoom is called with the lock held.
func (s *shelf) makeRoom() {
	if len(s.books) < maximumShelf {
		return
	}
	oldest := ""
	for key, b := range s.books {
		if oldest == "" || b.looked.Before(s.books[oldest].looked) {
			oldest = key
		}
	}
	delete(s.books, oldest)
}
