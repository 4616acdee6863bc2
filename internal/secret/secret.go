// Package secret guards the files that hold keys, tokens, passwords and the database.
//
// It promises:
//
//   - A secret that others can read is refused, in one sentence that says how to mend it. Nobody
//     knows who has read it before.
//   - What the control plane keeps for itself is closed to others, whatever its mode was before.
//   - What it changes in place is no link that the owner of the directory has put there: root may
//     work in a service's directory, and whoever has the service must not reach root's files so.
//   - No error quotes a file.
//   - Of a file with an authority's certificates these alone are given away.
//   - What may be over by itself can be told from what a person has to mend (Passes).
package secret

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Read returns the content of a file that holds a secret, of at most that many bytes. Its errors
// are of kind Invalid.
//
// Nobody but the owner may have any right on the file. The group may read a file of root's, as
// PostgreSQL and systemd have it: root alone says who is in the group. What is not a regular file,
// such as a pipe, is nobody else's to read.
func Read(path string, most int) ([]byte, error) {
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	content, err := io.ReadAll(io.LimitReader(file, int64(most)+1))
	if err != nil {
		return nil, Unreadable(path, err)
	}
	if len(content) > most {
		return nil, fleet.Errorf(fleet.KindInvalid, "%s has more than %d bytes", path, most)
	}
	return content, nil
}

// Check returns the error of Read, but does not read the content.
func Check(path string) error {
	file, err := open(path)
	if err != nil {
		return err
	}
	return file.Close()
}

// maximumKey is more than any private key takes, in bytes.
const maximumKey = 1 << 20

// ReadKeyPair returns the chain of certificates in one PEM file with the private key in another,
// which is read by Read.
func ReadKeyPair(certificate, key string) (tls.Certificate, error) {
	private, err := Read(key, maximumKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	chain, err := os.ReadFile(certificate)
	if err != nil {
		return tls.Certificate{}, Unreadable(certificate, err)
	}
	return tls.X509KeyPair(chain, private)
}

// open looks at the very file that is read afterwards.
func open(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, unopened(path, err)
	}
	info, err := file.Stat()
	switch {
	case err != nil:
		err = Unreadable(path, err)
	case info.IsDir():
		err = fleet.Errorf(fleet.KindInvalid, "%s is a directory, and a file is expected", path)
	default:
		err = private(path, info)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// Unreadable returns the error of Read for a file that the system does not open or read, whether it
// holds a secret or not.
func Unreadable(path string, err error) error {
	if cause, ok := errors.AsType[*fs.PathError](err); ok {
		err = cause.Err // the sentence names the path already
	}
	return fleet.Errorf(fleet.KindInvalid, "the file %s cannot be read: %w", path, told(err))
}

// passing marks what may be over by itself.
type passing struct{ error }

// Unwrap returns what may be over.
func (p passing) Unwrap() error { return p.error }

// Passes reports whether an error comes from a fault of the system that may be over by itself: a
// file that is not there yet, a disk or a file server that does not answer. Modes, permissions,
// kinds of files and their contents stay as they are until somebody changes them.
func Passes(err error) bool {
	_, ok := errors.AsType[passing](err)
	return ok
}

// stay are the faults of the system that only a person ends.
var stay = []syscall.Errno{
	syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL,
}

// told marks a fault of the system for Passes.
func told(err error) error {
	number, ok := errors.AsType[syscall.Errno](err)
	if !ok || slices.Contains(stay, number) {
		return err
	}
	return passing{err}
}

// MakeDir makes a directory that only its owner may enter, parents included, and closes one that
// exists to everybody else. It refuses a directory that is meant for all, as /tmp and /etc are:
// closing that would take it from them. An error is of kind Invalid.
func MakeDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return barred(fleet.Errorf(fleet.KindInvalid, "make directory: %w", told(err)))
	}
	info, err := os.Stat(path)
	if err != nil {
		return fleet.Errorf(fleet.KindInvalid, "look at directory: %w", told(err))
	}
	if Shared(path, info) {
		return fleet.Errorf(fleet.KindInvalid, "%s is a directory that all share: name one of its own in it", path)
	}
	return barred(closeTo(path, info, 0o700, func(mode fs.FileMode) error { return os.Chmod(path, mode) }))
}

// barred adds the remedy where the system does not let us make or close a directory.
func barred(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fleet.Errorf(fleet.KindInvalid, "%w: name a directory that %s may make, or owns", err, nameOf(os.Geteuid()))
	}
	return err
}

// Shared reports whether a directory is meant for everybody: the root, one in which all may write,
// or one that is open to others and has directories which they may enter, as /etc and /var/lib do.
func Shared(path string, info fs.FileInfo) bool {
	const others = 0o055
	if filepath.Clean(path) == "/" || info.Mode()&fs.ModeSticky != 0 {
		return true
	}
	if info.Mode()&others == 0 {
		return false
	}
	entries, _ := os.ReadDir(path) // where it cannot be read, it cannot be closed either
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		below, err := e.Info()
		return err == nil && below.IsDir() && below.Mode()&others != 0
	})
}

// Close gives a file mode 0600 whatever it was before. It must be as Owned wants. A file that is
// not there is none to close. An error is of kind Invalid.
func Close(path string) error {
	file, err := Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // nothing was written
	info, err := file.Stat()
	if err != nil {
		return Unreadable(path, err)
	}
	return closeTo(path, info, 0o600, file.Chmod)
}

func closeTo(path string, info fs.FileInfo, mode fs.FileMode, chmod func(fs.FileMode) error) error {
	if info.Mode().Perm() == mode {
		return nil
	}
	if err := chmod(mode); err != nil {
		return fleet.Errorf(fleet.KindInvalid, "%s has mode %04o and must have %04o: %w", path, info.Mode().Perm(), mode, told(cause(err)))
	}
	return nil
}

func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return fmt.Errorf("change mode: %w", err)
}

// StaysHere reports whether what is sent to a host, by its name or IP address, stays on this one.
func StaysHere(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}
