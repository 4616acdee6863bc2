package live

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// beatInterval is how often a stream says something when nothing changes. The script gives a
	// stream up after three of them.
	beatInterval = 10 * time.Second
	// writeTimeout is how long a viewer may take to read one event before it is let go.
	writeTimeout = 10 * time.Second
	// reconnectAfter is how long a browser waits before it connects again, in milliseconds.
	reconnectAfter = 2000
)

// Serve sends a view to one viewer as server-sent events, until the viewer leaves:
//
//	hello {"now", "build"}           first; a page with another build loads itself anew
//	swap  {"now", "title", "swaps"}  elements with their new content; the first has all of them
//	beat  {"now"}                    every 10 s
//
// now is the server's clock in milliseconds since 1970, and build is the caller's mark of the
// page's own files. A viewer beyond the bounds gets 503; so does one whose stream has ended for
// another caller, when its page opens it again. The stream ends with the beat at which the viewer
// may not read any more; whoever opened it is let in, or not, before.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, v View, build string) {
	seat, leave, err := h.join(r.Context(), v, h.options.callerOf(r))
	if err != nil {
		w.Header().Set("Retry-After", "30")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer leave()
	header := w.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no")
	out := stream{w: w, control: http.NewResponseController(w)}
	if out.send("hello", Event{Build: build}) != nil {
		return
	}
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	sent := map[string]string{}
	for {
		seen, changed := seat.feed.now()
		if seen != nil {
			if all := swaps(seen.Fragments, sent); len(all) > 0 {
				if out.send("swap", Event{Title: seen.Title, Swaps: all}) != nil {
					return
				}
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-seat.taken:
			return
		case <-seat.feed.ended:
			return
		case <-changed:
		case <-beat.C:
			if h.options.Allowed != nil && !h.options.Allowed(r) {
				return
			}
			if out.send("beat", Event{}) != nil {
				return
			}
		}
	}
}

// Event is the data of one server-sent event.
type Event struct {
	Now   int64  `json:"now"`
	Build string `json:"build,omitempty"`
	Title string `json:"title,omitempty"`
	Swaps []Swap `json:"swaps,omitempty"`
}

type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// send writes one event and flushes it. An error says only that the viewer is gone.
func (s stream) send(name string, e Event) error {
	e.Now = time.Now().UnixMilli()
	var text bytes.Buffer
	fmt.Fprintf(&text, "event: %s\nretry: %d\ndata: ", name, reconnectAfter)
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e); err != nil { // ends the line
		return err
	}
	text.WriteByte('\n')
	// Where the deadline cannot be set, the server's own holds.
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := s.w.Write(text.Bytes()); err != nil {
		return err
	}
	if err := s.control.Flush(); err != nil {
		return err
	}
	// In HTTP/2 a deadline ends the stream also when there is nothing to write.
	_ = s.control.SetWriteDeadline(time.Time{})
	return nil
}
