package remote

import (
	"errors"
	"io/fs"
	"path"

	"github.com/pkg/sftp"

	"github.com/ironherd/ironherd/internal/fleet"
)

// ownDirectory makes sure that a directory is there, and that nobody but root and the user can
// change what is in it. It returns the directory's path without links. A directory that it makes is
// the user's alone.
//
// Who can write to a directory above can put another in its place, unless that one is sticky, as
// /tmp is: there, everybody can only touch what is theirs.
func ownDirectory(files *sftp.Client, directory string, uid uint32) (string, error) {
	if err := makeDirectory(files, directory); err != nil {
		return "", err
	}
	whole, err := files.RealPath(directory)
	if err != nil {
		return "", err
	}
	if !path.IsAbs(whole) {
		return "", fleet.Errorf(fleet.KindInvalid, "the host says that %s is %s", directory, Quote(whole))
	}
	whole = path.Clean(whole)
	for at := whole; ; at = path.Dir(at) {
		info, err := files.Lstat(at)
		if err != nil {
			return "", err
		}
		if err := checkDirectory(info, at, uid, at != whole); err != nil {
			return "", err
		}
		if at == "/" {
			return whole, nil
		}
	}
}

// makeDirectory makes a directory and those above it.
func makeDirectory(files *sftp.Client, directory string) error {
	if _, err := files.Stat(directory); !errors.Is(err, fs.ErrNotExist) || directory == "/" {
		return err
	}
	if err := makeDirectory(files, path.Dir(directory)); err != nil {
		return err
	}
	if err := files.Mkdir(directory); err != nil {
		if _, again := files.Stat(directory); again == nil {
			return nil // somebody else was faster
		}
		return err
	}
	return files.Chmod(directory, 0o700)
}

// checkDirectory refuses a directory that others can change.
func checkDirectory(info fs.FileInfo, name string, uid uint32, sticky bool) error {
	const remedy = "what is executed there would be theirs: make it root's alone (chown root, chmod go-w), or use another directory"
	switch {
	case !info.IsDir():
		return fleet.Errorf(fleet.KindForbidden, "%s on the host is not a directory", Quote(name))
	case !owned(info, uid):
		return fleet.Errorf(fleet.KindForbidden, "%s on the host belongs to user %d, and %s", Quote(name), ownerOf(info), remedy)
	case info.Mode().Perm()&0o022 != 0 && (!sticky || info.Mode()&fs.ModeSticky == 0):
		return fleet.Errorf(fleet.KindForbidden, "others can write to %s on the host (mode %04o), and %s", Quote(name), info.Mode().Perm(), remedy)
	}
	return nil
}

// owned reports whether a file is root's or the user's.
func owned(info fs.FileInfo, uid uint32) bool {
	owner := ownerOf(info)
	return owner == 0 || owner == uid
}

// ownerOf returns the user ID of a file's owner.
func ownerOf(info fs.FileInfo) uint32 {
	if stat, ok := info.Sys().(*sftp.FileStat); ok {
		return stat.UID
	}
	return 0
}
