package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// Set in the environment of the test's own executable, these make it be the agent, for as long as
// the test lives.
const (
	rootVariable   = "IRONHERD_TEST_ROOT"
	parentVariable = "IRONHERD_TEST_PARENT"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(rootVariable); root != "" {
		os.Exit(beAgent(root))
	}
	goleak.VerifyTestMain(m)
}

// beAgent is cmd/ironherd-agent, ending with the test.
func beAgent(root string) int {
	parent, err := strconv.Atoi(os.Getenv(parentVariable))
	if err != nil {
		return 99
	}
	pinned, err := unix.PidfdOpen(parent, 0)
	if err != nil {
		return 99
	}
	go func() {
		for {
			if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(pinned), Events: unix.POLLIN}}, -1); n > 0 {
				os.Exit(98)
			}
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return Main(ctx, os.Args[1:], Env{Root: root, Version: "v1", Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
}

// command is the agent's program on the host.
func (h *host) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], args...)
	command.Env = []string{rootVariable + "=" + h.root, parentVariable + "=" + strconv.Itoa(os.Getpid())}
	return command
}

// takeOver runs a takeover as the control plane does, and sees to it that the agent ends with the
// test.
func (h *host) takeOver(t *testing.T, input []byte) (*agentv1.TakeoverResponse, int) {
	t.Helper()
	t.Cleanup(func() {
		if err := takeover.StopAgent(context.WithoutCancel(t.Context()), h.root); err != nil {
			t.Error(err)
		}
	})
	command := h.command(t, "takeover")
	command.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok || ok && exit.ExitCode() != exitFailed {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	response := new(agentv1.TakeoverResponse)
	if err := proto.Unmarshal(output, response); err != nil {
		t.Fatal(err)
	}
	return response, command.ProcessState.ExitCode()
}

// pid returns the process that is the agent of the host, 0 when there is none.
func (h *host) pid(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.root, "run/ironherd-agent/agent.pid"))
	if err != nil || len(data) == 0 {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// alive says whether the process is there and no zombie.
func alive(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(data), ") Z ")
}

// listen serves the plane on loopback and returns its endpoint.
func (p *plane) listen(tb testing.TB) string {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	go func() { _ = p.server.Serve(listener) }()
	return listener.Addr().String()
}

func encoded(tb testing.TB, message proto.Message) []byte {
	tb.Helper()
	data, err := proto.Marshal(message)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// until waits for something that another process does.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(time.Minute)
	for !is() {
		select {
		case <-deadline:
			t.Fatalf("%s: not in time", what)
		case <-ticker.C:
		}
	}
}

// The whole of it with real processes: takeover, heartbeats with the key that was answered,
// replacement by a newer takeover.
func TestTakeoverProcess(t *testing.T) {
	t.Parallel()
	h, authority := newHost(t), newAuthority(t)
	p := newPlane(t, authority)
	init := initMessage(5, authority)
	init.Endpoint, init.HeartbeatIntervalMs = p.listen(t), 100

	response, code := h.takeOver(t, encoded(t, init))
	success := response.GetSuccess()
	if code != exitDone || !proto.Equal(response.GetInit(), init) || success.GetAgentVersion() != "v1" || success.GetBootId() != "boot-1" {
		t.Fatalf("exit %d, response: %v", code, response)
	}
	first := h.pid(t)
	if !alive(first) {
		t.Fatal("no agent is left running")
	}
	until(t, "heartbeat", func() bool { return len(p.seen()) > 0 })
	if call := p.seen()[0]; !bytes.Equal(call.key, success.GetPublicKey()) || call.GetTakeoverGeneration() != 5 {
		t.Errorf("heartbeat: %v", call)
	}
	if info, err := os.Stat(filepath.Join(h.root, "var/lib/ironherd-agent/state")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("state: %v, %v", info, err)
	}

	for _, generation := range []int64{5, 4} {
		init := proto.CloneOf(init)
		init.TakeoverGeneration = generation
		response, code := h.takeOver(t, encoded(t, init))
		if code != exitFailed || !response.GetFailure().GetSuperseded() || !proto.Equal(response.GetInit(), init) {
			t.Errorf("generation %d again: %v", generation, response)
		}
	}
	if h.pid(t) != first || !alive(first) {
		t.Error("a refused takeover has touched the agent")
	}

	init.TakeoverGeneration = 6
	response, _ = h.takeOver(t, encoded(t, init))
	if response.GetSuccess() == nil || bytes.Equal(response.GetSuccess().GetPublicKey(), success.GetPublicKey()) {
		t.Errorf("response: %v", response)
	}
	until(t, "end of the first agent", func() bool { return !alive(first) })
	until(t, "heartbeat of the second agent", func() bool {
		calls := p.seen()
		return calls[len(calls)-1].GetTakeoverGeneration() == 6
	})
}

