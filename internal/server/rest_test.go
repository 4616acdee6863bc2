package server_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/token"
)

// wire is a client of HTTP/2 that sends frame by frame. It notes what comes back on its streams.
type wire struct {
	*http2.Framer
	mu     sync.Mutex
	frames []string
	body   string
}

func newWire(t *testing.T, conn net.Conn) *wire {
	t.Helper()
	w := &wire{Framer: http2.NewFramer(conn, conn)}
	w.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	go w.read()
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wire) read() {
	for {
		frame, err := w.ReadFrame()
		if err != nil {
			return
		}
		w.mu.Lock()
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			w.frames = append(w.frames, "status "+f.PseudoValue("status"))
		case *http2.DataFrame:
			w.body += string(f.Data())
			if f.StreamEnded() {
				w.frames = append(w.frames, "end")
			}
		case *http2.RSTStreamFrame:
			w.frames = append(w.frames, "reset "+f.ErrCode.String())
		}
		w.mu.Unlock()
	}
}

// serveWire serves a client of HTTP/2 whose calls need that role, until end is called.
func serveWire(t *testing.T, needs token.Role) (w *wire, end func()) {
	t.Helper()
	d := newDoor(t, server.Limit{})
	handler := server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(server.Guard(map[string]token.Role{"/": needs}, rights))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- server.NewHTTP(handler, server.HTTPOptions{Logger: discard, Refusals: d.all}).Serve(ctx, d)
	}()
	here, there := net.Pipe()
	d.incoming <- remote{there, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}
	return newWire(t, here), func() {
		t.Helper()
		here.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// post sends the header of a request with a body of JSON.
func (w *wire) post(t *testing.T, stream uint32) {
	t.Helper()
	w.request(t, stream, false, [][2]string{{":method", "POST"}, {"content-type", "application/json"}})
}

// request sends the header of a request, which may be all of it.
func (w *wire) request(t *testing.T, stream uint32, whole bool, fields [][2]string) {
	t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSizeLimit(0)
	for _, f := range slices.Concat([][2]string{{":scheme", "http"}, {":path", "/fleet.v1.FleetService/X"}, {":authority", "x"}}, fields) {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	if err := w.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: whole}); err != nil {
		t.Fatal(err)
	}
}

// came returns what has come back when everybody waits.
func (w *wire) came() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.frames, ", ")
}

// TestAnAnswerOverHTTP2IsWhole: a stream that is reset before the whole request has come looks cut
// off to a caller such as curl. So the answer waits for the rest of a request that is refused, and
// of one that nobody reads, but neither for more than is usual nor for longer.
func TestAnAnswerOverHTTP2IsWhole(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		needs token.Role
		// sent: so many times 8 KiB, at once, and whether that ends the request.
		sent    int
		ended   bool
		waiting time.Duration
		want    string
	}{
		{"refused", token.Viewer, 1, true, 0, "status 401, end"},
		{"refused, and as long as requests are", token.Viewer, 31, true, 0, "status 401, end"},
		{"not read", token.None, 1, true, 0, "status 200, end"},
		{"too long", token.Viewer, 32, false, 0, "status 401, end, reset NO_ERROR"},
		{"too late", token.Viewer, 1, false, 2 * time.Second, "status 401, end, reset NO_ERROR"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, end := serveWire(t, test.needs)
				defer end()
				w.post(t, 1)
				if got := w.came(); got != "" {
					t.Errorf("before the body has come: %s", got)
				}
				for i := range test.sent {
					if err := w.WriteData(1, test.ended && i == test.sent-1, make([]byte, 8<<10)); err != nil {
						t.Fatal(err)
					}
					synctest.Wait() // the server may have to open its window
				}
				time.Sleep(test.waiting)
				if got := w.came(); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
				if says := "a token is needed"; test.needs != token.None && !strings.Contains(w.body, says) {
					t.Errorf("says %q, not %q", w.body, says)
				}
			})
		})
	}
}

// TestUnfinishedRequestsLeaveStreams: of the requests of a stranger that never end, few are waited
// for, so that others find streams on a connection that they share with it.
func TestUnfinishedRequestsLeaveStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, end := serveWire(t, token.Viewer)
		defer end()
		time.Sleep(time.Second)
		w.request(t, 1, true, [][2]string{{":method", "GET"}, {"authorization", bearer("viewer").Get("Authorization")}})
		if got := w.came(); got != "status 200, end" {
			t.Errorf("who is known is answered %s", got)
		}
		for i := range 20 {
			w.post(t, uint32(2*i+3))
		}
		if got := strings.Count(w.came(), "status 401"); got != 12 {
			t.Errorf("%d of 20 are answered at once, want 12", got)
		}
		time.Sleep(time.Second)
		if got := strings.Count(w.came(), "status 401"); got != 20 {
			t.Errorf("%d of 20 are answered a second later", got)
		}
	})
}
