package live

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"

	"github.com/a-h/templ"
)

// Fragment is an element of a page that is swapped on its own. It does not change once the view
// that it belongs to is loaded.
type Fragment struct {
	// ID of the element, unique within its page.
	ID    string
	Tag   string
	Class string
	Body  templ.Component
	// Parts are fragments that Body contains, by Element, such as the rows of a table. When only they
	// change, only they are sent.
	Parts []*Fragment

	html string // Body with absolute times
	mark string // hash of html
	// frame is a hash of the body with the ID of each part in its place. While it stays, parts can be
	// swapped one by one.
	frame string
}

// Section returns a fragment that is a section of its page.
func Section(id, class string, body templ.Component) *Fragment {
	return &Fragment{ID: id, Tag: "section", Class: class, Body: body}
}

// HTML returns the content as it is sent: with absolute times.
func (f *Fragment) HTML() string { return f.html }

// Mark returns the hash of the content as it is sent.
func (f *Fragment) Mark() string { return f.mark }

// renderAll renders fragments as they are sent, and marks them.
func renderAll(ctx context.Context, fragments []*Fragment) error {
	for _, f := range fragments {
		if err := renderAll(ctx, f.Parts); err != nil {
			return err
		}
		var html bytes.Buffer
		if err := f.Body.Render(ctx, &html); err != nil {
			return fmt.Errorf("render %s: %w", f.ID, err)
		}
		f.html, f.mark = html.String(), MarkOf(html.String())
		if len(f.Parts) == 0 {
			continue
		}
		var frame bytes.Buffer
		if err := f.Body.Render(context.WithValue(ctx, framing{}, true), &frame); err != nil {
			return fmt.Errorf("render %s: %w", f.ID, err)
		}
		f.frame = MarkOf(frame.String())
	}
	return nil
}

// framing is the key of contexts under which an element writes its ID only.
type framing struct{}

// MarkOf returns a short hash that tells contents apart.
func MarkOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

// Element is the fragment within a page, or within the fragment that contains it.
func (f *Fragment) Element() templ.Component {
	return templ.ComponentFunc(func(ctx context.Context, w io.Writer) error {
		if ctx.Value(framing{}) != nil {
			_, err := fmt.Fprintf(w, "%q", f.ID)
			return err
		}
		_, err := fmt.Fprintf(w, `<%s id="%s" class="%s" data-mark="%s">`, f.Tag, templ.EscapeString(f.ID), templ.EscapeString(f.Class), f.mark)
		if err != nil {
			return err
		}
		if _, counting := Now(ctx); counting {
			err = f.Body.Render(ctx, w)
		} else {
			_, err = io.WriteString(w, f.html)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "</%s>", f.Tag)
		return err
	})
}

// Swap is one element's new content, as it is sent.
type Swap struct {
	ID   string `json:"id"`
	Mark string `json:"mark"`
	HTML string `json:"html"`
}

// swaps returns what a viewer has to be sent to be current, and records it in sent. sent has, by
// ID, the mark of what the viewer has, or the frame where there are parts.
func swaps(fragments []*Fragment, sent map[string]string) []Swap {
	var all []Swap
	for _, f := range fragments {
		want := f.mark
		if len(f.Parts) > 0 {
			want = f.frame
		}
		switch {
		case sent[f.ID] != want:
			all = append(all, Swap{ID: f.ID, Mark: f.mark, HTML: f.html})
			record(f, sent)
		case len(f.Parts) > 0:
			all = append(all, swaps(f.Parts, sent)...)
		}
	}
	return all
}

// record notes that a fragment was sent with all of its parts.
func record(f *Fragment, sent map[string]string) {
	sent[f.ID] = f.mark
	if len(f.Parts) > 0 {
		sent[f.ID] = f.frame
	}
	for _, p := range f.Parts {
		record(p, sent)
	}
}
