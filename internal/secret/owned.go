package secret

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Owned refuses a file that the owner of its directory, or a stranger, may have put there to have
// this process change another one: a link of any kind, what is no regular file, and what belongs
// neither to the user of this process nor to the directory's owner. The parents may be links. Its
// errors are of kind Invalid; where there is no file, it is fs.ErrNotExist, too.
func Owned(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return Unreadable(path, err)
	}
	return owned(path, info)
}

func owned(path string, info fs.FileInfo) error {
	if info.Mode()&fs.ModeSymlink != 0 {
		return linked(path)
	}
	if !info.Mode().IsRegular() {
		return fleet.Errorf(fleet.KindInvalid, "%s is not a regular file: move it away", path)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if stat.Nlink > 1 {
		return fleet.Errorf(fleet.KindInvalid, "%s has more than one name (hard links): remove the others, which `find / -samefile %s` lists", path, path)
	}
	if int(stat.Uid) == os.Geteuid() {
		return nil
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return Unreadable(path, err)
	}
	if owner, ok := dir.Sys().(*syscall.Stat_t); ok && stat.Uid != owner.Uid {
		return fleet.Errorf(fleet.KindInvalid, "%s belongs to user %d, and its directory to user %d: do this as the first of them, or let both belong to one user",
			path, stat.Uid, owner.Uid)
	}
	return nil
}

func linked(path string) error {
	return fleet.Errorf(fleet.KindInvalid, "%s is a symbolic link, and whoever made it may have this process change any file: if it is as it should be, have root own it (chown -h), else remove it", path)
}

// Open opens a file to read it, which must be as Owned wants. Its errors are those of Owned.
func Open(path string) (*os.File, error) { return openOwned(path, os.O_RDONLY) }

func openOwned(path string, flag int) (*os.File, error) {
	// a pipe must not hold us up
	file, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, linked(path)
	}
	if err != nil {
		return nil, Unreadable(path, err)
	}
	info, err := file.Stat()
	if err == nil {
		err = owned(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Follow returns where a file is that may itself be a symbolic link, if there is one. It follows
// links that belong to root or to the user of this process, and refuses those of others. Its
// errors are of kind Invalid.
func Follow(path string) (string, error) {
	const most = 40 // as in Linux
	for range most {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", Unreadable(path, err)
		}
		path = filepath.Join(dir, filepath.Base(path))
		target, err := readlink(path)
		if err != nil || target == "" {
			return path, err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		path = target
	}
	return "", Unreadable(path, unix.ELOOP)
}

// readlink returns where a symbolic link points to; "" when the path is none, or when nothing is
// there. The link that it reads is the one that it has looked at.
func readlink(path string) (target string, err error) {
	link, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", Unreadable(path, err)
	}
	defer func() { _ = unix.Close(link) }()
	var stat unix.Stat_t
	if err := unix.Fstat(link, &stat); err != nil {
		return "", Unreadable(path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", nil
	}
	if stat.Nlink > 1 || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return "", linked(path)
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(link, "", text)
	if err != nil {
		return "", Unreadable(path, err)
	}
	return string(text[:n]), nil
}
