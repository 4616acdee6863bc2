package kexec

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// jumper is a host whose kernel says that of a loaded one ("": nothing), and its trigger.
func jumper(t *testing.T, loaded, mounts string) (root, trigger string) {
	t.Helper()
	root = t.TempDir()
	trigger = filepath.Join(root, "proc/sysrq-trigger")
	for path, text := range map[string]string{"sys/kernel/kexec_loaded": loaded, "proc/sysrq-trigger": "", "proc/self/mountinfo": mounts} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if text == "" && filepath.Base(path) == "kexec_loaded" {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root, trigger
}

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
		root, trigger := jumper(t, test.loaded, "")
		var err error
		reboots := 0
		synctest.Test(t, func(t *testing.T) {
			err = jump(t.Context(), root, func() {}, func() error { reboots++; return unix.EINVAL })
		})
		asked, readErr := os.ReadFile(trigger)
		if readErr != nil || string(asked) != test.trigger || reboots != test.reboots || err == nil || errors.Is(err, ErrReadOnly) != test.readOnly {
			t.Errorf("%s: asked for %q, rebooted %d times: %v, %v", name, asked, reboots, err, readErr)
		}
	}
}

// A jump that is called off while it waits for a disk leaves the file systems as they are. When
// they are read-only it goes on.
func TestJumpIsCalledOff(t *testing.T) {
	t.Parallel()
	const busy = "25 22 8:17 / /data ro,relatime shared:9 - xfs /dev/sdb1 rw,attr2\n"
	for name, test := range map[string]struct {
		hangs   bool // what is to be written
		asked   string
		reboots int
		took    time.Duration
	}{
		"before":     {true, "", 0, time.Second},
		"afterwards": {false, "u", 1, quietWait},
	} {
		root, trigger := jumper(t, "1\n", busy)
		synctest.Test(t, func(t *testing.T) {
			hung := make(chan struct{})
			defer close(hung)
			off := errors.New("called off")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer time.AfterFunc(time.Second, func() { cancel(off) }).Stop()
			began, reboots := time.Now(), 0
			err := jump(ctx, root, func() {
				if test.hangs {
					<-hung
				}
			}, func() error { reboots++; return unix.EINVAL })
			asked, readErr := os.ReadFile(trigger)
			if readErr != nil || string(asked) != test.asked || reboots != test.reboots || errors.Is(err, off) != (test.reboots == 0) {
				t.Errorf("%s: asked for %q, rebooted %d times: %v, %v", name, asked, reboots, err, readErr)
			}
			if took := time.Since(began); took < test.took || took > test.took+100*time.Millisecond {
				t.Errorf("%s: it took %s, not %s", name, took, test.took)
			}
		})
	}
}

// A jump waits for every file system on a block device, but not for ever: neither for them, nor for
// what is to be written.
func TestJumpWaitsForAllDisks(t *testing.T) {
	t.Parallel()
	const (
		quiet = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 ro,errors=remount-ro\n" +
			"23 22 0:21 / /run rw,nosuid - tmpfs tmpfs rw,size=200M\n24 22 0:40 / /home rw - nfs4 server:/home rw,vers=4.2\n"
		data = "25 22 8:17 / /data\\040disk ro,relatime shared:9 - xfs /dev/sdb1 rw,attr2\n"
		tree = "25 22 0:33 /@ /data rw,relatime shared:9 - btrfs /dev/sdb1 rw,subvol=/@\n"
	)
	for name, test := range map[string]struct {
		mounts string
		after  time.Duration // that the mounts are quiet
		hangs  bool          // what is to be written
		want   time.Duration
	}{
		"all are quiet":      {quiet, 0, false, 0},
		"another disk":       {quiet + data, 2 * time.Second, false, 2 * time.Second},
		"Btrfs":              {quiet + tree, 2 * time.Second, false, 2 * time.Second},
		"never":              {quiet + data, time.Hour, false, quietWait},
		"nothing is written": {quiet, 0, true, 2 * syncWait},
	} {
		root, _ := jumper(t, "1\n", test.mounts)
		synctest.Test(t, func(t *testing.T) {
			hung := make(chan struct{})
			defer close(hung)
			quieten := time.AfterFunc(test.after, func() {
				if err := os.WriteFile(filepath.Join(root, "proc/self/mountinfo"), []byte(quiet), 0o600); err != nil {
					t.Error(err)
				}
			})
			defer quieten.Stop()
			began, took := time.Now(), time.Duration(-1)
			_ = jump(t.Context(), root, func() {
				if test.hangs {
					<-hung
				}
			}, func() error { took = time.Since(began); return unix.EINVAL })
			if took < test.want || took > test.want+100*time.Millisecond {
				t.Errorf("%s: the kernel was started after %s, not %s", name, took, test.want)
			}
		})
	}
}
