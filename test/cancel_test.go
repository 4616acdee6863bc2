package test

import (
	"context"
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
	asked int
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
}

func (s *imageServer) serve(first int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first, s.asked = first, 0
}

func (s *imageServer) wasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked > 0
}

// TestCancelledInstallsAcrossKills calls installs off while their image is not there yet, and while
// it is being written, and kills the control plane as soon as that was acknowledged. The agents
// learn of it all the same, history says what was written, and each machine is installed once
// afterwards.
func TestCancelledInstallsAcrossKills(t *testing.T) {
	t.Parallel()
	ctx := bounded(t, 6*time.Minute)
	herd := &process.Herd{Ironherd: ironherd, Dir: shortDir(t), Machines: 2, WorldArgs: []string{"--real-agents", "1"}}
	startGated(ctx, t, herd)
	if err := herd.AwaitState(ctx, "available", herd.Machines, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	server := newImageServer(t, filepath.Join(herd.Dir, "world", "images", "demo.raw.zst"))
	digest := regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(herd.World().Stdout())
	install := []string{"--image", server.url, "--digest", digest, "--compression", "zstd"}
	for i, c := range []struct {
		first      int
		says, ends string
	}{
		{0, "called off before anything was written", "nothing was written"},
		{len(server.image) / 2, "what the disk holds is undefined", "was wiped and"},
	} {
		m := machines(ctx, t, herd)[i]
		server.serve(c.first)
		cli(ctx, t, herd, append([]string{"machine", "install", m.GetHostname()}, install...)...)
		for !server.wasAsked() && ctx.Err() == nil {
			letRun(ctx, 50*time.Millisecond)
		}
		if c.first > 0 {
			awaitWriting(ctx, t, herd, m.GetId())
		}
		cli(ctx, t, herd, "machine", "install", m.GetHostname(), "--cancel", "--reason", "the wrong image", "--yes")
		herd.KillPlane()
		if err := herd.StartPlane(ctx); err != nil {
			t.Fatal(err)
		}
		if err := herd.AwaitPlane(ctx); err != nil {
			t.Fatal(err)
		}
		if err := herd.AwaitState(ctx, "available", herd.Machines, func(line string) { t.Log(line) }); err != nil {
			t.Fatal(err)
		}
		if m = machines(ctx, t, herd)[i]; !strings.Contains(m.GetReason(), c.says) {
			t.Errorf("%s is %s: %s; want %q", m.GetHostname(), m.GetState(), m.GetReason(), c.says)
		}
		if told := historyOf(ctx, t, herd, m.GetId()); strings.Count(told, "install handed out") != 1 || !strings.Contains(told, "called off") || !strings.Contains(told, c.ends) {
			t.Errorf("history of %s, want one attempt, and %q:\n%s", m.GetHostname(), c.ends, told)
		}
	}
	server.serve(-1)
	for _, m := range machines(ctx, t, herd) {
		cli(ctx, t, herd, append([]string{"machine", "install", m.GetHostname(), "--erase"}, install...)...)
	}
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
