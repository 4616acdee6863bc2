package sqlite

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A child between its fork and its exec has a copy of the descriptor.
func TestClosedLockIsFreeWhileACopyIsOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bmdb")
	held, err := lockFile(path, path)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := unix.Dup(int(held.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(copied) }()
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockFile(path, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
