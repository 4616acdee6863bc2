package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/test/process"
)

// imageServer serves one image: a part of it, after which nothing comes any more, or all of it.
type imageServer struct {
	url   string
	image []byte

	mu    sync.Mutex
	first int // how many bytes come; -1: all
	// asked counts the clients since the last change of what is served, left those that have gone.
	asked, left int
}

func newImageServer(t *testing.T, file string) *imageServer {
	t.Helper()
	image, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &imageServer{url: "http://" + listener.Addr().String() + "/image", image: image, first: -1}
	server := &http.Server{Handler: s}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// ServeHTTP implements http.Handler.
func (s *imageServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	first := s.first
	s.asked++
	s.mu.Unlock()
	w.Header().Set("Content-Length", strconv.Itoa(len(s.image)))
	if first < 0 {
		_, _ = w.Write(s.image)
		return
	}
	_, _ = w.Write(s.image[:first])
	if first > 0 {
		w.(http.Flusher).Flush()
	}
	<-r.Context().Done()
	s.mu.Lock()
	s.left++
	s.mu.Unlock()
}

func (s *imageServer) serve(first int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first, s.asked, s.left = first, 0, 0
}

func (s *imageServer) wasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked > 0
}

// wasLeft reports whether the client that asked has gone.
func (s *imageServer) wasLeft() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left > 0
}

// The points at which the control plane is killed while an install is called off.
const (
	// killUndelivered: that is durable, and the agent was not told.
	killUndelivered killPoint = "undelivered"
	// killTold: the agent has ended the install, and its report is on its way.
	killTold killPoint = "told"
	// killReported: the report is durable, and the agent does not know.
	killReported killPoint = "reported"
	// killOver: the agent knows.
	killOver killPoint = "over"
)

