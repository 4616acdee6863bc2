package pid1

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// Every watchdog is started once, when its driver has made its device, and all of them are fed. The
// device without a number is another name of the first one, and is used where it is the only one.
func TestWatchdogs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		put := func(name string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w := new(Watchdogs)
		start := func(want ...string) {
			t.Helper()
			got, err := w.Start(dir)
			for i := range want {
				want[i] = filepath.Join(dir, want[i])
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("started %q, %v, want %q", got, err, want)
			}
		}
		defer w.Stop()
		fed := func(name string, want int64) {
			t.Helper()
			synctest.Wait()
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil || info.Size() != want {
				t.Errorf("%s was fed %d times, %v, want %d", name, info.Size(), err, want)
			}
		}
		w.Feed() // there is none
		start()
		put("watchdog")
		put("watchdog0")
		start("watchdog0")
		start()
		w.Feed()
		put("watchdog1")
		start("watchdog1")
		w.Feed() // too early
		fed("watchdog0", 1)
		fed("watchdog1", 0)
		time.Sleep(watchdogEvery)
		w.Feed()
		fed("watchdog0", 2)
		fed("watchdog1", 1)
		fed("watchdog", 0)
	})
}

// A driver that numbers none has the name of the first one, and the next driver's are numbered
// from one.
func TestWatchdogWithoutANumber(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := []string{filepath.Join(dir, "watchdog"), filepath.Join(dir, "watchdog1")}
	for _, path := range want {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := new(Watchdogs)
	if got, err := w.Start(dir); err != nil || !slices.Equal(got, want) {
		t.Errorf("started %q, %v", got, err)
	}
	w.Stop()
}

// A watchdog that is stopped is told that this is meant, is fed no more, and can be started again.
func TestWatchdogStopped(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "watchdog0")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := new(Watchdogs)
	w.Stop() // there is none
	for range 2 {
		if got, err := w.Start(filepath.Dir(path)); err != nil || !slices.Equal(got, []string{path}) {
			t.Errorf("started %q, %v", got, err)
		}
		w.Stop()
		w.Feed()
		if said, err := os.ReadFile(path); err != nil || string(said) != "V" {
			t.Errorf("it was told %q, %v", said, err)
		}
	}
}

// A watchdog that is stopped gets all the time that its driver takes before: one that knows no way
// out goes on, and must not reset a machine whose firmware takes minutes.
func TestWatchdogStoppedHasTime(t *testing.T) {
	t.Parallel()
	for longest, want := range map[int32]int32{10_000: 600, 600: 600, 127: 120, 60: 60, 0: 0} {
		path := filepath.Join(t.TempDir(), "watchdog0")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		now, told := int32(0), ""
		w := &Watchdogs{set: func(file *os.File, seconds int32) bool {
			if seconds > longest {
				return false
			}
			said, err := os.ReadFile(file.Name())
			if err != nil {
				t.Error(err)
			}
			now, told = seconds, string(said)
			return true
		}}
		if _, err := w.Start(filepath.Dir(path)); err != nil || now != min(longest, 60) {
			t.Errorf("at most %d s: it has %d s, %v", longest, now, err)
		}
		w.Stop()
		if now != want || told != "" {
			t.Errorf("at most %d s: it has %d s, want %d, after it was told %q", longest, now, want, told)
		}
	}
}

// A watchdog that somebody else has does not keep the others from being started.
func TestWatchdogThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "watchdog0"), 0o700); err != nil { // it cannot be written to
		t.Fatal(err)
	}
	second := filepath.Join(dir, "watchdog1")
	if err := os.WriteFile(second, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := new(Watchdogs)
	got, err := w.Start(dir)
	w.Stop()
	if err == nil || !slices.Equal(got, []string{second}) {
		t.Errorf("started %q, %v", got, err)
	}
}

// A sign of life that comes while watchdogs are stopped does not follow the byte that stops one: it
// would go on.
func TestWatchdogFedWhileStopped(t *testing.T) {
	t.Parallel()
	for range 40 {
		dir := t.TempDir()
		for n := range 100 { // the more there are, the longer it takes
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("watchdog", n)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w := new(Watchdogs)
		paths, err := w.Start(dir)
		if err != nil {
			t.Fatal(err)
		}
		var feeding sync.WaitGroup
		feeding.Go(w.Feed)
		w.Stop()
		feeding.Wait()
		for _, path := range paths {
			if said, err := os.ReadFile(path); err != nil || string(said) != "V" && string(said) != "\x01V" {
				t.Fatalf("%s was told %q, %v", path, said, err)
			}
		}
	}
}

// A watchdog whose driver takes no sign of life keeps those of the others, and whoever gives them,
// from nothing. A pipe that is full imitates it.
func TestWatchdogThatHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var pipes []int
	for n := range 2 {
		path := filepath.Join(dir, fmt.Sprint("watchdog", n))
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		pipe, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(pipe) }()
		pipes = append(pipes, pipe)
	}
	some := make([]byte, 1<<10)
	all := func(do func(int, []byte) (int, error)) {
		for n := 1; n > 0; {
			n, _ = do(pipes[0], some)
		}
	}
	all(unix.Write)
	w := new(Watchdogs)
	if paths, err := w.Start(dir); err != nil || len(paths) != 2 {
		t.Fatalf("started %q, %v", paths, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Feed()
	}()
	const patience = 10_000 // ms
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(pipes[1]), Events: unix.POLLIN}}, patience); n != 1 {
		t.Errorf("the other one is not fed: %v", err)
	}
	select {
	case <-done:
	case <-time.After(patience * time.Millisecond):
		t.Error("who feeds them hangs")
	}
	all(unix.Read) // it goes on
	<-done
	w.Stop()
}

// A watchdog whose driver does not take that it is stopped keeps neither the others from being
// stopped nor the machine from being restarted. It is stopped when its driver goes on.
func TestWatchdogThatHangsWhenStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for _, name := range []string{"watchdog0", "watchdog1"} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		hung := make(chan struct{})
		w := &Watchdogs{set: func(file *os.File, seconds int32) bool {
			if seconds > watchdogLimit && filepath.Base(file.Name()) == "watchdog0" {
				<-hung
			}
			return true
		}}
		if _, err := w.Start(dir); err != nil {
			t.Fatal(err)
		}
		told := func(name, want string) {
			t.Helper()
			if said, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(said) != want {
				t.Errorf("%s was told %q, %v", name, said, err)
			}
		}
		begun := time.Now()
		w.Stop()
		if took := time.Since(begun); took > watchdogStopping || w.Running() {
			t.Errorf("stopped after %s; one is on: %t", took, w.Running())
		}
		told("watchdog0", "")
		told("watchdog1", "V")
		close(hung)
		synctest.Wait()
		told("watchdog0", "V")
	})
}
