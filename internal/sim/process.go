package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

const (
	// rootVariable tells a real process which machine it is on. It is also how the processes of a
	// machine are found.
	rootVariable = "IRONHERD_AGENT_ROOT"
	searchPath   = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// resetButton is the file that restarts a machine when "b" is written to it.
	resetButton = "proc/sysrq-trigger"
	// pipeGrace is how long a program's children may hold its output open after it has ended.
	pipeGrace = 2 * time.Second
	// killLimit is how long processes may take to die.
	killLimit = 10 * time.Second
)

var signals = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "ALRM": syscall.SIGALRM, "PIPE": syscall.SIGPIPE, "ABRT": syscall.SIGABRT,
}

func (h *host) command(file string, args ...string) *exec.Cmd {
	// An agent outlives the world when the world is killed; executeProcess kills it with its machine.
	cmd := exec.Command(file, args...) //nolint:noctx // see above
	cmd.Dir = filepath.Join(h.root, "root")
	cmd.Env = []string{rootVariable + "=" + h.root, searchPath}
	cmd.WaitDelay = pipeGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// startCommand starts a command, and tries again while the file is busy: a file that was just
// written may still be open for writing in a process that is being forked at this moment.
func startCommand(ctx context.Context, make func() *exec.Cmd) (*exec.Cmd, error) {
	for wait := time.Millisecond; ; wait *= 2 {
		cmd := make()
		err := cmd.Start()
		if !errors.Is(err, syscall.ETXTBSY) || wait > time.Second {
			return cmd, err
		}
		if !until(ctx, time.Now().Add(wait)) {
			return nil, context.Cause(ctx)
		}
	}
}

// executeProcess runs a program as a process.
func (h *host) executeProcess(ctx context.Context, p *period, program sshhost.Program) sshhost.Status {
	var stdin io.WriteCloser
	cmd, err := startCommand(ctx, func() *exec.Cmd {
		cmd := h.command(program.File, program.Args...)
		cmd.Stdout, cmd.Stderr = program.Stdout, program.Stderr
		// Not cmd.Stdin, because Wait would then wait for a client that does not end its input.
		if stdin != nil {
			_ = stdin.Close()
		}
		stdin, _ = cmd.StdinPipe() // fails only when Stdin is set
		return cmd
	})
	if err != nil {
		_, _ = fmt.Fprintf(program.Stderr, "sh: 1: %s: %v\n", program.Path, err)
		return sshhost.Status{Code: 126}
	}
	p.tasks.Go(func() {
		// ends with the channel, which is closed when the command has ended
		_, _ = io.Copy(stdin, program.Stdin)
		_ = stdin.Close()
	})
	ended := make(chan struct{})
	p.tasks.Go(func() {
		defer close(ended)
		_ = cmd.Wait() // the state says how it ended
	})
	dead := ctx.Done()
	for {
		select {
		case <-ended:
			return h.ended(p, program, cmd.ProcessState)
		case name := <-program.Signals:
			if signal, ok := signals[name]; ok {
				_ = syscall.Kill(-cmd.Process.Pid, signal)
			}
		case <-dead:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			dead = nil
		}
	}
}

// ended returns how a process has ended, and records an agent that has taken its machine over.
func (h *host) ended(p *period, program sshhost.Program, state *os.ProcessState) sshhost.Status {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		name := "KILL"
		for n, signal := range signals {
			if signal == status.Signal() {
				name = n
			}
		}
		return sshhost.Status{Signal: name}
	}
	if state.ExitCode() == 0 && len(program.Args) > 0 && program.Args[0] == "takeover" {
		if err := h.update(p, func(r *hostRecord) { r.Agent = program.Path }); err != nil && !errors.Is(err, errOver) {
			h.world.cfg.Logger.Error("agent was not recorded", slog.String("machine", h.snapshot().Hostname), slog.Any("err", err))
		}
	}
	return sshhost.Status{Code: state.ExitCode()}
}

// resumeProcess restarts an agent, unless its process has outlived the world.
func (h *host) resumeProcess(ctx context.Context, p *period, path string, logger *slog.Logger) {
	if len(processesOf(func(root string) bool { return root == h.root })) > 0 {
		return
	}
	cmd, err := startCommand(ctx, func() *exec.Cmd { return h.command(filepath.Join(h.root, path), "run") })
	if err != nil {
		logger.Warn("agent was not resumed", slog.Any("err", err))
		return
	}
	p.tasks.Go(func() { _ = cmd.Wait() }) // ends with the machine at the latest
}

// killProcesses kills every process of the machine, and returns when none is left.
func (h *host) killProcesses() {
	if h.real {
		h.world.killAll(func(root string) bool { return root == h.root })
	}
}

// killLeftovers kills processes that a killed world has left behind: those of machines that are
// off, are booting or are gone.
func (w *World) killLeftovers(hosts []*host) {
	running := map[string]bool{}
	for _, h := range hosts {
		if r := h.snapshot(); r.On && r.System != systemBooting {
			running[h.root] = true
		}
	}
	below := filepath.Join(w.cfg.Dir, "hosts") + string(filepath.Separator)
	w.killAll(func(root string) bool { return strings.HasPrefix(root, below) && !running[root] })
}

// killAll kills the processes of the machines whose root is wanted, and returns when none is left.
func (w *World) killAll(want func(root string) bool) {
	for deadline := time.Now().Add(killLimit); ; {
		found := processesOf(want)
		if len(found) == 0 {
			return
		}
		if time.Now().After(deadline) {
			w.cfg.Logger.Error("processes of machines do not die", slog.Any("processes", found))
			return
		}
		for _, pid := range found {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		timer := time.NewTimer(2 * time.Millisecond)
		<-timer.C
	}
}

// processesOf returns the living processes of the machines whose root is wanted.
func processesOf(want func(root string) bool) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		environment, err := os.ReadFile("/proc/" + entry.Name() + "/environ")
		if err != nil {
			continue
		}
		for variable := range bytes.SplitSeq(environment, []byte{0}) {
			if root, ok := bytes.CutPrefix(variable, []byte(rootVariable+"=")); ok && want(string(root)) {
				found = append(found, pid)
			}
		}
	}
	return found
}

// makeResetButton creates the named pipe that restarts the machine.
func (h *host) makeResetButton() error {
	return unix.Mkfifo(filepath.Join(h.root, resetButton), 0o600)
}

// watchResetButton restarts the machine when "b" is written to it.
func (h *host) watchResetButton(ctx context.Context, p *period, logger *slog.Logger) {
	// Opened for writing too, so that it does not end with each writer.
	button, err := os.OpenFile(filepath.Join(h.root, resetButton), os.O_RDWR, 0)
	if err != nil {
		logger.Warn("machine cannot restart itself", slog.Any("err", err))
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = button.Close() })
	p.tasks.Go(func() {
		defer stop()
		buffer := make([]byte, 64)
		for {
			n, err := button.Read(buffer)
			if err != nil {
				return
			}
			if bytes.IndexByte(buffer[:n], 'b') >= 0 {
				if err := h.resetIn(p); err != nil && !errors.Is(err, errOver) {
					logger.Error("machine did not restart", slog.Any("err", err))
				}
			}
		}
	})
}
