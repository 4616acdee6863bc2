package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one program that was started.
type Process struct {
	name    string
	command *exec.Cmd
	stdout  *Log
	stderr  *Log
	ended   chan struct{}
	err     error
}

// Start starts a program. The program outlives ctx, so that it can be stopped in order when a test
// has ended, but it does not outlive this process.
func Start(ctx context.Context, path string, args ...string) (*Process, error) {
	p := &Process{
		name: "ironherd " + strings.Join(args, " "), command: exec.CommandContext(context.WithoutCancel(ctx), path, args...),
		stdout: &Log{}, stderr: &Log{}, ended: make(chan struct{}),
	}
	p.command.Stdout, p.command.Stderr = p.stdout, p.stderr
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.command.WaitDelay = time.Second // its children may hold its output open
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Await waits for a line of standard output or standard error that begins with the prefix, and
// returns it. It returns an error when the program ends first.
func (p *Process) Await(ctx context.Context, prefix string) (string, error) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		for line := range strings.SplitSeq(p.stdout.String()+"\n"+p.stderr.String(), "\n") {
			if strings.HasPrefix(line, prefix) {
				return line, nil
			}
		}
		select {
		case <-p.ended:
			return "", fmt.Errorf("%s ended (%w) before it said %q: %s", p.name, p.err, prefix, p.stderr)
		case <-ctx.Done():
			return "", fmt.Errorf("%s has not said %q: %s", p.name, prefix, p.stderr)
		case <-ticker.C:
		}
	}
}

// Pid is the process's ID.
func (p *Process) Pid() int { return p.command.Process.Pid }

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Signal sends a signal. It returns an error when the process is gone.
func (p *Process) Signal(s os.Signal) error {
	if err := p.command.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// Kill kills the process with SIGKILL, and returns when it is gone.
func (p *Process) Kill() {
	_ = p.command.Process.Kill() // it may have ended already
	<-p.ended
}

// Stop sends SIGTERM and waits until the process is gone. It returns nil if the exit code is 0.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s did not stop: %s", p.name, p.stderr)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", p.name, p.err, p.stderr)
	}
	return nil
}

// Stdout returns the end of what the process has written to standard output.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr is Stdout for standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// Log keeps the end of what is written to it. Safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

const logSize = 64 << 10

// Write never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept.Write(p)
	if over := l.kept.Len() - logSize; over > 0 {
		l.kept.Next(over)
	}
	return len(p), nil
}

// String returns what is kept.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.kept.String())
}
