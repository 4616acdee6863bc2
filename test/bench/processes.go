package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ironherd/ironherd/test/pgserver"
)

// ownCPU is the processor time of this process, and of those that it started and that ended:
// pgbench is a client, too.
func ownCPU() (sum time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err == nil { // it cannot fail for oneself
			sum += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		}
	}
	return sum
}

// used is the processor time of a server, user and system.
type used struct {
	// backends are the processes that serve clients, and their parallel workers.
	backends time.Duration
	// background are all others: checkpointer, background writer, walwriter, autovacuum, and the
	// server's first process.
	background time.Duration
}

// process is a process of the server.
type process struct {
	backend bool
	// first is the processor time that it had had when the meter started; last, when it was last
	// looked at.
	first, last time.Duration
	lives       bool
}

// looks is how often the meter looks which processes there are.
const looks = 100 * time.Millisecond

// meter says what a server's processes use from startMeter to stop. A process that ends meanwhile
// leaves its processor time to the server's first process, without its name. So the meter looks at
// all of them now and then. What it has not seen counts as background: a worker of autovacuum may
// end between two looks, and clients keep their connections.
type meter struct {
	postmaster, except int
	processes          map[int]*process
	// left is the processor time that ended processes left before the start.
	left time.Duration
	over chan struct{}
	done chan error
}

// startMeter starts one. The process except is not counted.
func startMeter(postmaster, except int) (m *meter, err error) {
	m = &meter{
		postmaster: postmaster, except: except, processes: make(map[int]*process),
		over: make(chan struct{}), done: make(chan error, 1),
	}
	if _, m.left, err = ticksOf(postmaster); err != nil {
		return nil, err
	}
	if err := m.look(); err != nil {
		return nil, err
	}
	for _, p := range m.processes {
		p.first = p.last
	}
	go func() {
		ticker := time.NewTicker(looks)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if err := m.look(); err != nil {
					m.done <- err
					return
				}
			case <-m.over:
				m.done <- m.look()
				return
			}
		}
	}()
	return m, nil
}

// stop ends the meter and returns what was used since its start.
func (m *meter) stop() (u used, err error) {
	close(m.over)
	if err := <-m.done; err != nil {
		return u, err
	}
	_, left, err := ticksOf(m.postmaster)
	if err != nil {
		return u, err
	}
	return m.sum(left - m.left), nil
}

// sum divides what the processes used, where those that ended left so much in all.
func (m *meter) sum(left time.Duration) (u used) {
	for pid, p := range m.processes {
		switch {
		case pid == m.except:
		case p.backend:
			u.backends += p.last - p.first
		default:
			u.background += p.last - p.first
		}
		if !p.lives {
			left -= p.last
		}
	}
	u.background += max(left, 0)
	return u
}

// look updates what is known of the processes.
func (m *meter) look() error {
	pids, err := childrenOf(m.postmaster)
	if err != nil {
		return err
	}
	for _, p := range m.processes {
		p.lives = false
	}
	for _, pid := range append(pids, m.postmaster) {
		title, err := titleOf(pid)
		if err != nil {
			continue // it has just ended
		}
		used, err := timeOf(pid)
		if err != nil {
			continue
		}
		p := m.processes[pid]
		if p == nil {
			p = new(process)
			m.processes[pid] = p
		}
		p.backend, p.last, p.lives = isBackend(title), used, true
	}
	return nil
}

// isBackend says whether a process with that title serves a client: "postgres: ironherd test1
// 127.0.0.1(40404) idle". Titles of others begin with what they are: "postgres: checkpointer".
func isBackend(title string) bool {
	return strings.HasPrefix(title, "postgres: "+pgserver.User+" ") || strings.HasPrefix(title, "postgres: parallel worker")
}

// titleOf is what a process calls itself.
func titleOf(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimRight(string(text), "\x00 "), err
}

// childrenOf returns the children of a process that has one thread.
func childrenOf(pid int) (children []int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", pid))
	if err != nil {
		return nil, err
	}
	for _, f := range strings.Fields(string(text)) {
		child, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		children = append(children, child)
	}
	return children, nil
}

// timeOf is the processor time of a process that has one thread, user and system. The first field
// of schedstat has it in nanoseconds, where stat has hundredths of a second.
func timeOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		own, _, err := ticksOf(pid) // a kernel without CONFIG_SCHED_INFO
		return own, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err
}

// ticksPerSecond is what /proc/pid/stat counts processor time in: USER_HZ, which is 100 on every
// Linux that Go runs on.
const ticksPerSecond = 100

// ticksOf is the processor time of a process itself, and of its children that ended.
func ticksOf(pid int) (own, children time.Duration, err error) {
	list, err := stat(pid)
	if err != nil {
		return 0, 0, err
	}
	var times [4]time.Duration
	for i, f := range list[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		times[i] = time.Duration(n) * time.Second / ticksPerSecond
	}
	return times[0] + times[1], times[2] + times[3], nil
}

// stat returns the fields of /proc/pid/stat from the third (the state) on: see proc(5).
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(text), ") ")
	list := strings.Fields(rest)
	if !ok || len(list) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat cannot be understood: %q", pid, text)
	}
	return list, nil
}

func parentOf(pid int) (int, error) {
	list, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(list[1])
}
