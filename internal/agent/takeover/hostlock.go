package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockPoll is the time between two attempts to lock a file that another process has locked.
	lockPoll = 20 * time.Millisecond
	// stopGrace is how long a previous agent may take to end by itself. After it was killed, it has as
	// long again to be gone.
	stopGrace = 5 * time.Second
)

// ErrAgentRunning says that another agent runs on this host.
var ErrAgentRunning = errors.New("another agent is running on this host")

// inProcess maps pid files to the locks of the agents that run inside this process. A simulator has
// thousands of them, and a signal would reach all at once.
var inProcess sync.Map

// HostLock is held by the one agent that runs on a host. It is a lock on the agent's pid file, so
// the kernel releases it when the process dies.
type HostLock struct {
	file *os.File
	path string
	stop func()
}

// LockHost makes the caller the agent of the host below root, or fails with ErrAgentRunning.
//
// A takeover that runs inside the same process calls stop to end this agent. A takeover in another
// process sends SIGTERM instead.
func LockHost(root string, stop func()) (*HostLock, error) {
	path := pidPath(root)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the agent's runtime directory: %w", err)
	}
	file, err := openLocked(path, false)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(file.Truncate(0), writePID(file)); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	hostLock := &HostLock{file: file, path: path, stop: stop}
	inProcess.Store(path, hostLock)
	return hostLock, nil
}

// Release unlocks the host. The file stays, because a lock on a file that was removed excludes
// nobody.
func (t *HostLock) Release() {
	// a machine that was restarted may have another agent, on another file of that name
	inProcess.CompareAndDelete(t.path, t)
	_ = t.file.Truncate(0)
	unlock(t.file)
}

// unlock unlocks a file and closes it. Closing alone would leave it locked for as long as a process
// that is being started has a copy of it, which is until that runs its own program.
func unlock(file *os.File) {
	_ = unix.Flock(int(file.Fd()), unix.LOCK_UN)
	_ = file.Close()
}

func pidPath(root string) string {
	return filepath.Join(root, "run/ironherd-agent/agent.pid")
}

func writePID(file *os.File) error {
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// StopAgent stops the agent that runs on the host below root, if one does, and returns when it is
// gone. It asks the agent to end, and kills it if it does not. It signals only the process that
// really has the pid file open.
func StopAgent(ctx context.Context, root string) error {
	path := pidPath(root)
	file, err := os.OpenFile(path, os.O_RDWR|syscall.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unlock(file)
	if free, err := tryLock(file); err != nil || free {
		return err
	}
	if resident, ok := inProcess.Load(path); ok {
		resident.(*HostLock).stop()
		if !waitFree(ctx, file) {
			return errors.New("the previous agent does not end")
		}
		return nil
	}
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := signalHolder(file, signal); err != nil {
			if free, lockErr := tryLock(file); lockErr == nil && free {
				return nil
			}
			return fmt.Errorf("stop the previous agent: %w", err)
		}
		if waitFree(ctx, file) {
			return nil
		}
	}
	return errors.New("the previous agent does not end, although it was killed")
}

// signalHolder signals the process that the pid file names, if that process has this very file
// open. It opens a pidfd first, so that the signal cannot reach another process that got the same
// number.
func signalHolder(file *os.File, signal unix.Signal) error {
	buffer := make([]byte, 32)
	n, _ := file.ReadAt(buffer, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(buffer[:n])))
	if err != nil || pid <= 1 {
		return errors.New("its pid file holds no process ID")
	}
	if pid == os.Getpid() {
		return errors.New("its pid file names this process")
	}
	pinned, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.3
		if !hasOpen(pid, file) {
			return fmt.Errorf("process %d is not an agent of this host", pid)
		}
		return unix.Kill(pid, signal)
	}
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(pinned) }()
	if !hasOpen(pid, file) {
		return fmt.Errorf("process %d is not an agent of this host", pid)
	}
	return unix.PidfdSendSignal(pinned, signal, nil, 0)
}

// hasOpen reports whether the process has the file open. It reads the real /proc and not the one
// below a simulated root, because processes are the kernel's.
func hasOpen(pid int, file *os.File) bool {
	want, err := file.Stat()
	if err != nil {
		return false
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if got, err := os.Stat(filepath.Join(dir, entry.Name())); err == nil && os.SameFile(want, got) {
			return true
		}
	}
	return false
}

// waitFree waits until nobody holds the lock of the file, for at most stopGrace, and reports
// whether it is free.
func waitFree(ctx context.Context, file *os.File) bool {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	return pollLock(ctx, file) == nil
}

// pollLock locks the file as soon as it is free.
func pollLock(ctx context.Context, file *os.File) error {
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		if free, err := tryLock(file); err != nil || free {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// openLocked opens or creates a file and locks it. If another holds the lock, openLocked waits for
// it where wait is set, and else fails with ErrAgentRunning.
func openLocked(path string, wait bool) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		err = unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		return file, nil
	}
	_ = file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrAgentRunning
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// tryLock locks the file if it is free.
func tryLock(file *os.File) (bool, error) {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return err == nil, err
}
