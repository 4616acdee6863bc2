package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/pkg/sftp"
	"golang.org/x/sync/errgroup"

	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// packet is how much of a file one request carries: what every SFTP server takes.
	packet = 32 << 10
	// inFlight is how many such requests, from the first without an answer on, may have been sent.
	inFlight = 8
)

// sftpDisk is a disk over SFTP.
type sftpDisk struct {
	host  *Host
	files *sftp.Client
}

func (d *sftpDisk) step(ctx context.Context, what string, do func() error) error {
	return d.host.within(ctx, d.host.step, what, do)
}

func (d *sftpDisk) own(ctx context.Context, directory string, uid uint32) (whole string, err error) {
	err = d.step(ctx, "prepare "+directory, func() (err error) {
		whole, err = d.ownDirectory(directory, uid)
		return err
	})
	if err != nil {
		return "", err
	}
	return whole, nil
}

func (d *sftpDisk) ownDirectory(directory string, uid uint32) (string, error) {
	if err := d.makeDirectory(directory); err != nil {
		return "", err
	}
	whole, err := d.files.RealPath(directory)
	if err != nil {
		return "", err
	}
	if !path.IsAbs(whole) {
		return "", fleet.Errorf(fleet.KindInvalid, "the host says that %s is %s", directory, Quote(whole))
	}
	whole = path.Clean(whole)
	var above []entry
	for at := whole; ; at = path.Dir(at) {
		info, err := d.files.Lstat(at)
		if err != nil {
			return "", err
		}
		above = append(above, entryOf(info))
		if at == "/" {
			return whole, checkDirectories(whole, above, uid)
		}
	}
}

// makeDirectory makes a directory and those above it.
func (d *sftpDisk) makeDirectory(directory string) error {
	if _, err := d.files.Stat(directory); !errors.Is(err, fs.ErrNotExist) || directory == "/" {
		return err
	}
	if err := d.makeDirectory(path.Dir(directory)); err != nil {
		return err
	}
	if err := d.files.Mkdir(directory); err != nil {
		if _, again := d.files.Stat(directory); again == nil {
			return nil // somebody else was faster
		}
		return err
	}
	return d.files.Chmod(directory, 0o700)
}

func entryOf(info fs.FileInfo) entry {
	e := entry{mode: info.Mode(), size: info.Size()}
	if stat, ok := info.Sys().(*sftp.FileStat); ok {
		e.uid = stat.UID
	}
	return e
}

func (d *sftpDisk) look(ctx context.Context, name string) (found entry, err error) {
	there := false
	err = d.step(ctx, "look for "+shown(name), func() error {
		info, err := d.files.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			there, found = true, entryOf(info)
		}
		return err
	})
	switch {
	case err != nil:
		return entry{}, err
	case !there:
		return entry{}, fs.ErrNotExist
	}
	return found, nil
}

func (d *sftpDisk) chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return d.step(ctx, "chmod "+shown(name), func() error { return d.files.Chmod(name, mode.Perm()) })
}

func (d *sftpDisk) rename(ctx context.Context, from, to string) error {
	return d.step(ctx, "rename "+shown(from), func() error { return d.files.PosixRename(from, to) })
}

func (d *sftpDisk) remove(ctx context.Context, names ...string) {
	_ = d.step(ctx, "remove", func() error {
		for _, name := range names {
			_ = d.files.Remove(name)
		}
		return nil
	})
}

// write sends the end of what is there already once more: what was on its way when an earlier
// upload broke off may have holes.
func (d *sftpDisk) write(ctx context.Context, name string, data []byte, uid uint32) (int64, error) {
	var file *sftp.File
	var from int64
	err := d.step(ctx, "open "+shown(name), func() (err error) {
		info, err := d.files.Lstat(name)
		switch {
		case err == nil && info.Mode().IsRegular() && entryOf(info).owned(uid) && info.Size() <= int64(len(data)):
			from = max(0, info.Size()-inFlight*packet) / packet * packet
		case err == nil:
			if err := d.files.Remove(name); err != nil {
				return err
			}
		}
		if file, err = d.files.OpenFile(name, os.O_WRONLY|os.O_CREATE); err != nil {
			return err
		}
		return d.files.Chmod(name, 0o600)
	})
	if err != nil {
		return 0, err
	}
	err = d.host.progressing(ctx, "write "+shown(name), func(progress func()) error {
		return errors.Join(writePackets(ctx, file, data, from, progress), file.Close())
	})
	return int64(len(data)) - from, err
}

// writePackets writes data[from:] to its place in the file, several packets at once, and calls
// progress after each. A packet is sent only when the one inFlight before it was answered: whenever
// this breaks off, all but the last inFlight packets of the file are there.
func writePackets(ctx context.Context, file io.WriterAt, data []byte, from int64, progress func()) error {
	packets, writing := errgroup.WithContext(ctx)
	var answered [inFlight]chan struct{} // of the last packets, in turn
	for i, at := 0, from; at < int64(len(data)); i, at = i+1, at+packet {
		if before := answered[i%inFlight]; before != nil {
			select {
			case <-before:
			case <-writing.Done():
				return packets.Wait()
			}
		}
		done := make(chan struct{})
		answered[i%inFlight] = done
		packets.Go(func() error {
			_, err := file.WriteAt(data[at:min(at+packet, int64(len(data)))], at)
			if err == nil {
				progress()
				close(done)
			}
			return err
		})
	}
	return packets.Wait()
}

func (d *sftpDisk) digest(ctx context.Context, name string, size int64) (string, error) {
	digest := ""
	err := d.host.progressing(ctx, "read "+shown(name), func(progress func()) error {
		file, err := d.files.Open(name)
		if err != nil {
			return err
		}
		sum := &hasher{Hash: sha256.New(), room: size, progress: progress}
		_, err = file.WriteTo(sum)
		_ = file.Close()
		if err == nil || errors.Is(err, errDamaged) { // longer than the content
			digest = hex.EncodeToString(sum.Sum(nil))
			err = nil
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return digest, nil
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

// readOnly is the flag of a file system that nothing can be written to (ST_RDONLY).
const readOnly = 1

// explain asks for the state of the file system, because SFTP has no word for a full or a read-only
// one.
func (d *sftpDisk) explain(ctx context.Context, directory string, size int64, err error) error {
	_, refused := errors.AsType[*sftp.StatusError](err)
	exit, exited := errors.AsType[*ExitError](err)
	if !refused && !exited || exited && exit.hint() != "" {
		return err
	}
	hint := ""
	_ = d.step(ctx, "look at the space", func() error {
		space, err := d.files.StatVFS(directory)
		for err != nil && directory != "/" { // it could not be made
			directory = path.Dir(directory)
			space, err = d.files.StatVFS(directory)
		}
		switch {
		case err != nil:
		case space.Flag&readOnly != 0:
			hint = hintReadOnly
		// A file system without a limit of inodes says 0 of 0.
		case space.Frsize*space.Bavail < uint64(size) || space.Files > 0 && space.Favail == 0:
			hint = hintFull
		}
		return err
	})
	if hint == "" {
		return err
	}
	// Without errDamaged in it, because another form would find no space either.
	return &DirectoryError{Err: fleet.Errorf(fleet.KindTemporary, "%v (%s)", err, hint), hint: hint}
}
