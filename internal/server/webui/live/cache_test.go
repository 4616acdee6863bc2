package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/a-h/templ"
)

// stubView answers what it is told to.
type stubView struct {
	key  string
	load func(ctx context.Context) (*Content, error)
}

func (v stubView) Key() string                                { return v.key }
func (v stubView) Name() string                               { return "stub" }
func (v stubView) Load(ctx context.Context) (*Content, error) { return v.load(ctx) }
func (v stubView) Notice(a Answer[*Content]) templ.Component  { return text(fmt.Sprint(a.Err)) }

func text(s string) templ.Component { return templ.Raw(s) }

func (v stubView) answers(fragments ...*Fragment) stubView {
	v.load = func(context.Context) (*Content, error) { return &Content{Title: v.key, Fragments: fragments}, nil }
	return v
}

func testOptions(log *strings.Builder) Options {
	return Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Interval: time.Second, Timeout: time.Second}
}

// TestCacheIsBounded: views that nobody looks at any more give way.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := NewCache(testOptions(new(strings.Builder)))
	look := func(key string) *entry {
		e := c.enter(stubView{key: key}.answers())
		c.leave(e)
		return e
	}
	kept := look("busy")
	for i := range 10 * maxCached {
		look(fmt.Sprint(i))
		if look("busy") != kept {
			t.Fatal("the view that is looked at all the time gave way")
		}
		if len(c.entries) > maxCached {
			t.Fatalf("%d views are kept", len(c.entries))
		}
	}
}

// TestAPanicIsAFailure: of the view alone. The page is told that something failed, the log what.
func TestAPanicIsAFailure(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	v := stubView{key: "broken", load: func(ctx context.Context) (*Content, error) {
		return nil, Parallel(ctx, func(context.Context) error { panic("a secret of the control plane") })
	}}
	a, err := NewCache(testOptions(&log)).Look(t.Context(), v)
	if err != nil || a.Err == nil || strings.Contains(a.Err.Error(), "secret") {
		t.Errorf("the page is told %v, %v", a.Err, err)
	}
	if !strings.Contains(log.String(), "a secret of the control plane") || !strings.Contains(log.String(), "view=broken") {
		t.Errorf("the log has %q", log.String())
	}
}

// TestCompose: the notice is over the last content, and alone while there was none.
func TestCompose(t *testing.T) {
	t.Parallel()
	v := stubView{key: "v"}
	down := errors.New("down")
	for name, test := range map[string]struct {
		answer Answer[*Content]
		title  string
		ids    int
	}{
		"never loaded": {Answer[*Content]{Err: down}, "stub", 1},
		"stale":        {Answer[*Content]{Value: &Content{Title: "old", Fragments: []*Fragment{Section("a", "", text("x"))}}, Err: down}, "old", 2},
	} {
		c, err := Compose(t.Context(), v, test.answer)
		if err != nil || c.Title != test.title || len(c.Fragments) != test.ids || c.Fragments[0].HTML() != "down" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// TestSwaps: everything at first, then what changed, and a whole table only when its rows are
// others than before, or what is around them has changed.
func TestSwaps(t *testing.T) {
	t.Parallel()
	table := func(around string, rows ...string) []*Fragment {
		f := Section("table", "", nil)
		f.Body = templ.ComponentFunc(func(ctx context.Context, w io.Writer) error {
			for _, p := range f.Parts {
				if err := p.Element().Render(ctx, w); err != nil {
					return err
				}
			}
			_, err := io.WriteString(w, around)
			return err
		})
		for _, r := range rows {
			id, body, _ := strings.Cut(r, "=")
			f.Parts = append(f.Parts, &Fragment{ID: id, Tag: "tr", Body: text(body)})
		}
		all := []*Fragment{Section("head", "", text("h")), f}
		if err := renderAll(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	sent := map[string]string{}
	for _, step := range []struct {
		fragments []*Fragment
		want      string
	}{
		{table("", "a=1", "b=1"), "head table"},
		{table("", "a=1", "b=1"), ""},
		{table("", "a=1", "b=2"), "b"},
		{table("", "b=2", "a=1"), "table"},
		{table("", "b=2"), "table"},
		{table("", "b=3"), "b"},
		{table("next page", "b=3"), "table"},
		{table("next page", "b=4"), "b"},
		{table("", "b=5"), "table"},
	} {
		var ids []string
		for _, s := range swaps(step.fragments, sent) {
			ids = append(ids, s.ID)
		}
		if got := strings.Join(ids, " "); got != step.want {
			t.Errorf("sent %q, want %q", got, step.want)
		}
	}
}
