package live

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/a-h/templ"
)

// View is one thing that can be looked at. Views with the same key are the same.
type View interface {
	Key() string
	// Name is the title while there is no content yet.
	Name() string
	// Load asks for the content. It must not change what it has returned. Of the content that comes
	// with an error, the cost alone counts; it may be nil.
	Load(ctx context.Context) (*Content, error)
	// Notice is what is shown over the content: empty while all is well, else why the last attempt to
	// load it failed.
	Notice(a Answer[*Content]) templ.Component
}

// Content is a loaded view.
type Content struct {
	Title     string
	Fragments []*Fragment
	// Cost is how long that took of it which reads much, with what it waited for: the view is loaded
	// the more rarely, as Question.Costly says. Zero: nothing reads much.
	Cost time.Duration
}

// Options bound how often and for how long views are loaded. The first three are required.
type Options struct {
	Logger *slog.Logger
	// Interval is the shortest time between two loads of one view.
	Interval time.Duration
	// Timeout is how long one load may take.
	Timeout time.Duration
	// Stopped is closed when the server has stopped: what is asked still, for callers who have left,
	// ends then. Nil: by the timeout alone.
	Stopped <-chan struct{}
	// Allowed says whether who made a request may still read. A stream asks it before each beat. Nil:
	// they always may.
	Allowed func(*http.Request) bool
	// Caller names who made a request. No caller has all that may be watched at the same time where
	// others want some of it. Nil: all are one.
	Caller func(*http.Request) string
	// Ours binds what is asked for all callers to none of them, so that none keeps the others waiting
	// for it. Nil: it is asked for who came first.
	Ours func(context.Context) context.Context
	// Shared binds what is asked for a view that another caller watches, too, or in place of the first
	// one, to none of them. Nil: it is asked for who came first.
	Shared func(context.Context) context.Context
}

func (o Options) callerOf(r *http.Request) string {
	if o.Caller == nil {
		return ""
	}
	return o.Caller(r)
}

// noticeID is the ID of the fragment that holds a view's notice.
const noticeID = "notice"

// Compose returns what a viewer sees of a view: the notice, then the last content where there is
// some.
func Compose(ctx context.Context, v View, a Answer[*Content]) (*Content, error) {
	notice := Section(noticeID, noticeID, v.Notice(a))
	if err := renderAll(ctx, []*Fragment{notice}); err != nil {
		return nil, err
	}
	seen := &Content{Title: v.Name(), Fragments: []*Fragment{notice}}
	if a.Value != nil {
		seen.Title = a.Value.Title
		seen.Fragments = append(seen.Fragments, a.Value.Fragments...)
	}
	return seen, nil
}
