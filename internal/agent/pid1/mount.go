package pid1

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount mounts the kernel's file systems. Only the first process calls it, once.
func Mount() error {
	var faults []error
	for _, m := range []struct {
		kind, target string
		flags        uintptr
		data         string
	}{
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"devtmpfs", "/dev", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0755"},
		{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
		{"tmpfs", "/tmp", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	} {
		err := errors.Join(os.MkdirAll(m.target, 0o755), unix.Mount(m.kind, m.target, m.kind, m.flags, m.data))
		if err != nil {
			faults = append(faults, fmt.Errorf("mount %s at %s: %w", m.kind, m.target, err))
		}
	}
	return errors.Join(faults...)
}

// efiVariables is where the firmware's variables are.
const efiVariables = "/sys/firmware/efi/efivars"

// MountEFI mounts the firmware's variables, where the machine has any. Their module must be loaded.
func MountEFI() error {
	if _, err := os.Stat(efiVariables); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return unix.Mount("efivarfs", efiVariables, "efivarfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// LoadModule loads a module and removes its file. If the kernel does not take the module, this is
// logged. It returns when the module's own initialization does, which may be never.
func LoadModule(path string, logger *slog.Logger) {
	if err := loadModule(path); err != nil && !errors.Is(err, unix.EEXIST) {
		logger.Warn("a kernel module was not loaded", slog.String("path", path), slog.Any("err", err))
	}
	_ = os.Remove(path) // it is memory
}

// parametersOf returns the parameters of the module at the path: those that the kernel's command
// line has for it, which the kernel gives to built-in modules alone and modprobe to the others
// (Documentation/admin-guide/kernel-parameters.rst), after those without which it would do
// something by itself.
func parametersOf(path, commandLine string) string {
	name := strings.TrimSuffix(filepath.Base(path), ".ko")
	var parameters []string
	if name == "bonding" {
		parameters = append(parameters, "max_bonds=0")
	}
	for _, word := range strings.Fields(commandLine) {
		module, parameter, _ := strings.Cut(word, ".")
		if parameter != "" && strings.ReplaceAll(module, "-", "_") == name {
			parameters = append(parameters, parameter)
		}
	}
	return strings.Join(parameters, " ")
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	commandLine, _ := os.ReadFile("/proc/cmdline") // better a driver without them than none
	return unix.FinitModule(int(file.Fd()), parametersOf(path, string(commandLine)), 0)
}

// Reap collects the processes whose parents have ended. It returns when done is closed.
func Reap(child <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case <-child:
		case <-done:
			return
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}

// clockTolerance is how much a clock may be off before it is set.
const clockTolerance = 2 * time.Second

// ClockAhead returns how much the clock of this host is ahead of its hardware clock, whatever the
// time zone that the hardware clock keeps. False: there is none.
func ClockAhead() (time.Duration, bool) {
	hardware, err := hardwareClock()
	if err != nil {
		return 0, false
	}
	return time.Since(hardware), true
}

// SetClock sets the clock by the hardware clock, which the right time is ahead of by that much. A
// time before the given one cannot be.
func SetClock(ahead time.Duration, notBefore time.Time, logger *slog.Logger) {
	now, right := time.Now(), time.Now()
	if hardware, err := hardwareClock(); err == nil {
		right = hardware.Add(ahead)
	}
	if right.Before(notBefore) {
		right = notBefore
	}
	if right.Sub(now).Abs() < clockTolerance {
		return
	}
	value := unix.NsecToTimeval(right.UnixNano())
	if err := unix.Settimeofday(&value); err != nil {
		logger.Warn("the clock cannot be set", slog.Any("err", err))
		return
	}
	logger.Info("the clock was set", slog.Duration("by", right.Sub(now)))
}

func hardwareClock() (time.Time, error) {
	file, err := os.Open("/dev/rtc0")
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = file.Close() }()
	t, err := unix.IoctlGetRTCTime(int(file.Fd()))
	if err != nil {
		return time.Time{}, err
	}
	return time.Date(int(t.Year)+1900, time.Month(t.Mon+1), int(t.Mday), int(t.Hour), int(t.Min), int(t.Sec), 0, time.UTC), nil
}
