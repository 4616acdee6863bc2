package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
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
	p.command.Env = environment(os.Environ())
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

// environment leaves out what is meant for tests, because a program refuses variables that it does
// not know.
func environment(all []string) []string {
	return slices.DeleteFunc(all, func(entry string) bool {
		return strings.HasPrefix(entry, "IRONHERD_TEST_") || strings.HasPrefix(entry, "IRONHERD_TORTURE_")
	})
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

// Usage is what a process has used so far.
type Usage struct {
	// CPU is its processor time, in user mode and in the kernel's.
	CPU time.Duration
	// Peak is the most memory that it had resident at a time, in bytes.
	Peak int64
}

// ticks is how often a second /proc/PID/stat counts: USER_HZ, which is 100 on every architecture
// that we build for (proc_pid_stat(5)).
const ticks = 100

// Usage reads what the process has used. It must not have been waited for.
func (p *Process) Usage() (u Usage, err error) {
	dir := fmt.Sprintf("/proc/%d/", p.Pid())
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return u, fmt.Errorf("usage of %s: %w", p.name, err)
	}
	// the name in parentheses may hold anything; utime and stime are the 12th and 13th field after it
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return u, fmt.Errorf("usage of %s: %sstat has %d fields", p.name, dir, len(fields))
	}
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, fmt.Errorf("usage of %s: %w", p.name, err)
		}
		u.CPU += time.Duration(n) * time.Second / ticks
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return u, fmt.Errorf("usage of %s: %w", p.name, err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscanf(after, "%d kB", &u.Peak); err != nil {
		return u, fmt.Errorf("usage of %s: VmHWM of %sstatus: %w", p.name, dir, err)
	}
	u.Peak <<= 10
	return u, nil
}

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
