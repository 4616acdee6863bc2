package pid1

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// watchdogLimit is how long the hardware waits for a sign of life, and watchdogEvery how often
	// it gets one.
	watchdogLimit = 60
	watchdogEvery = 10 * time.Second
	// watchdogLongest is how long one waits that cannot be stopped, where its driver can count so far;
	// else as many steps less as it takes.
	watchdogLongest = 600
	watchdogStep    = 30
	// watchdogStopping is how long the drivers may take to stop them.
	watchdogStopping = 10 * time.Second
	// watchdogSetTimeout is WDIOC_SETTIMEOUT of linux/watchdog.h, _IOWR('W', 6, int).
	watchdogSetTimeout = 0xc0045706
)

// Watchdogs are the machine's hardware watchdogs. It may have several, such as one of its chipset,
// one of its BMC, and one that resets nothing, so all of them are used. One goroutine may start and
// stop them while another one feeds them. A driver that hangs keeps neither of them.
type Watchdogs struct {
	started atomic.Pointer[map[string]watchdog]
	fed     time.Time // only Feed's
	// set gives a watchdog that many seconds, and says whether it takes them. Nil: the kernel's way.
	set func(file *os.File, seconds int32) bool
}

// watchdog is one that has been started. Its own goroutine alone writes to the device, so that no
// sign of life comes behind the byte that stops it: it would go on.
type watchdog struct {
	feed, stop chan struct{} // with room for one
	stopped    chan struct{}
}

// Start starts the watchdogs that have appeared in the directory of devices since the last call,
// and returns their paths. From then on they reset the machine unless Feed is called again and
// again. An error is about one that could not be started.
func (w *Watchdogs) Start(devices string) (paths []string, err error) {
	found, err := filepath.Glob(filepath.Join(devices, "watchdog*"))
	if first := filepath.Join(devices, "watchdog"); slices.Contains(found, first+"0") {
		// The first one's other name. A driver without numbers, such as that of IPMI, has it otherwise.
		found = slices.DeleteFunc(found, func(path string) bool { return path == first })
	}
	started := map[string]watchdog{}
	if before := w.started.Load(); before != nil {
		started = maps.Clone(*before)
	}
	for _, path := range found {
		if _, ok := started[path]; ok {
			continue
		}
		file, openErr := os.OpenFile(path, os.O_WRONLY, 0)
		if openErr != nil {
			err = errors.Join(err, openErr)
			continue
		}
		w.limit(file, watchdogLimit) // one whose time cannot be set has one of its own, of about a minute
		d := watchdog{feed: make(chan struct{}, 1), stop: make(chan struct{}, 1), stopped: make(chan struct{})}
		go w.keep(d, file)
		started[path] = d
		paths = append(paths, path)
	}
	w.started.Store(&started)
	return paths, err
}

// Running says whether any is on.
func (w *Watchdogs) Running() bool {
	started := w.started.Load()
	return started != nil && len(*started) > 0
}

// limit sets the time after which a watchdog resets the machine, and says whether it takes it.
func (w *Watchdogs) limit(file *os.File, seconds int32) bool {
	if w.set != nil {
		return w.set(file, seconds)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), watchdogSetTimeout, uintptr(unsafe.Pointer(&seconds)))
	return errno == 0
}

// keep feeds a watchdog until it is to be stopped, and stops it.
func (w *Watchdogs) keep(d watchdog, file *os.File) {
	defer close(d.stopped)
	for {
		select {
		case <-d.feed:
			_, _ = file.Write([]byte{1})
			continue
		case <-d.stop:
		}
		for seconds := int32(watchdogLongest); seconds > watchdogLimit && !w.limit(file, seconds); {
			seconds -= watchdogStep
		}
		// The byte says that the close is meant (Documentation/watchdog/watchdog-api.rst).
		_, _ = file.WriteString("V")
		_ = file.Close()
		return
	}
}

// Stop stops the watchdogs, so that the firmware, or a system that does not know them, can follow.
// Start starts them again. One whose driver knows no way out (nowayout) goes on, and resets the
// machine after the longest time that it takes, up to watchdogLongest. One whose driver hangs is
// waited for no longer than watchdogStopping.
func (w *Watchdogs) Stop() {
	started := w.started.Swap(nil)
	if started == nil {
		return
	}
	for _, d := range *started {
		tell(d.stop)
	}
	timer := time.NewTimer(watchdogStopping)
	defer timer.Stop()
	for _, d := range *started {
		select {
		case <-d.stopped:
		case <-timer.C:
			return
		}
	}
}

// Feed is a sign of life. It may be called as often as one likes, and waits for nobody.
func (w *Watchdogs) Feed() {
	started := w.started.Load()
	if started == nil || time.Since(w.fed) < watchdogEvery {
		return
	}
	w.fed = time.Now()
	for _, d := range *started {
		tell(d.feed)
	}
}

// tell leaves word in a channel, unless there is some already.
func tell(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