// Two at once: one after the other, whatever their order; the higher one remains.
func TestTakeoversAtOnce(t *testing.T) {
	t.Parallel()
	h, authority := newHost(t), newAuthority(t)
	responses := make([]*agentv1.TakeoverResponse, 4)
	var group sync.WaitGroup
	for i := range responses {
		group.Go(func() {
			for range 3 { // on a busy host, those before it may take longer than it waits
				responses[i], _ = h.takeOver(t, encoded(t, initMessage(int64(i+1), authority)))
				if !strings.Contains(responses[i].GetFailure().GetMessage(), "does not come to an end") {
					break
				}
			}
		})
	}
	group.Wait()
	for i, response := range responses {
		if response.GetSuccess() == nil && !response.GetFailure().GetSuperseded() {
			t.Errorf("generation %d: %v", i+1, response.GetFailure())
		}
	}
	last := responses[len(responses)-1].GetSuccess()
	key, err := takeover.PrivateKey(h.state(t))
	if last == nil || err != nil || !bytes.Equal(key.Public().(ed25519.PublicKey), last.GetPublicKey()) {
		t.Errorf("the state is not that of the last: %v", err)
	}
	if !alive(h.pid(t)) {
		t.Error("no agent is left running")
	}
}

func TestTakeoverOfGarbage(t *testing.T) {
	t.Parallel()
	h, authority := newHost(t), newAuthority(t)
	for name, input := range map[string][]byte{
		"nothing": nil, "garbage": []byte("\xff\xff garbage"), "endless": bytes.Repeat([]byte("x"), 1<<20),
		"no generation": encoded(t, initMessage(0, authority)),
	} {
		response, code := h.takeOver(t, input)
		if code != exitFailed || response.GetFailure().GetMessage() == "" || response.GetFailure().GetSuperseded() {
			t.Errorf("%s: %v", name, response)
		}
	}
	if _, err := os.Stat(filepath.Join(h.root, "var/lib/ironherd-agent/state")); err == nil {
		t.Error("a state was written")
	}
}

// An agent that does not listen to reason is killed.
func TestTakeoverOfAHungAgent(t *testing.T) {
	t.Parallel()
	h, authority := newHost(t), newAuthority(t)
	h.takeOver(t, encoded(t, initMessage(1, authority)))
	first := h.pid(t)
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if response, _ := h.takeOver(t, encoded(t, initMessage(2, authority))); response.GetSuccess() == nil {
		t.Fatal(response)
	}
	until(t, "end of the hung agent", func() bool { return !alive(first) })
}

