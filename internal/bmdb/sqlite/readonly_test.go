package sqlite_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/fleet"
)

// mount makes a small file system, and unmounts it when the test ends.
func mount(t *testing.T, options string) string {
	t.Helper()
	if os.Getenv("CI") == "" && os.Geteuid() != 0 {
		t.Skip("this needs to be root, to mount a file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestAFileSystemThatTakesNoFiles has no fault of the configuration: somebody remounts it, or makes
// room, and a process that is started again finds it well.
func TestAFileSystemThatTakesNoFiles(t *testing.T) {
	t.Parallel()
	spoils := map[syscall.Errno]func(t *testing.T, dir string){
		unix.EROFS: func(t *testing.T, dir string) {
			t.Helper()
			must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		},
		unix.ENOSPC: func(t *testing.T, dir string) {
			t.Helper()
			for i := 0; ; i++ {
				err := os.WriteFile(filepath.Join(dir, fmt.Sprint("other", i)), nil, 0o600)
				if errors.Is(err, unix.ENOSPC) {
					return
				}
				must(t, err)
			}
		},
	}
	for why, spoil := range spoils {
		for _, there := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, there: %t", why, there), func(t *testing.T) {
				t.Parallel()
				dir := mount(t, "size=16M,nr_inodes=20")
				path := filepath.Join(dir, "bmdb")
				if there {
					closed(t, open(t, path))
				}
				spoil(t, dir)
				_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
				if fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), why.Error()) {
					t.Errorf("open: %s: %v", fleet.KindOf(err), err)
				}
				if !there {
					return
				}
				_, _, err = sqlite.SchemaOf(t.Context(), path)
				if fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), why.Error()) {
					t.Errorf("look at its schema: %s: %v", fleet.KindOf(err), err)
				}
			})
		}
	}
}

// TestAFullDiskAtAStart: the database can be read, and its mark not be written. That ends by itself
// as soon as there is room, and the sentence says so.
func TestAFullDiskAtAStart(t *testing.T) {
	t.Parallel()
	dir := mount(t, "size=16M")
	path := filepath.Join(dir, "bmdb")
	e := open(t, path)
	defer closed(t, e)
	restored := func() error {
		evidence, err := e.Restored(t.Context())
		if evidence != "" {
			t.Error(evidence)
		}
		return err
	}
	must(t, restored())
	room := filepath.Join(dir, "other")
	other, err := os.Create(room)
	must(t, err)
	for err == nil {
		_, err = other.Write(make([]byte, 4096))
	}
	must(t, other.Close())
	if err = restored(); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	wantDisk(t, err, path, "is full: make room on it; a control plane goes on by itself then, and a command is run again")
	if err := e.AcceptRestore(t.Context()); fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("accepted: %s: %v", fleet.KindOf(err), err)
	}
	must(t, os.Remove(room))
	must(t, restored())
}
