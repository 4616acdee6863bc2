package main

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestIsBackend(t *testing.T) {
	t.Parallel()
	for title, want := range map[string]bool{
		"postgres: ironherd test1 127.0.0.1(40404) idle":           true,
		"postgres: ironherd test1 127.0.0.1(40404) UPDATE waiting": true,
		"postgres: parallel worker for PID 12":                     true,
		"postgres: autovacuum worker test1":                        false,
		"postgres: checkpointer performing checkpoint":             false,
		"postgres: walwriter":                                      false,
		"/usr/lib/postgresql/15/bin/postgres -D /tmp/data":         false,
	} {
		if isBackend(title) != want {
			t.Errorf("%q: backend %t", title, !want)
		}
	}
}

// TestMeterSum: who measures counts nowhere; what was used before the start does not count; what
// ended unseen is background, and what ended and was seen is not counted twice.
func TestMeterSum(t *testing.T) {
	t.Parallel()
	m := &meter{except: 4, processes: map[int]*process{
		1: {backend: true, first: 100, last: 130, lives: true},
		2: {backend: true, first: 10, last: 15},   // ended
		3: {first: 1000, last: 1007, lives: true}, // checkpointer
		4: {backend: true, last: 99, lives: true}, // the connection that measures
	}}
	// 15 of the backend that ended, 2 of its last moments, and 3 of a worker that nobody saw
	if u := m.sum(20); u != (used{backends: 35, background: 12}) {
		t.Fatalf("%+v", u)
	}
	// hundredths of a second may say less than nanoseconds
	if u := m.sum(0); u != (used{backends: 35, background: 7}) {
		t.Fatalf("%+v", u)
	}
}

func TestTimeOfAProcess(t *testing.T) {
	t.Parallel()
	before, _, err := ticksOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// It works, so that there is something. What children used, as those of other tests, is not in it.
	self := func() time.Duration {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			t.Fatal(err)
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	for began := self(); self()-began < 50*time.Millisecond; {
	}
	after, _, err := ticksOf(os.Getpid())
	if err != nil || after-before < 30*time.Millisecond {
		t.Fatalf("%s, %v", after-before, err)
	}
}

// TestOwnCPU: what a client that was started apart used counts when it has ended.
func TestOwnCPU(t *testing.T) {
	t.Parallel()
	before := ownCPU()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; times").Output()
	if err != nil {
		t.Fatal(err)
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		t.Fatal(err)
	}
	children := ownCPU() - time.Duration(self.Utime.Nano()+self.Stime.Nano())
	if ownCPU() <= before || children < 10*time.Millisecond {
		t.Fatalf("children used %s, and the shell says %s", children, out)
	}
}
