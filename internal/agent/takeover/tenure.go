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
	// lockPoll is how often a lock that another holds is tried again.
	lockPoll = 20 * time.Millisecond
	// stopGrace is how long a previous agent may take to end by itself, and to be gone after it was
	// killed.
	stopGrace = 5 * time.Second
)

// ErrOccupied says that another agent is running on this host.
var ErrOccupied = errors.New("another agent is running on this host")

// residents are the tenures of the agents that run inside this process (a simulator has thousands),
// by their pid files. A signal would reach all of them at once.
var residents sync.Map

// Tenure is the right to be the agent of a host. The kernel gives it back when the process dies.
type Tenure struct {
	file *os.File
	path string
	stop func()
}

// Occupy makes the caller the agent of the host below root, or fails with ErrOccupied. stop is
// called when a takeover wants the caller, which runs inside the same process, to end; a process of
// its own gets SIGTERM.
func Occupy(root string, stop func()) (*Tenure, error) {
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
	tenure := &Tenure{file: file, path: path, stop: stop}
	residents.Store(path, tenure)
	return tenure, nil
}

// Release gives the right back. The file stays, because a lock on a file that was removed excludes
// nobody.
func (t *Tenure) Release() {
	// a machine that was restarted may have another agent, on another file of that name
	residents.CompareAndDelete(t.path, t)
	_ = t.file.Truncate(0)
	_ = t.file.Close()
}

func pidPath(root string) string {
	return filepath.Join(root, "run/ironherd-agent/agent.pid")
}

func writePID(file *os.File) error {
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// Evict stops the agent that runs on the host below root, if one does, and returns when it is gone:
// it asks it to end, and kills it when it does not. Only the process that really holds the pid
// file's lock is ever signalled.
func Evict(ctx context.Context, root string) error {
	path := pidPath(root)
	file, err := os.OpenFile(path, os.O_RDWR|syscall.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = file.Close() }()
	if free, err := tryLock(file); err != nil || free {
		return err
	}
	if resident, ok := residents.Load(path); ok {
		resident.(*Tenure).stop()
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

// signalHolder signals the process that is named in the pid file, if that process has this very
// file open. The process is pinned before it is looked at, so that the signal cannot reach another
// that got its number.
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

// hasOpen says whether the process has the file open. Processes are the kernel's own, so this is
// /proc below no root.
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

// waitFree waits until nobody holds the lock of the file. It says no when it still is held after
// the grace.
func waitFree(ctx context.Context, file *os.File) bool {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	return pollLock(ctx, file) == nil
}

// pollLock takes the lock of the file as soon as it is free.
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

// openLocked opens (or makes) a file and locks it; wait says whether to wait for another holder or
// to fail with ErrOccupied.
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
		return nil, ErrOccupied
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
