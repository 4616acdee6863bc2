package remote

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sync/errgroup"

	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// packet is how much of a file one request carries: what every SFTP server takes.
	packet = 32 << 10
	// inFlight is how many such requests may be without an answer.
	inFlight = 8
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
	files   *sftp.Client
	content *Content
	mode    fs.FileMode
	uid     uint32
	// base is the path that was asked for, without links; path is where the content is to be.
	base, path string
	sent       int64
}

// Upload makes sure that the content is on the host, at content.Path(base), with that mode. base is
// an absolute path. Upload makes its directory if there is none, and refuses, with an error of kind
// Forbidden, one that others than root and the user can write to. Where the directory is reached
// through links, the result has its path without them.
//
// Whatever is there counts only if it has the content's digest. Otherwise Upload sends the content,
// compressed if the host has gzip, to a file of another name, checks the digest and renames the
// file. What an upload that was interrupted has left is what the next one goes on from. Any number
// of uploads may run at once.
//
// A program for another architecture than the host's is refused, with an error of kind Unsupported.
func (h *Host) Upload(ctx context.Context, content *Content, base string, mode fs.FileMode) (Uploaded, error) {
	if !path.IsAbs(base) || strings.ContainsAny(base, "\x00\n") {
		return Uploaded{}, fleet.Errorf(fleet.KindInvalid, "content is uploaded to an absolute path, not %q", base)
	}
	about, err := h.ask(ctx)
	if err != nil {
		return Uploaded{}, err
	}
	if architecture := content.architecture(); !executes(about.machine, architecture) {
		return Uploaded{}, fleet.Errorf(fleet.KindUnsupported, "the program is built for %s, and the host is %s", architecture, about.machine)
	}
	u := &upload{host: h, content: content, mode: mode, uid: about.uid}
	if u.files, err = h.fileClient(ctx); err != nil {
		return Uploaded{}, err
	}
	if err := u.run(ctx, base); err != nil {
		return Uploaded{}, err
	}
	return Uploaded{Path: u.path, Sent: u.sent}, nil
}

func (u *upload) run(ctx context.Context, base string) error {
	var directory string
	err := u.step(ctx, "prepare "+path.Dir(base), func() (err error) {
		directory, err = ownDirectory(u.files, path.Dir(base), u.uid)
		return err
	})
	if err != nil {
		return u.explain(ctx, path.Dir(base), err)
	}
	u.base = path.Join(directory, path.Base(base))
	u.path = u.content.Path(u.base)
	if there, err := u.present(ctx); there || err != nil {
		return err
	}
	if err := u.send(ctx); err != nil {
		return err
	}
	return u.step(ctx, "remove what was left", func() error { return u.removeStale(directory) })
}

// step does one thing on the host within the time of a step.
func (u *upload) step(ctx context.Context, what string, do func() error) error {
	return u.host.within(ctx, u.host.step, what, do)
}

