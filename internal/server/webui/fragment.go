package webui

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	"github.com/a-h/templ"
)

// fragment is an element of a page that is swapped on its own. It is not changed once it is
// settled.
type fragment struct {
	// id of the element, unique within its page.
	id    string
	tag   string
	class string
	body  templ.Component
	// parts are fragments that body contains, such as the rows of a table. When only they change, only
	// they are sent.
	parts []*fragment

	html string // body, with absolute times
	mark string // hash of html
	// frame is a hash of what must be equal for parts to be swapped one by one: which they are, in
	// which order.
	frame string
}

// section returns a fragment that is a section of its page.
func section(id, class string, body templ.Component) *fragment {
	return &fragment{id: id, tag: "section", class: class, body: body}
}

// settle renders fragments as they are sent, and marks them.
func settle(ctx context.Context, fragments []*fragment) error {
	for _, f := range fragments {
		if err := settle(ctx, f.parts); err != nil {
			return err
		}
		var html bytes.Buffer
		if err := f.body.Render(ctx, &html); err != nil {
			return fmt.Errorf("render %s: %w", f.id, err)
		}
		f.html, f.mark = html.String(), markOf(html.String())
		var ids strings.Builder
		for _, p := range f.parts {
			ids.WriteString(p.id + "\x00")
		}
		f.frame = markOf(ids.String())
	}
	return nil
}

func markOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

// element is the fragment as part of a page, or of the fragment that contains it.
func (f *fragment) element() templ.Component {
	return templ.ComponentFunc(func(ctx context.Context, w io.Writer) error {
		_, err := fmt.Fprintf(w, `<%s id="%s" class="%s" data-mark="%s">`, f.tag, templ.EscapeString(f.id), templ.EscapeString(f.class), f.mark)
		if err != nil {
			return err
		}
		if _, counting := nowOf(ctx); counting {
			err = f.body.Render(ctx, w)
		} else {
			_, err = io.WriteString(w, f.html)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "</%s>", f.tag)
		return err
	})
}

// swap is one element's new content, as it is sent.
type swap struct {
	ID   string `json:"id"`
	Mark string `json:"mark"`
	HTML string `json:"html"`
}

// swaps returns what somebody who was sent `sent` (by ID: mark, or frame where there are parts) has
// to be sent to be current, and notes it there.
func swaps(fragments []*fragment, sent map[string]string) []swap {
	var all []swap
	for _, f := range fragments {
		want := f.mark
		if len(f.parts) > 0 {
			want = f.frame
		}
		switch {
		case sent[f.id] != want:
			all = append(all, swap{ID: f.id, Mark: f.mark, HTML: f.html})
			note(f, sent)
		case len(f.parts) > 0:
			all = append(all, swaps(f.parts, sent)...)
		}
	}
	return all
}

func note(f *fragment, sent map[string]string) {
	sent[f.id] = f.mark
	if len(f.parts) > 0 {
		sent[f.id] = f.frame
	}
	for _, p := range f.parts {
		note(p, sent)
	}
}