// An agent that cannot start leaves nothing running, and its reason is told.
func TestTakeoverThatCannotStart(t *testing.T) {
	t.Parallel()
	h, authority := newHost(t), newAuthority(t)
	// Somebody else is the agent: a process that is not ours to kill, because it does not have the pid
	// file open.
	hostLock, err := takeover.LockHost(h.root, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer hostLock.Release()
	stranger := exec.CommandContext(t.Context(), "sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Wait() }()
	h.write(t, "run/ironherd-agent/agent.pid", strconv.Itoa(stranger.Process.Pid))
	command := h.command(t, "takeover")
	command.Stdin = bytes.NewReader(encoded(t, initMessage(1, authority)))
	output, _ := command.Output()
	response := new(agentv1.TakeoverResponse)
	if err := proto.Unmarshal(output, response); err != nil || !strings.Contains(response.GetFailure().GetMessage(), "not an agent of this host") {
		t.Errorf("%v, %v", response, err)
	}
	if !alive(stranger.Process.Pid) {
		t.Error("a stranger was killed")
	}
	_ = stranger.Process.Kill()
}

// The connection to the control plane breaks before the answer could be written: the next takeover
// puts it right.
func TestTakeoverWithoutListener(t *testing.T) {
	t.Parallel()
	h, authority := newHost(t), newAuthority(t)
	command := h.command(t, "takeover")
	command.Stdin = bytes.NewReader(encoded(t, initMessage(1, authority)))
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	command.Stdout = writer
	if err := command.Run(); err == nil {
		t.Error("the lost answer was not noticed")
	}
	_ = writer.Close()
	if response, _ := h.takeOver(t, encoded(t, initMessage(2, authority))); response.GetSuccess() == nil {
		t.Error(response)
	}
}

// Many agents in one process, as a simulator has them.
func TestTakeoverInside(t *testing.T) {
	t.Parallel()
	h, authority := newHost(t), newAuthority(t)
	p := newPlane(t, authority)
	endpoint := p.listen(t)
	ctx, powerOff := context.WithCancel(t.Context())
	var agents sync.WaitGroup
	rebooted := make(chan struct{}, 1)
	run := func(generation int64) *agentv1.TakeoverResponse {
		init := initMessage(generation, authority)
		init.Endpoint, init.HeartbeatIntervalMs = endpoint, 100
		var stdout bytes.Buffer
		code := Main(t.Context(), []string{"takeover"}, Env{
			Root: h.root, Version: "v2", Stdin: bytes.NewReader(encoded(t, init)), Stdout: &stdout, Stderr: io.Discard,
			Detach: func(run func(context.Context)) { agents.Go(func() { run(ctx) }) },
			Reboot: func(context.Context) error {
				rebooted <- struct{}{}
				return nil
			},
		})
		response := new(agentv1.TakeoverResponse)
		if err := proto.Unmarshal(stdout.Bytes(), response); err != nil || (code == exitDone) != (response.GetSuccess() != nil) {
			t.Errorf("exit %d, %v, %v", code, response, err)
		}
		return response
	}
	for generation := range int64(3) {
		response := run(generation + 1)
		if response.GetSuccess().GetAgentVersion() != "v2" {
			t.Fatal(response)
		}
		until(t, "heartbeat", func() bool {
			calls := p.seen()
			return len(calls) > 0 && bytes.Equal(calls[len(calls)-1].key, response.GetSuccess().GetPublicKey())
		})
	}
	if response := run(2); !response.GetFailure().GetSuperseded() {
		t.Error(response)
	}
	if log, err := os.ReadFile(logPath(h.root)); err != nil || strings.Count(string(log), "in charge") != 3 {
		t.Errorf("log: %s, %v", log, err)
	}
	powerOff()
	agents.Wait()
}

// A host that never runs what it was given gets a failure, and what comes late does not run.
func TestTakeoverInsideThatNeverStarts(t *testing.T) {
	t.Parallel()
	h, authority := newHost(t), newAuthority(t)
	var late func(context.Context)
	ctx, cancel := context.WithCancel(t.Context())
	var stdout bytes.Buffer
	Main(ctx, []string{"takeover"}, Env{
		Root: h.root, Stdin: bytes.NewReader(encoded(t, initMessage(1, authority))), Stdout: &stdout, Stderr: io.Discard,
		Detach: func(run func(context.Context)) {
			late = run
			cancel()
		},
	})
	response := new(agentv1.TakeoverResponse)
	if err := proto.Unmarshal(stdout.Bytes(), response); err != nil || response.GetFailure() == nil {
		t.Errorf("%v, %v", response, err)
	}
	late(t.Context()) // returns by itself
}

// What is given to a command is what it gets, however it is written.
func TestOptions(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-o", "json", "--after", "7"}, {"--o=json", "-after=7"}, {"-o=xml", "-o=json", "--after=7"}} {
		form, after := "text", 0
		err := parse("jump", args, map[string]func(string) error{"o": text(&form), "after": number(&after)})
		if err != nil || form != "json" || after != 7 {
			t.Errorf("%q: %q and %d, %v", args, form, after, err)
		}
	}
}

func TestMisuse(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{},
		{"nonsense"},
		{"run", "--nonsense"},
		{"version", "more"},
		{"inventory", "-o", "xml"},
		{"inventory", "-o"},
		{"run", "--ready-fd=three"},
		{"run", "--ready-fd", "3", "more"},
		{"leave", "--machine", "m", "--directory=/"},
		{"run", "--"},
	} {
		var stderr bytes.Buffer
		if code := Main(t.Context(), args, Env{Stdout: io.Discard, Stderr: &stderr}); code != exitUsage || stderr.Len() == 0 {
			t.Errorf("%q: exit %d, %s", args, code, stderr.String())
		}
	}
	var stdout bytes.Buffer
	if code := Main(t.Context(), []string{"inventory", "-o", "json"}, Env{Root: newHost(t).root, Stdout: &stdout}); code != exitDone ||
		!strings.Contains(stdout.String(), `"vda"`) {
		t.Errorf("exit %d, %s", code, stdout.String())
	}
	stdout.Reset()
	if code := Main(t.Context(), []string{"inventory"}, Env{Stdout: &stdout}); code != exitDone || !strings.Contains(stdout.String(), "kernel") {
		t.Errorf("exit %d, %s", code, stdout.String())
	}
	if code := Main(t.Context(), []string{"run"}, Env{Root: t.TempDir(), Stdout: io.Discard, Stderr: io.Discard}); code != exitFailed {
		t.Errorf("exit %d", code)
	}
}