// present reports whether the content is there. It corrects a wrong mode.
func (u *upload) present(ctx context.Context) (bool, error) {
	there := false
	err := u.step(ctx, "look for "+u.path, func() error {
		info, err := u.files.Lstat(u.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		there = info.Mode().IsRegular() && info.Size() == u.content.Size() && owned(info, u.uid)
		if there && info.Mode().Perm() != u.mode.Perm() {
			return u.files.Chmod(u.path, u.mode.Perm())
		}
		return nil
	})
	if err != nil || !there {
		return false, err
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
	if !exited || exit.Status != notFound {
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
	err := u.write(ctx, part, data)
	whole := part
	if err == nil && packed {
		whole = u.path + "." + suffix()
		err = u.unpack(ctx, part, whole)
	}
	if err == nil {
		err = u.check(ctx, whole)
	}
	if err == nil {
		err = u.step(ctx, "rename "+whole, func() error {
			if err := u.files.Chmod(whole, u.mode.Perm()); err != nil {
				return err
			}
			return u.files.PosixRename(whole, u.path)
		})
	}
	if err != nil {
		err = u.explain(ctx, path.Dir(part), err)
	}
	u.remove(ctx, part, whole)
	return err
}

// remove removes files, as far as they are there. Where the connection has ended they stay, for the
// next upload to go on from or to remove.
func (u *upload) remove(ctx context.Context, names ...string) {
	_ = u.step(ctx, "remove", func() error {
		for _, name := range names {
			_ = u.files.Remove(name)
		}
		return nil
	})
}

// write writes data to a file of the user's alone. It goes on from what is there already, but for
// the end of it: what was on its way when an earlier upload broke off may have holes.
func (u *upload) write(ctx context.Context, name string, data []byte) error {
	var file *sftp.File
	var from int64
	err := u.step(ctx, "open "+name, func() (err error) {
		info, err := u.files.Lstat(name)
		switch {
		case err == nil && info.Mode().IsRegular() && owned(info, u.uid) && info.Size() <= int64(len(data)):
			from = max(0, info.Size()-inFlight*packet) / packet * packet
		case err == nil:
			if err := u.files.Remove(name); err != nil {
				return err
			}
		}
		if file, err = u.files.OpenFile(name, os.O_WRONLY|os.O_CREATE); err != nil {
			return err
		}
		return u.files.Chmod(name, 0o600)
	})
	if err != nil {
		return err
	}
	err = u.host.progressing(ctx, "write "+name, func(progress func()) error {
		packets, writing := errgroup.WithContext(ctx)
		packets.SetLimit(inFlight)
		for at := from; at < int64(len(data)) && writing.Err() == nil; at += packet {
			packets.Go(func() error {
				_, err := file.WriteAt(data[at:min(at+packet, int64(len(data)))], at)
				if err == nil {
					progress()
				}
				return err
			})
		}
		return errors.Join(packets.Wait(), file.Close())
	})
	u.sent += int64(len(data)) - from
	return err
}

// unpack decompresses one file into another, which is never anybody else's.
func (u *upload) unpack(ctx context.Context, from, to string) error {
	line := fmt.Sprintf("umask 077 && gzip -dc <%s >%s", quoteAlways(from), quoteAlways(to))
	_, err := u.host.line(ctx, "unpack "+from, line, Command{OnStderr: func(string) {}})
	if exit, exited := errors.AsType[*ExitError](err); exited && exit.hint() == "" {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// check compares the digest of a file with the content's.
func (u *upload) check(ctx context.Context, name string) error {
	digest, err := u.digest(ctx, name)
	if err == nil && digest != u.content.Digest() {
		return fleet.Errorf(fleet.KindTemporary, "%w: %s has the digest %s", errDamaged, name, digest)
	}
	return err
}

// sum is what sha256sum writes. It begins with a backslash where the name has one or needs one.
var sum = regexp.MustCompile(`^\\?([0-9a-f]{64}) `)

// digest returns the SHA-256 of a file in hexadecimal, as the host's sha256sum says. Where there is
// none, it reads the file.
func (u *upload) digest(ctx context.Context, name string) (string, error) {
	output, err := u.host.line(ctx, "check "+name, "sha256sum "+quoteAlways(name), Command{OnStderr: func(string) {}})
	if _, exited := errors.AsType[*ExitError](err); exited {
		return u.readDigest(ctx, name)
	}
	if err != nil {
		return "", err
	}
	found := sum.FindSubmatch(output)
	if found == nil {
		return "", fleet.Errorf(fleet.KindInvalid, "check %s: sha256sum wrote %s (%s)", name, Quote(string(output)), hintNoise)
	}
	return string(found[1]), nil
}

func (u *upload) readDigest(ctx context.Context, name string) (string, error) {
	digest := ""
	err := u.host.progressing(ctx, "read "+name, func(progress func()) error {
		file, err := u.files.Open(name)
		if err != nil {
			return err
		}
		sum := &hasher{Hash: sha256.New(), room: u.content.Size(), progress: progress}
		_, err = file.WriteTo(sum)
		_ = file.Close()
		if err == nil || errors.Is(err, errDamaged) { // longer than the content
			digest = hex.EncodeToString(sum.Sum(nil))
			err = nil
		}
		return err
	})
	return digest, err
}

// hasher hashes what a host sends, up to a byte more than there should be.
type hasher struct {
	hash.Hash
	room     int64
	progress func()
}

// Write hashes p, or fails if there is no room for it.
func (s *hasher) Write(p []byte) (int, error) {
	s.progress()
	if s.room -= int64(len(p)); s.room < 0 {
		_, _ = s.Hash.Write(p)
		return 0, errDamaged
	}
	return s.Hash.Write(p)
}

// explain tells a full file system from what else a host may refuse: SFTP has no word for it.
func (u *upload) explain(ctx context.Context, directory string, err error) error {
	_, refused := errors.AsType[*sftp.StatusError](err)
	exit, exited := errors.AsType[*ExitError](err)
	if !refused && !exited || exited && exit.hint() != "" {
		return err
	}
	full := false
	_ = u.step(ctx, "look at the space", func() error {
		space, err := u.files.StatVFS(directory)
		if err != nil {
			return err
		}
		// A file system without a limit of inodes says 0 of 0.
		full = space.Frsize*space.Bavail < uint64(u.content.Size()) || space.Files > 0 && space.Favail == 0
		return nil
	})
	if !full {
		return err
	}
	// Without errDamaged in it, because another form would find no space either.
	return fleet.Errorf(fleet.KindTemporary, "%v (%s)", err, hintFull)
}

// removeStale removes what uploads have left that nobody goes on with: of other contents, and files
// that were about to be renamed. The time is the host's.
func (u *upload) removeStale(directory string) error {
	now, err := u.files.Lstat(u.path)
	if err != nil {
		return err
	}
	entries, err := u.files.ReadDir(directory)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, path.Base(u.base)+"-") && entry.Mode().IsRegular() &&
			(strings.HasSuffix(name, partSuffix) || strings.HasSuffix(name, temporarySuffix)) &&
			now.ModTime().Sub(entry.ModTime()) >= staleAfter {
			_ = u.files.Remove(path.Join(directory, path.Base(name))) // one that stays is harmless
		}
	}
	return nil
}

func suffix() string {
	random := make([]byte, 6)
	_, _ = io.ReadFull(rand.Reader, random) // never fails
	return hex.EncodeToString(random) + temporarySuffix
}
