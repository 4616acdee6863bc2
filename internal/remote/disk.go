package remote

import (
	"context"
	"io/fs"
	"path"

	"github.com/ironherd/ironherd/internal/fleet"
)

// disk is what an upload does with the files of a host: over SFTP, or by commands where the host
// has no SFTP. Each method is bounded as an operation of a Host is.
type disk interface {
	// own makes sure that a directory is there, and that nobody but root and the user can change what
	// is in it. It returns the directory's path without links. A directory that it makes is the user's
	// alone.
	own(ctx context.Context, directory string, uid uint32) (string, error)
	// look returns what is there under a name, without following a link; fs.ErrNotExist: nothing.
	look(ctx context.Context, name string) (entry, error)
	chmod(ctx context.Context, name string, mode fs.FileMode) error
	rename(ctx context.Context, from, to string) error
	// remove removes files, as far as they are there.
	remove(ctx context.Context, names ...string)
	// write writes data to a file of the user's alone. It goes on from what is there already, and
	// returns how many bytes it sent.
	write(ctx context.Context, name string, data []byte, uid uint32) (int64, error)
	// digest returns the SHA-256 of a file of so many bytes in hexadecimal, by reading it.
	digest(ctx context.Context, name string, size int64) (string, error)
	// explain adds to the error of an operation in a directory what the host does not say by itself:
	// that there is no space for so many bytes, or that nothing can be written.
	explain(ctx context.Context, directory string, size int64, err error) error
}

// entry is a file on a host.
type entry struct {
	mode fs.FileMode
	uid  uint32
	size int64
}

// owned reports whether a file is root's or the user's.
func (e entry) owned(uid uint32) bool { return e.uid == 0 || e.uid == uid }

// checkDirectories refuses a directory that others can change. above has the directory, and then
// each one above it.
//
// Who can write to a directory above can put another in its place, unless that one is sticky, as
// /tmp is: there, everybody can only touch what is theirs.
func checkDirectories(directory string, above []entry, uid uint32) error {
	const remedy = "what is executed there would be theirs: make it root's alone (chown root, chmod go-w), or use another directory"
	for i, at := range above {
		sticky := i > 0 && at.mode&fs.ModeSticky != 0
		switch {
		case !at.mode.IsDir():
			return fleet.Errorf(fleet.KindForbidden, "%s on the host is not a directory", Quote(directory))
		case !at.owned(uid):
			return fleet.Errorf(fleet.KindForbidden, "%s on the host belongs to user %d, and %s", Quote(directory), at.uid, remedy)
		case at.mode.Perm()&0o022 != 0 && !sticky:
			return fleet.Errorf(fleet.KindForbidden, "others can write to %s on the host (mode %04o), and %s", Quote(directory), at.mode.Perm(), remedy)
		}
		directory = path.Dir(directory)
	}
	return nil
}
