package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/pkg/sftp"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shell"
)

const (
	// partSuffix and temporarySuffix end the names of what an upload has not finished.
	partSuffix, temporarySuffix = ".part", ".tmp"
	// staleAfter is the age from which on such a file is nobody's: each step of an upload touches its
	// files, and takes less.
	staleAfter = time.Minute
)

// Uploaded is the result of an upload.
type Uploaded struct {
	// Path of the content on the host.
	Path string
	// Sent is how many bytes of the content went over the wire, after compression. 0 when the host had
	// the content already.
	Sent int64
}

// errDamaged tells that what is on the host is not what was sent.
var errDamaged = errors.New("what arrived is damaged")

// upload is one upload to one host.
type upload struct {
	host    *Host
	disk    disk
	content *Content
	mode    fs.FileMode
	uid     uint32
	// base is the path that was asked for, without links; path is where the content is to be.
	base, path string
	sent       int64
}

// Upload makes sure that the content is on the host, at content.Path(base), with that mode. base is
// an absolute path. Upload makes its directory if there is none, and refuses one that others than
// root and the user can write to. Where the directory is reached through links, the result has its
// path without them.
//
// Whatever is there counts only if it has the content's digest. Otherwise Upload sends the content,
// compressed if the host has gzip, to a file of another name, checks the digest and renames the
// file. What an upload that was interrupted has left is what the next one goes on from. Any number
// of uploads may run at once. A host without SFTP gets the content through its shell.
//
// Other contents that were uploaded to base before are removed, and so is what interrupted uploads
// have left and this one does not go on from. What a process runs stays. Only root sees what that
// is: for another user all other contents stay.
//
// The error is a *DirectoryError if another directory may do. A program for another architecture
// than the host's is refused, with an error of kind Unsupported.
func (h *Host) Upload(ctx context.Context, content *Content, base string, mode fs.FileMode) (Uploaded, error) {
	if !path.IsAbs(base) || strings.ContainsAny(base, "\x00\n") {
		return Uploaded{}, fleet.Errorf(fleet.KindInvalid, "content is uploaded to an absolute path, not %q", base)
	}
	if _, err := h.Choose(ctx, content); err != nil {
		return Uploaded{}, err
	}
	about, err := h.ask(ctx)
	if err != nil {
		return Uploaded{}, err
	}
	u := &upload{host: h, content: content, mode: mode, uid: about.uid}
	if u.disk, err = h.openDisk(ctx); err != nil {
		return Uploaded{}, err
	}
	if err := u.run(ctx, base); err != nil {
		err = ofDirectory(path.Dir(base), err)
		if wrong, ok := errors.AsType[*DirectoryError](err); ok && u.uid != 0 {
			wrong.NotRoot = fmt.Sprintf("user %s (uid %d)", h.user, u.uid)
		}
		return Uploaded{}, err
	}
	return Uploaded{Path: u.path, Sent: u.sent}, nil
}

// ofDirectory makes a *DirectoryError of an error that another directory may not give: what the
// host refuses by itself, and what is refused because of the directory.
func ofDirectory(directory string, err error) error {
	if known, ok := errors.AsType[*DirectoryError](err); ok {
		known.Directory = directory
		return err
	}
	_, refused := errors.AsType[*sftp.StatusError](err)
	_, exited := errors.AsType[*ExitError](err)
	if refused || exited || fleet.KindOf(err) == fleet.KindForbidden || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return &DirectoryError{Directory: directory, Err: err}
	}
	return err
}

func (u *upload) run(ctx context.Context, base string) error {
	directory, err := u.disk.own(ctx, path.Dir(base), u.uid)
	if err != nil {
		return u.explain(ctx, path.Dir(base), err)
	}
	u.base = path.Join(directory, path.Base(base))
	u.path = u.content.Path(u.base)
	there, err := u.present(ctx)
	if err != nil {
		return err
	}
	// First: what earlier uploads have left may be what fills the disk.
	shellDisk{u.host}.removeStale(ctx, u, there)
	if there {
		return nil
	}
	return u.send(ctx)
}

func (u *upload) explain(ctx context.Context, directory string, err error) error {
	return u.disk.explain(ctx, directory, u.content.Size(), err)
}

