package pid1

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
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
	// watchdogSetTimeout is WDIOC_SETTIMEOUT of linux/watchdog.h, _IOWR('W', 6, int).
	watchdogSetTimeout = 0xc0045706
)

// Watchdogs are the machine's hardware watchdogs. It may have several, such as one of its chipset,
// one of its BMC, and one that resets nothing, so all of them are used. One goroutine may start and
// stop them while another one feeds them.
type Watchdogs struct {
	started atomic.Pointer[map[string]*os.File]
	// writing keeps a sign of life from coming behind the byte that stops a watchdog: it would go on.
	writing sync.Mutex
	fed     time.Time // only Feed's
	// set gives a watchdog that many seconds, and says whether it takes them. Nil: the kernel's way.
	set func(file *os.File, seconds int32) bool
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
	started := map[string]*os.File{}
	if before := w.started.Load(); before != nil {
		started = maps.Clone(*before)
	}
	for _, path := range found {
		if started[path] != nil {
			continue
		}
		file, openErr := os.OpenFile(path, os.O_WRONLY, 0)
		if openErr != nil {
			err = errors.Join(err, openErr)
			continue
		}
		w.limit(file, watchdogLimit) // one whose time cannot be set has one of its own, of about a minute
		started[path] = file
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

// Stop stops the watchdogs, so that the firmware, or a system that does not know them, can follow.
// Start starts them again. One whose driver knows no way out (nowayout) goes on, and resets the
// machine after the longest time that it takes, up to watchdogLongest.
func (w *Watchdogs) Stop() {
	w.writing.Lock()
	defer w.writing.Unlock()
	started := w.started.Swap(nil)
	if started == nil {
		return
	}
	for _, file := range *started {
		for seconds := int32(watchdogLongest); seconds > watchdogLimit && !w.limit(file, seconds); {
			seconds -= watchdogStep
		}
		// The byte says that the close is meant (Documentation/watchdog/watchdog-api.rst).
		_, _ = file.WriteString("V")
		_ = file.Close()
	}
}

// Feed is a sign of life. It may be called as often as one likes, and waits for nobody.
func (w *Watchdogs) Feed() {
	if !w.writing.TryLock() {
		return // they are being stopped
	}
	defer w.writing.Unlock()
	started := w.started.Load()
	if started == nil || time.Since(w.fed) < watchdogEvery {
		return
	}
	w.fed = time.Now()
	for _, file := range *started {
		_, _ = file.Write([]byte{1})
	}
}
