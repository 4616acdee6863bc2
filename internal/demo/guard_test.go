package demo_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/demo"
)

// ownDir stands for a directory of the demo's own.
const ownDir = "-"

// demoProcess is a demo in that directory, in a process of its own. It says where the directory is,
// and lives until it is killed.
func demoProcess(dir string) int {
	self, err := os.Executable()
	if err != nil {
		return 1
	}
	o := demo.Options{
		Machines: 1, RealAgents: 1, Seed: 1, Speed: 10, ImageSize: 4 << 20, AgentExecutable: self, PreloadAgent: true, Dir: dir, Version: "test",
	}
	if dir == ownDir {
		o.Dir, o.RealAgents = "", 0
	}
	d, err := demo.Open(context.Background(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(d.Dir())
	fmt.Fprintln(os.Stderr, d.Run(context.Background(), func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}))
	return 1
}

// agentProcess plays an agent that has a session of its own, as one that was put in charge. It says
// its number into the named pipe of the demo's directory, and keeps that open as long as it lives.
func agentProcess(args []string) int {
	self, err := os.Executable()
	if err != nil || len(args) == 0 {
		return 1
	}
	switch args[0] {
	case "takeover":
		cmd := exec.Command(self, "run")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if cmd.Start() != nil {
			return 1
		}
	case "run":
		alive, err := os.OpenFile(filepath.Join(os.Getenv("IRONHERD_AGENT_ROOT"), "../../../alive"), os.O_WRONLY, 0)
		if err != nil {
			return 1
		}
		fmt.Fprintln(alive, os.Getpid())
		<-time.After(time.Hour) // it is killed before
	}
	return 0
}

// TestAgentsEndWithAKilledDemo: who interrupts a demo twice kills it, and its agents end with it.
func TestAgentsEndWithAKilledDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "alive")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	killed := exec.CommandContext(t.Context(), self)
	killed.Env, killed.Stderr, killed.WaitDelay = append(os.Environ(), "IRONHERD_DEMO_TEST="+dir), &said, time.Second
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	first, rest := make(chan string, 1), make(chan string, 1)
	go func() {
		agents, err := os.Open(pipe) // waits for the first agent
		if err != nil {
			return
		}
		defer agents.Close()
		lines := bufio.NewReader(agents)
		line, _ := lines.ReadString('\n')
		first <- line
		more, _ := io.ReadAll(lines) // ends with the last agent
		rest <- string(more)
	}()
	var pid string
	select {
	case pid = <-first:
	case <-time.After(3 * time.Minute):
	}
	_ = killed.Process.Kill()
	_ = killed.Wait()
	if pid == "" {
		t.Fatalf("no agent has begun: %s", said.String())
	}
	select {
	case <-rest:
	case <-time.After(time.Minute):
		t.Errorf("agent %s goes on without its demo", strings.TrimSpace(pid))
		if number, err := strconv.Atoi(strings.TrimSpace(pid)); err == nil {
			_ = syscall.Kill(number, syscall.SIGKILL)
		}
	}
}

// TestAKilledDemoIsTidiedUp by the next one, and one that runs is not.
func TestAKilledDemoIsTidiedUp(t *testing.T) {
	parent := t.TempDir()
	t.Setenv("TMPDIR", parent)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	other := exec.CommandContext(t.Context(), self)
	other.Env, other.Stderr, other.WaitDelay = append(os.Environ(), "IRONHERD_DEMO_TEST="+ownDir), &said, time.Second
	stdout, err := other.StdoutPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	dir := strings.TrimSpace(line)
	if err != nil || filepath.Dir(dir) != parent {
		_ = other.Process.Kill()
		_ = other.Wait()
		t.Fatalf("the demo does not begin in %s: %q, %v: %s", parent, line, err, said.String())
	}
	o := options(t)
	next := func() {
		t.Helper()
		d, err := demo.Open(t.Context(), o, slog.New(slog.DiscardHandler))
		if err == nil {
			err = d.Close()
		}
		if err != nil {
			t.Error(err)
		}
	}
	next()
	if _, err := os.Stat(filepath.Join(dir, "herd")); err != nil {
		t.Errorf("a running demo lost its files: %v", err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	next()
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
