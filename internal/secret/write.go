package secret

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Write writes a file of mode 0600 that is complete or absent at every moment. Without replace it
// leaves a file that exists as it is, and returns os.ErrExist. Where root replaces a file, whoever
// Read lets read the old one may read the new one. Where there is none, or nobody but root can, and
// in somebody else's directory, the file becomes theirs: it is the directory's owner who will read
// it.
func Write(path string, data []byte, replace bool) (err error) {
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if rmErr := os.Remove(file.Name()); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}()
	_, err = file.Write(data)
	give := Give
	if replace {
		give = func(file *os.File) error { return giveAs(file, path) }
	}
	err = errors.Join(err, give(file), syncFile(file), file.Close())
	if err != nil {
		return err
	}
	if replace {
		err = os.Rename(file.Name(), path)
	} else {
		err = os.Link(file.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDirectory(dir)
}

// Create opens a file to read and write it. It makes one of mode 0600 where there is none, and
// that one becomes the directory's owner's, as with Write. One that is there must be as Owned
// wants.
func Create(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) { // whose it is was decided by whoever made it
		return openOwned(path, os.O_RDWR)
	}
	if err != nil {
		return nil, err
	}
	if err := Give(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Give gives a file that this process has just made to the owner of its directory, where the
// process is root's. It must not be called for a file that was there before: whoever owns the
// directory may have put another name of somebody's file there.
func Give(file *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	_, err := give(file)
	return err
}

// give reports whether the directory is somebody else's than root's.
func give(file *os.File) (given bool, err error) {
	info, err := os.Stat(filepath.Dir(file.Name()))
	if err != nil {
		return false, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid == 0 {
		return false, nil
	}
	return true, file.Chown(int(stat.Uid), int(stat.Gid))
}

// giveAs gives a file that this process has just made to whoever may read the one that it is to
// replace, where the process is root's. A file that root alone may read says nothing of who will,
// nor does one whose owner this host does not know, as after a move from another host.
func giveAs(file *os.File, replaced string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Lstat(replaced)
	if errors.Is(err, fs.ErrNotExist) {
		return Give(file)
	}
	if err != nil {
		return err
	}
	switch stat, ok := info.Sys().(*syscall.Stat_t); {
	case !ok || !info.Mode().IsRegular():
		return Give(file)
	case byGroup(info):
		return errors.Join(file.Chown(0, int(stat.Gid)), file.Chmod(0o640))
	case stat.Uid == 0:
		return Give(file)
	case !isUser(stat.Uid):
		if given, err := give(file); given || err != nil {
			return err
		}
		fallthrough
	default:
		return file.Chown(int(stat.Uid), int(stat.Gid))
	}
}

// syncFile is (*os.File).Sync; a test watches when it is called.
var syncFile = (*os.File).Sync

func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(syncFile(dir), dir.Close())
}

// Lock waits for the lock on a directory, which it makes if need be. Whoever changes files there in
// several steps holds it.
func Lock(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
	return file.Close, nil
}
