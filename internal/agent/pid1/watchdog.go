package pid1

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// watchdogLimit is how long the hardware waits for a sign of life, and watchdogEvery how often
	// it gets one.
	watchdogLimit = 60
	watchdogEvery = 10 * time.Second
	// watchdogSetTimeout is WDIOC_SETTIMEOUT of linux/watchdog.h, _IOWR('W', 6, int).
	watchdogSetTimeout = 0xc0045706
)

// Watchdog is the machine's hardware watchdog.
type Watchdog struct {
	file *os.File
	last time.Time
}

// OpenWatchdog starts the hardware watchdog. From then on it resets the machine unless Feed is
// called again and again. An error means that there is none to be had.
func OpenWatchdog() (*Watchdog, error) {
	file, err := os.OpenFile("/dev/watchdog", os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the watchdog: %w", err)
	}
	seconds := int32(watchdogLimit)
	// A watchdog whose time cannot be set has one of its own, of about a minute.
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, file.Fd(), watchdogSetTimeout, uintptr(unsafe.Pointer(&seconds)))
	return &Watchdog{file: file}, nil
}

// Feed is a sign of life. It may be called as often as one likes. It does nothing where there is no
// watchdog.
func (w *Watchdog) Feed() {
	if w == nil || time.Since(w.last) < watchdogEvery {
		return
	}
	w.last = time.Now()
	_, _ = w.file.Write([]byte{1})
}
