package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// fileLock is the operating system's lock on the file beside the database. It goes with the
// process, however that ends; the file stays, with the number of the last process that had it.
type fileLock struct{ file *os.File }

// Close unlocks the file. Closing it is not enough: a child that another goroutine is starting has
// a copy of each descriptor until it executes its program, and a lock goes with the last copy.
func (l *fileLock) Close() error {
	return errors.Join(unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}

// lockFile locks a database, which people call by the path. The lock is beside the file itself, not
// beside a link to it: whoever opens it by another name finds the same one.
func lockFile(path, file string) (*fileLock, error) {
	f, err := secret.Create(file + ".lock")
	if err != nil {
		return nil, unwritable(path, err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		_ = f.Close()
		return nil, fleet.Errorf(fleet.KindInUse, "database %s is in use by another process (pid %s): stop that process first", path,
			strings.TrimSpace(string(holder)))
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock database %s: %w", path, err), f.Close())
	}
	return &fileLock{f}, nil
}