// present reports whether the content is there. It corrects a wrong mode.
func (u *upload) present(ctx context.Context) (bool, error) {
	found, err := u.disk.look(ctx, u.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !found.mode.IsRegular() || found.size != u.content.Size() || !found.owned(u.uid) {
		return false, err
	}
	if found.mode.Perm() != u.mode.Perm() {
		if err := u.disk.chmod(ctx, u.path, u.mode); err != nil {
			return false, err
		}
	}
	err = u.check(ctx, u.path)
	if errors.Is(err, errDamaged) {
		u.host.logger.Warn("file on the host is not what its name says, and is sent anew",
			slog.Any("host", u.host.address), slog.String("path", u.path), slog.Any("err", err))
		return false, nil
	}
	return err == nil, err
}

// send sends the content in the forms that the host may take, until one arrives whole.
func (u *upload) send(ctx context.Context) error {
	forms := []bool{false, false} // the second time from the beginning
	_, err := u.host.line(ctx, "look for gzip", "gzip -dc </dev/null", Command{OnStderr: func(string) {}})
	exit, exited := errors.AsType[*ExitError](err)
	if err != nil && !exited {
		return err
	}
	if !exited || exit.Status != notFound && exit.Status != notExecutable {
		forms = append([]bool{true}, forms...)
	}
	for _, packed := range forms {
		if err = u.sendAs(ctx, packed); err == nil {
			return nil
		}
		// Another upload may have been faster, and have taken away what this one was at.
		if there, _ := u.present(ctx); there {
			return nil
		}
		if !errors.Is(err, errDamaged) {
			return err
		}
		u.host.logger.Warn("content did not arrive whole, and is sent anew",
			slog.Any("host", u.host.address), slog.Bool("compressed", packed), slog.Any("err", err))
	}
	return err
}

// sendAs sends the content packed, or as it is. What is left of it when that fails is either worth
// going on from, or removed.
func (u *upload) sendAs(ctx context.Context, packed bool) error {
	part, data := u.content.partial(u.base, packed), u.content.data
	if packed {
		data = u.content.gzipped()
	}
	sent, err := u.disk.write(ctx, part, data, u.uid)
	u.sent += sent
	whole := part
	if err == nil && packed {
		whole = u.path + "." + rand.Text() + temporarySuffix
		err = u.unpack(ctx, part, whole)
	}
	if err == nil {
		err = u.check(ctx, whole)
	}
	if err == nil {
		err = u.disk.chmod(ctx, whole, u.mode)
	}
	if err == nil {
		err = u.disk.rename(ctx, whole, u.path)
	}
	if err != nil {
		err = u.explain(ctx, path.Dir(part), err)
	}
	// Where the connection has ended they stay, for the next upload to go on from or to remove.
	u.disk.remove(ctx, part, u.content.partial(u.base, !packed), whole)
	return err
}

// unpack decompresses one file into another, which is never anybody else's.
func (u *upload) unpack(ctx context.Context, from, to string) error {
	line := fmt.Sprintf("umask 077 && gzip -dc <%s >%s", shell.Word(from), shell.Word(to))
	_, err := u.host.line(ctx, "unpack "+shown(from), line, Command{OnStderr: func(string) {}})
	if exit, exited := errors.AsType[*ExitError](err); exited && exit.hint() == "" {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// check compares the digest of a file with the content's.
func (u *upload) check(ctx context.Context, name string) error {
	digest, err := u.digest(ctx, name)
	if err == nil && digest != u.content.Digest() {
		return fleet.Errorf(fleet.KindTemporary, "%w: %s has the digest %s", errDamaged, shown(name), digest)
	}
	return err
}

// sum is what sha256sum writes. It begins with a backslash where the name has one or needs one.
var sum = regexp.MustCompile(`^\\?([0-9a-f]{64}) `)

// digest returns the SHA-256 of a file in hexadecimal, as the host's sha256sum says. Where there is
// none, it reads the file.
func (u *upload) digest(ctx context.Context, name string) (string, error) {
	output, err := u.host.line(ctx, "check "+shown(name), "sha256sum "+shell.Word(name), Command{OnStderr: func(string) {}})
	if _, exited := errors.AsType[*ExitError](err); exited {
		return u.disk.digest(ctx, name, u.content.Size())
	}
	if err != nil {
		return "", err
	}
	found := sum.FindSubmatch(output)
	if found == nil {
		return "", fleet.Errorf(fleet.KindInvalid, "check %s: sha256sum wrote %s (%s)", shown(name), Quote(string(output)), hintOtherCommand)
	}
	return string(found[1]), nil
}
