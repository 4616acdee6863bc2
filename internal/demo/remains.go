package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// ownPrefix begins the name of a directory that a demo has made for itself.
	ownPrefix = "ironherd-demo-"
	// lockName is the file in it that the demo holds the lock of. The lock goes with the process,
	// however that ends: a directory whose lock can be taken is nobody's.
	lockName = "lock"
)

// makeOwn makes a directory in that one, and holds its lock until the file is closed.
func makeOwn(parent string) (dir string, lock *os.File, err error) {
	if dir, err = os.MkdirTemp(parent, ownPrefix); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return "", nil, fleet.Errorf(fleet.KindInvalid, "make a directory: %w: set TMPDIR to a directory of yours, or name one with --dir", err)
		}
		return "", nil, fmt.Errorf("make a directory: %w", err)
	}
	// It has its name once it is locked: whoever finds it before would take it for nobody's.
	unnamed := filepath.Join(dir, lockName+".new")
	lock, err = os.OpenFile(unnamed, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(unnamed, filepath.Join(dir, lockName))
	}
	if err != nil {
		return dir, lock, fmt.Errorf("lock the directory: %w", err)
	}
	return dir, lock, nil
}

// removeRemains removes what demos of this user that were killed have left in the directory. What
// is not for certain such a thing stays: a link, another user's, one without a lock.
func removeRemains(parent string, logger *slog.Logger) {
	entries, _ := os.ReadDir(parent) // where it cannot be read, none is found
	for _, entry := range entries {
		dir := filepath.Join(parent, entry.Name())
		if !strings.HasPrefix(entry.Name(), ownPrefix) {
			continue
		}
		lock := takeRemains(dir)
		if lock == nil {
			continue
		}
		if err := errors.Join(removeAll(dir), lock.Close()); err != nil {
			logger.Warn("what a killed demo has left cannot be removed", slog.String("dir", dir), slog.Any("err", err))
		}
	}
}

// takeRemains returns the lock of a directory that a demo of this user has left; nil: it is not
// such a one, or somebody has it.
func takeRemains(dir string) *os.File {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return nil
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
		return nil
	}
	path := filepath.Join(dir, lockName)
	lock, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		// Somebody may have removed it meanwhile.
		held, heldErr := lock.Stat()
		there, thereErr := os.Lstat(path)
		if heldErr == nil && thereErr == nil && os.SameFile(held, there) {
			return lock
		}
	}
	_ = lock.Close() // only locked
	return nil
}
