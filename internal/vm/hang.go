package vm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Hang stops the machine's processors and nothing else, as a kernel that hangs does: clocks run on,
// and so does a watchdog. Unlike Pause it stops QEMU's own threads. The processors go on when
// release is called, which must be before anything is asked of the machine that concerns them: a
// reset waits for them.
func (m *Machine) Hang() (release func() error, err error) {
	threads, err := m.processors()
	if err != nil {
		return nil, fmt.Errorf("machine %s: find its processors: %w", m.config.Name, err)
	}
	stopped, end, ended := make(chan error), make(chan struct{}), make(chan error, 1)
	go func() {
		lockThread() // only the thread that traces another may let it go; it ends with this function
		stopped <- trace(threads)
		<-end
		ended <- letGo(threads)
	}()
	release = sync.OnceValue(func() error {
		close(end)
		return <-ended
	})
	if err := <-stopped; err != nil {
		_ = release() // of those that were stopped
		return nil, fmt.Errorf("machine %s: stop its processors: %w", m.config.Name, err)
	}
	return release, nil
}

// processors returns the IDs of the threads that run the guest's code.
func (m *Machine) processors() (threads []int, err error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", m.command.Process.Pid))
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		name, err := os.ReadFile(filepath.Clean(path))
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(string(name), "CPU ") { // as in "CPU 0/TCG"
			continue
		}
		thread, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		threads = append(threads, thread)
	}
	if len(threads) == 0 {
		return nil, errors.New("QEMU has no thread of a processor")
	}
	return threads, nil
}

// trace stops threads of another process.
func trace(threads []int) error {
	for _, thread := range threads {
		if err := unix.PtraceAttach(thread); err != nil {
			return err
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(thread, &status, unix.WALL, nil); err != nil {
			return err
		}
	}
	return nil
}

// letGo has traced threads go on.
func letGo(threads []int) (err error) {
	for _, thread := range threads {
		err = errors.Join(err, unix.PtraceDetach(thread))
	}
	return err
}