// TestCancelledInstallsAcrossKills calls installs off while their image is not there yet, and while
// it is being written, and kills the control plane at each step of that. The agent learns of it and
// is heard all the same, history says once what was written, nothing is handed out again, and the
// machine is installed once afterwards.
func TestCancelledInstallsAcrossKills(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 6*time.Minute)
	front, err := process.NewBalancer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(front.Close)
	herd := &process.Herd{
		Ironherd: ironherd, Dir: shortDir(t), Machines: 1, WorldArgs: []string{"--real-agents", "1"},
		PlaneArgs: []string{"--set", "agent_api.endpoint=" + front.Address(), "--set", "policy.heartbeat_interval=500ms"},
	}
	startGated(ctx, t, herd)
	front.Forward(herd.Endpoint())
	if err := herd.AwaitState(ctx, "available", 1, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	server := newImageServer(t, filepath.Join(herd.Dir, "world", "images", "demo.raw.zst"))
	digest := regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(herd.World().Stdout())
	install := []string{"--image", server.url, "--digest", digest, "--compression", "zstd", "--erase"}
	half := len(server.image) / 2
	says := "called off before anything was written"
	for i, c := range []struct {
		point killPoint
		first int
	}{
		{killUndelivered, 0},
		{killTold, 0},
		{killReported, 0},
		{killOver, 0},
		{killUndelivered, half},
		{killTold, half},
		{killReported, half},
		{killOver, half},
		{killTold, 0}, // which leaves undefined what the one before left so
	} {
		ends := "nothing was written"
		if c.first > 0 {
			says, ends = "what the disk holds is undefined", "was wiped and"
		}
		m := machines(ctx, t, herd)[0]
		server.serve(c.first)
		cli(ctx, t, herd, append([]string{"machine", "install", m.GetHostname()}, install...)...)
		for !server.wasAsked() && ctx.Err() == nil {
			letRun(ctx, 50*time.Millisecond)
		}
		if c.first > 0 {
			awaitWriting(ctx, t, herd, m.GetId())
		}
		killCancelled(ctx, t, herd, front, server, c.point)
		if err := herd.AwaitState(ctx, "available", 1, func(line string) { t.Log(line) }); err != nil {
			t.Fatal(err)
		}
		letRun(ctx, 2*time.Second) // some heartbeats
		generation := fmt.Sprintf("install generation %d", i+1)
		told := historyOf(ctx, t, herd, m.GetId())
		for _, event := range []string{"install handed out: ", "install cancelled: ", "install failed: "} {
			if strings.Count(told, event+generation) != 1 {
				t.Errorf("%s: not once %q:\n%s", c.point, event+generation, told)
			}
		}
		if !strings.Contains(told, "install failed: "+generation+", attempt 1: called off") || !strings.Contains(lastOf(told, generation), ends) {
			t.Errorf("%s: history of %s, want %q:\n%s", c.point, generation, ends, told)
		}
		if m = machines(ctx, t, herd)[0]; m.GetState() != "available" || !strings.Contains(m.GetReason(), says) {
			t.Errorf("%s: the machine is %s: %s; want %q", c.point, m.GetState(), m.GetReason(), says)
		}
	}
	server.serve(-1)
	cli(ctx, t, herd, append([]string{"machine", "install", machines(ctx, t, herd)[0].GetHostname()}, install...)...)
	if err := herd.AwaitInstalled(ctx, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	status, err := herd.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if status.InstallsVerified != herd.Machines || status.InstalledMoreThanOnce != 0 || status.InstallsRejected != 0 {
		t.Errorf("the world says: %+v", status)
	}
}

// killCancelled calls the install of the only machine off, kills the control plane at the point,
// and starts the next one.
func killCancelled(ctx context.Context, t *testing.T, herd *process.Herd, front *process.Balancer, server *imageServer, point killPoint) {
	t.Helper()
	m := machines(ctx, t, herd)[0]
	ended := func() bool {
		return strings.Contains(historyOf(ctx, t, herd, m.GetId()), fmt.Sprintf("install failed: install generation %d,", m.GetInstallGeneration()))
	}
	until := func(what string, so func() bool) {
		t.Helper()
		for !so() {
			if letRun(ctx, 20*time.Millisecond); ctx.Err() != nil {
				t.Fatalf("%s: it never came that %s", point, what)
			}
		}
	}
	front.Hold(process.ToServer)
	cli(ctx, t, herd, "machine", "install", m.GetHostname(), "--cancel", "--reason", "the wrong image", "--yes")
	if point == killTold || point == killReported {
		turn := 0
		until("the agent is told", func() bool {
			if turn%50 == 0 { // which is answered in between
				front.Turn()
			}
			turn++
			return server.wasLeft()
		})
	}
	switch point {
	case killReported:
		front.Hold(process.ToClient)
		front.Let(process.ToServer)
		until("its report is durable", ended)
	case killOver:
		front.Let(process.ToServer)
		until("its report is durable", ended)
		durable := time.Now()
		// The answer to one heartbeat comes before the next one, and the report was in one.
		until("the agent goes on", func() bool {
			return machines(ctx, t, herd)[0].GetLastSeenAt().AsTime().After(durable)
		})
	default:
		if server.wasLeft() != (point == killTold) || ended() {
			t.Fatalf("%s: the point is missed", point)
		}
	}
	herd.KillPlane()
	front.Drop(process.ToServer)
	front.Drop(process.ToClient)
	startPlane(ctx, t, herd)
}

// lastOf is the last line that has the word.
func lastOf(text, word string) (last string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			last = line
		}
	}
	return last
}

func cli(ctx context.Context, t *testing.T, herd *process.Herd, args ...string) {
	t.Helper()
	if code, stdout, stderr := herd.CLI(ctx, args...); code != 0 {
		t.Fatalf("%s: exit code %d: %s%s", strings.Join(args, " "), code, stdout, stderr)
	}
}

// awaitWriting returns when the agent of a machine says that it writes.
func awaitWriting(ctx context.Context, t *testing.T, herd *process.Herd, machine string) {
	t.Helper()
	for ctx.Err() == nil {
		m, err := herd.Client().GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: machine})
		if err != nil {
			t.Fatal(err)
		}
		if m.GetInstallProgress().GetBytesDone() > 0 {
			return
		}
		letRun(ctx, 100*time.Millisecond)
	}
	t.Fatal("nothing is written")
}

// historyOf is all that history tells of a machine, a line for each event.
func historyOf(ctx context.Context, t *testing.T, herd *process.Herd, machine string) string {
	t.Helper()
	history, err := herd.Client().ListHistory(ctx, &fleetv1.ListHistoryRequest{Machine: machine, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	for _, e := range history.GetEntries() {
		told.WriteString(e.GetEvent() + ": " + e.GetDetail() + "\n")
	}
	return told.String()
}
