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

// demoProcess is a demo in that directory, in a process of its own. It lives until it is killed.
func demoProcess(dir string) int {
	self, err := os.Executable()
	if err != nil {
		return 1
	}
	d, err := demo.Open(context.Background(), demo.Options{
		Machines: 1, RealAgents: 1, Seed: 1, Speed: 10, ImageSize: 4 << 20, AgentExecutable: self, PreloadAgent: true, Dir: dir, Version: "test",
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
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
	case <-time.After(time.Minute):
	}
	_ = killed.Process.Kill()
	_ = killed.Wait()
	if pid == "" {
		t.Fatalf("no agent has begun: %s", said.String())
	}
	select {
	case <-rest:
	case <-time.After(20 * time.Second):
		t.Errorf("agent %s goes on without its demo", strings.TrimSpace(pid))
		if number, err := strconv.Atoi(strings.TrimSpace(pid)); err == nil {
			_ = syscall.Kill(number, syscall.SIGKILL)
		}
	}
}
