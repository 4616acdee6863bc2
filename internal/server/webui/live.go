package webui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// beatInterval is how often a stream says something when nothing changes; the script gives a
	// stream up after three of them.
	beatInterval = 10 * time.Second
	// writeTimeout is how long one event may take to be written; a viewer who does not read for so
	// long is let go.
	writeTimeout = 10 * time.Second
	// comeAgain is how long the script waits before it connects again, in milliseconds.
	comeAgain = 2000
)

// live serves a view as server-sent events:
//
//	hello {"now", "build"}           first; a page with another build loads itself anew
//	swap  {"now", "title", "swaps"}  elements with their new content, as soon as there is some; first all of them
//	beat  {"now"}                    every 10 s
//
// now is the server's clock in milliseconds since 1970.
func (s *site) live(w http.ResponseWriter, r *http.Request) {
	v, err := parseView(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	feed, leave, err := s.hub.join(r.Context(), v)
	if err != nil {
		w.Header().Set("Retry-After", "30")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer leave()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	out := stream{w: w, control: http.NewResponseController(w)}
	if out.send("hello", event{Build: s.assets.build}) != nil {
		return
	}
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	sent := map[string]string{}
	for {
		frame, changed := feed.now()
		if frame != nil {
			if all := swaps(frame.fragments, sent); len(all) > 0 {
				if out.send("swap", event{Title: frame.title, Swaps: all}) != nil {
					return
				}
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-feed.ended:
			return
		case <-changed:
		case <-beat.C:
			if out.send("beat", event{}) != nil {
				return
			}
		}
	}
}

type event struct {
	Now   int64  `json:"now"`
	Build string `json:"build,omitempty"`
	Title string `json:"title,omitempty"`
	Swaps []swap `json:"swaps,omitempty"`
}

type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// send writes one event and flushes it. Its error says only that the viewer is gone.
func (s stream) send(name string, e event) error {
	e.Now = time.Now().UnixMilli()
	var text bytes.Buffer
	fmt.Fprintf(&text, "event: %s\nretry: %d\ndata: ", name, comeAgain)
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e); err != nil { // ends the line
		return err
	}
	text.WriteByte('\n')
	// where it cannot be set, the server's own deadline holds
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := s.w.Write(text.Bytes()); err != nil {
		return err
	}
	return s.control.Flush()
}
