package webui

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// inMemory is a transport that hands requests to a handler, so that Connect works within a synctest
// bubble.
type inMemory struct{ http.Handler }

func (h inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

func inBubble(s *stubFleet) fleetv1connect.FleetServiceClient {
	mux := http.NewServeMux()
	mux.Handle(fleetv1connect.NewFleetServiceHandler(s))
	return fleetv1connect.NewFleetServiceClient(&http.Client{Transport: inMemory{mux}}, "http://fleet.invalid")
}

// viewer is a browser at the other end of a stream.
type viewer struct {
	leave func()

	mu     sync.Mutex
	status int
	header http.Header
	text   bytes.Buffer
	read   int
}

func (v *viewer) Header() http.Header { return v.header }
func (v *viewer) Flush()              {}

func (v *viewer) WriteHeader(status int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.status = status
}

func (v *viewer) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.text.Write(p)
}

type received struct {
	name string
	live.Event
}

// ids are the elements that an event swaps.
func (r received) ids() []string {
	var all []string
	for _, s := range r.Swaps {
		all = append(all, s.ID)
	}
	return all
}

// events returns what has come since the last call.
func (v *viewer) events(t *testing.T) []received {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	text := v.text.String()[v.read:]
	v.read = v.text.Len()
	var all []received
	for block := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		if block == "" {
			continue
		}
		lines := strings.Split(block, "\n")
		if len(lines) != 3 || !strings.HasPrefix(lines[1], "retry: ") {
			t.Fatalf("not an event: %q", block)
		}
		r := received{name: strings.TrimPrefix(lines[0], "event: ")}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(lines[2], "data: ")), &r.Event); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// swapped returns the elements that were swapped since the last call, in order.
func (v *viewer) swapped(t *testing.T) []string {
	t.Helper()
	all := []string{}
	for _, e := range v.events(t) {
		all = append(all, e.ids()...)
	}
	return all
}

// watch opens a stream within the bubble.
func watch(t *testing.T, site http.Handler, target string) *viewer {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	v := &viewer{leave: leave, header: http.Header{}}
	go site.ServeHTTP(v, httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil))
	synctest.Wait()
	return v
}

// pass lets fake time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func want(t *testing.T, what string, got, wanted []string) {
	t.Helper()
	if !slices.Equal(got, wanted) {
		t.Errorf("%s: %v was sent, want %v", what, got, wanted)
	}
}

// TestLiveOverview: first everything, then only what changed, and nothing while nothing changes.
func TestLiveOverview(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := smallFleet()
		site := New(inBubble(stub), Options{})
		v := watch(t, site, "/live/")
		defer v.leave()
		events := v.events(t)
		if len(events) != 2 || events[0].name != "hello" || events[0].Build == "" || events[0].Now != time.Now().UnixMilli() {
			t.Fatalf("it began with %+v", events)
		}
		want(t, "first", events[1].ids(), []string{"notice", "fleet", "discrepancies", "processes", "phases", "providers", "sessions"})
		if got := v.header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
			t.Errorf("content type %q", got)
		}
		pass(5 * time.Second)
		want(t, "nothing changed", v.swapped(t), []string{})
		stub.change(func() { stub.summary.States[0].Machines++ })
		pass(time.Second)
		want(t, "a count changed", v.swapped(t), []string{"fleet"})
		stub.change(func() { stub.sessions[0].Deadline = timestamppb.Now(); stub.discrepancies = nil })
		pass(time.Second)
		want(t, "two things changed", v.swapped(t), []string{"fleet", "discrepancies", "sessions"})
	})
}

// TestLiveMachines: of the table only the rows that changed are sent, as long as they are the same
// rows, and what is around them is the same.
func TestLiveMachines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := smallFleet()
		v := watch(t, New(inBubble(stub), Options{}), "/live/machines?state=creating")
		defer v.leave()
		want(t, "first", v.swapped(t), []string{"notice", "filter", "machines"})
		stub.change(func() { stub.machines[1].State = "provisioning" })
		pass(time.Second)
		events := v.events(t)
		if len(events) != 1 || len(events[0].Swaps) != 1 || events[0].Swaps[0].ID != "m-"+second || !strings.Contains(events[0].Swaps[0].HTML, "provisioning") {
			t.Fatalf("a row changed: got %+v", events)
		}
		stub.change(func() { stub.next = "" })
		pass(time.Second)
		want(t, "no page comes after it any more", v.swapped(t), []string{"machines"})
		stub.change(func() { stub.machines = stub.machines[:1] })
		pass(time.Second)
		want(t, "a row went away", v.swapped(t), []string{"filter", "machines"})
	})
}

// TestLiveOutage: an outage brings a banner and leaves the view alone; its end takes the banner
// away.
func TestLiveOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := smallFleet()
		v := watch(t, New(inBubble(stub), Options{}), "/live/machines/herd-0001")
		defer v.leave()
		want(t, "first", v.swapped(t), []string{"notice", "machine", "decisions", "facts", "commands", "history", "hardware"})
		stub.change(func() { stub.fail = down })
		pass(5 * time.Second)
		events := v.events(t)
		if len(events) != 1 || len(events[0].Swaps) != 1 || !strings.Contains(events[0].Swaps[0].HTML, "connection refused") {
			t.Fatalf("down: got %+v", events)
		}
		stub.change(func() { stub.fail = nil })
		pass(time.Second)
		events = v.events(t)
		if len(events) != 1 || len(events[0].Swaps) != 1 || strings.TrimSpace(events[0].Swaps[0].HTML) != "" {
			t.Fatalf("up again: got %+v", events)
		}
	})
}

