package agent

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

var residentFor = flag.Duration("resident", 0, "send a heartbeat each second for this long before the agent's memory is measured; 0: 50 heartbeats as fast as may be")

const (
	// sizeLimit is how many times the size of a program that only makes one call the agent may have.
	sizeLimit = 1.35
	// stampSize bounds the bytes that the commit adds to a program, which the Go command writes into
	// it unless GOFLAGS say otherwise: a few hundred in two sections, each of which may need a page
	// more.
	stampSize = 2 * 4096
	// residentLimit is how much memory an agent may hold, in KiB.
	residentLimit = 24 << 10
)

// built makes a program as `make agents` does, without the commit: not every checkout can tell it.
func built(t *testing.T, source string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(source))
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-tags=grpcnotrace,nethttpomithttp2", "-o", path, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", source, err, out)
	}
	return path
}

// The agent goes to every machine over SSH, and into its memory: it is hardly larger than what it
// is made of, gRPC and TLS.
func TestSize(t *testing.T) {
	t.Parallel()
	size := func(path string) float64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return float64(info.Size()) / (1 << 20)
	}
	agent, hello := size(built(t, "../../cmd/ironherd-agent")), size(built(t, "./testdata/hello"))
	agent += stampSize / float64(1<<20)
	t.Logf("the agent has %.1f MiB, one call over gRPC and TLS %.1f MiB: %.2f times", agent, hello, agent/hello)
	if agent > sizeLimit*hello {
		t.Errorf("the agent has %.2f times the size of a program that makes one call, and %.2f is the limit", agent/hello, sizeLimit)
	}
}

// An agent that only sends heartbeats holds little memory. It is the program that machines get, as
// a process of its own.
func TestResidentMemory(t *testing.T) {
	t.Parallel()
	heartbeats, interval := 50, minInterval
	if *residentFor > 0 {
		interval = time.Second
		heartbeats = int(*residentFor / interval)
	}
	h, authority := newHost(t), newAuthority(t)
	p := newPlane(t, authority)
	p.answer = func(int, *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
		return &agentv1.HeartbeatResponse{NextIntervalMs: interval.Milliseconds()}, nil
	}
	init := initMessage(1, authority)
	init.Endpoint, init.HeartbeatIntervalMs = p.listen(t), interval.Milliseconds()
	t.Cleanup(func() {
		if err := takeover.StopAgent(context.WithoutCancel(t.Context()), h.root); err != nil {
			t.Error(err)
		}
	})
	command := exec.CommandContext(t.Context(), built(t, "../../cmd/ironherd-agent"), "takeover")
	command.Env = []string{"IRONHERD_AGENT_ROOT=" + h.root}
	command.Stdin = strings.NewReader(string(encoded(t, init)))
	output, err := command.Output()
	response := new(agentv1.TakeoverResponse)
	if err != nil || proto.Unmarshal(output, response) != nil || response.GetSuccess() == nil {
		t.Fatalf("takeover: %v: %v", err, response)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for len(p.seen()) < heartbeats {
		select {
		case <-ticker.C:
		case <-t.Context().Done():
			return
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.pid(t)))
	if err != nil {
		t.Fatal(err)
	}
	var resident, most int
	for line := range strings.SplitSeq(string(status), "\n") {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &resident)
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &most)
	}
	t.Logf("after %d heartbeats the agent holds %.1f MiB, at most %.1f MiB so far", len(p.seen()), float64(resident)/1024, float64(most)/1024)
	if resident == 0 || resident > residentLimit {
		t.Errorf("the agent holds %d KiB, and %d are the limit", resident, residentLimit)
	}
}
