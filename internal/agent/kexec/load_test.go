package kexec

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// A jump makes the disks read-only only where a kernel is loaded that it can start.
func TestJumpNeedsALoadedKernel(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		loaded   string // what the kernel says; empty: nothing
		trigger  string // what was asked of it
		reboots  int
		readOnly bool
	}{
		"loaded":      {"1\n", "u", 1, true},
		"unloaded":    {"0\n", "", 0, false},
		"not told of": {"", "", 0, false},
	} {
		root := t.TempDir()
		trigger, loaded := filepath.Join(root, "proc/sysrq-trigger"), filepath.Join(root, "sys/kernel/kexec_loaded")
		err := errors.Join(os.MkdirAll(filepath.Dir(trigger), 0o755), os.MkdirAll(filepath.Dir(loaded), 0o755), os.WriteFile(trigger, nil, 0o600))
		if test.loaded != "" {
			err = errors.Join(err, os.WriteFile(loaded, []byte(test.loaded), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		reboots := 0
		synctest.Test(t, func(*testing.T) { // nothing becomes read-only, which it waits for
			err = jump(root, func() {}, func() error { reboots++; return unix.EINVAL })
		})
		asked, readErr := os.ReadFile(trigger)
		if readErr != nil || string(asked) != test.trigger || reboots != test.reboots || err == nil || errors.Is(err, ErrReadOnly) != test.readOnly {
			t.Errorf("%s: asked for %q, rebooted %d times: %v, %v", name, asked, reboots, err, readErr)
		}
	}
}