// TestOnePoller: what is asked does not depend on how many watch, and nobody asks when nobody
// watches.
func TestOnePoller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := smallFleet()
		site := New(inBubble(stub), Options{})
		var all []*viewer
		for i := range 60 {
			target := "/live/"
			if i%2 == 1 {
				target = "/live/machines"
			}
			all = append(all, watch(t, site, target))
		}
		pass(30 * time.Second)
		for _, method := range []string{"GetSummary", "ListSessions", "ListMachines", "ListProviders"} {
			if n := stub.count(method); n < 29 || n > 31 {
				t.Errorf("%s was asked %d times in 30 s", method, n)
			}
		}
		if n := stub.count("phases"); n < 10 || n > 16 {
			t.Errorf("phases were asked for %d times in 30 s", n)
		}
		for _, v := range all {
			v.leave()
		}
		pass(time.Second)
		before := stub.count("GetSummary")
		pass(time.Minute)
		if n := stub.count("GetSummary"); n != before {
			t.Errorf("nobody watches, and the summary was asked for %d times", n-before)
		}
	})
}

// slowSessions is a client whose answer about sessions takes half a second.
type slowSessions struct {
	fleetv1connect.FleetServiceClient
	hangs bool
}

func (s slowSessions) ListSessions(ctx context.Context, r *fleetv1.ListSessionsRequest) (*fleetv1.ListSessionsResponse, error) {
	if s.hangs {
		_, _ = s.FleetServiceClient.ListSessions(ctx, r)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(500 * time.Millisecond)
	return s.FleetServiceClient.ListSessions(ctx, r)
}

// TestCostlySessions: what is looked for in all machines is asked for the more rarely the longer
// that takes.
func TestCostlySessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := smallFleet()
		v := watch(t, New(slowSessions{FleetServiceClient: inBubble(stub)}, Options{}), "/live/")
		defer v.leave()
		pass(35 * time.Second)
		if n := stub.count("ListSessions"); n < 3 || n > 4 {
			t.Errorf("sessions were asked for %d times in 35 s", n)
		}
		if n := stub.count("GetSummary"); n < 30 {
			t.Errorf("the summary was asked for %d times in 35 s", n)
		}
	})
}

// TestSessionsThatTimeOut: a question that fails is paced as one that is answered.
func TestSessionsThatTimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := smallFleet()
		v := watch(t, New(slowSessions{FleetServiceClient: inBubble(stub), hangs: true}, Options{}), "/live/")
		defer v.leave()
		pass(2 * time.Minute)
		if n := stub.count("ListSessions"); n < 3 || n > 5 {
			t.Errorf("sessions were asked for %d times in two minutes", n)
		}
	})
}

// TestFirstLeaves: a view goes on for the others when the viewer for whom it began has left.
func TestFirstLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := smallFleet()
		site := New(inBubble(stub), Options{})
		founder := watch(t, site, "/live/")
		other := watch(t, site, "/live/")
		defer other.leave()
		founder.leave()
		pass(time.Second)
		other.events(t)
		stub.change(func() { stub.summary.Machines++ })
		pass(time.Second)
		want(t, "the other", other.swapped(t), []string{"fleet"})
	})
}

// TestBeat: a stream that has nothing to say says so every ten seconds.
func TestBeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := watch(t, New(inBubble(smallFleet()), Options{}), "/live/")
		defer v.leave()
		v.events(t)
		pass(35 * time.Second)
		events := v.events(t)
		if len(events) != 3 {
			t.Errorf("%d events in 35 s", len(events))
		}
		for _, e := range events {
			if e.name != "beat" || e.Now == 0 {
				t.Errorf("got %+v", e)
			}
		}
	})
}

// TestQuietStreamOverHTTP2: a stream is not ended between two beats. The deadline of a write ends a
// stream of HTTP/2 though nothing is being written.
func TestQuietStreamOverHTTP2(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		conns := make(chan net.Conn, 1)
		conns <- theirs
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		server := &http.Server{Handler: New(inBubble(smallFleet()), Options{}), Protocols: &protocols, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener{conns}) }()
		transport := &http.Transport{Protocols: &protocols, DialContext: func(context.Context, string, string) (net.Conn, error) { return ours, nil }}
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://page.invalid/live/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "text/event-stream")
		answer, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		beats := 0
		for lines := bufio.NewScanner(answer.Body); beats < 5; {
			if !lines.Scan() {
				t.Errorf("the stream ended after %d beats: %v", beats, lines.Err())
				break
			}
			if lines.Text() == "event: beat" {
				beats++
			}
		}
		leave()
		_ = answer.Body.Close()
		transport.CloseIdleConnections()
		close(conns)
		_ = server.Close()
	})
}

// listener hands out connections.
type listener struct{ conns <-chan net.Conn }

func (l listener) Accept() (net.Conn, error) {
	if conn, open := <-l.conns; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (l listener) Close() error   { return nil }
func (l listener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// TestCrowd: beyond the bound a viewer is told to come back, and a place that is left is free.
func TestCrowd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		site := New(inBubble(smallFleet()), Options{Interval: time.Hour})
		var all []*viewer
		for i := range live.MaxViews {
			all = append(all, watch(t, site, fmt.Sprintf("/live/machines/herd-%d", i)))
		}
		if v := watch(t, site, "/live/"); v.status != http.StatusServiceUnavailable || v.header.Get("Retry-After") == "" {
			t.Errorf("a view too many: got %d, %v", v.status, v.header)
		}
		if v := watch(t, site, "/live/machines/herd-0"); v.status != 0 {
			t.Errorf("a second viewer of one view: got %d", v.status)
		} else {
			v.leave()
		}
		for _, v := range all {
			v.leave()
		}
		synctest.Wait()
		v := watch(t, site, "/live/")
		if v.status != 0 || len(v.events(t)) != 2 {
			t.Errorf("everybody left: got %d", v.status)
		}
		v.leave()
	})
}
