package sshhost

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/pkg/sftp"
)

// fileHandler answers SFTP requests from a machine's file system.
type fileHandler struct{ *files }

// Fileread opens a file for reading.
func (h *fileHandler) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	file, err := h.open(r.Filepath)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = errors.New("is a directory")
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// Filewrite opens a file for writing.
func (h *fileHandler) Filewrite(r *sftp.Request) (io.WriterAt, error) { return h.OpenFile(r) }

// OpenFile opens a file as the flags say.
func (h *fileHandler) OpenFile(r *sftp.Request) (sftp.WriterAtReaderAt, error) {
	want := r.Pflags()
	flag := os.O_RDWR
	for _, f := range []struct {
		set bool
		bit int
	}{{want.Creat, os.O_CREATE}, {want.Trunc, os.O_TRUNC}, {want.Excl, os.O_EXCL}} {
		if f.set {
			flag |= f.bit
		}
	}
	mode := fs.FileMode(0o644)
	if r.AttrFlags().Permissions {
		mode = r.Attributes().FileMode().Perm()
	}
	file, err := h.openWrite(r.Filepath, flag, mode)
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Filecmd changes the tree.
func (h *fileHandler) Filecmd(r *sftp.Request) error {
	name, target := inside(r.Filepath), inside(r.Target)
	switch r.Method {
	case "Setstat":
		return h.setstat(r)
	case "Rename":
		if _, err := h.root.Lstat(target); err == nil {
			return fs.ErrExist // what version 3 of the protocol demands
		}
		return h.root.Rename(name, target)
	case "Rmdir":
		info, err := h.root.Lstat(name)
		if err == nil && !info.IsDir() {
			err = errors.New("not a directory")
		}
		if err != nil {
			return err
		}
		return h.root.Remove(name)
	case "Remove":
		return h.root.Remove(name)
	case "Mkdir":
		return h.root.Mkdir(name, 0o755)
	case "Link":
		return h.root.Link(name, target)
	case "Symlink":
		// The protocol's order: Filepath is what the link says, Target is where it is.
		return h.root.Symlink(r.Filepath, target)
	}
	return sftp.ErrSSHFxOpUnsupported
}

// PosixRename renames, over whatever is there.
func (h *fileHandler) PosixRename(r *sftp.Request) error {
	return h.root.Rename(inside(r.Filepath), inside(r.Target))
}

func (h *fileHandler) setstat(r *sftp.Request) error {
	set, attributes := r.AttrFlags(), r.Attributes()
	name := inside(r.Filepath)
	if set.Permissions {
		if err := h.chmod(r.Filepath, attributes.FileMode()); err != nil {
			return err
		}
	}
	if set.Size {
		file, err := h.openWrite(r.Filepath, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(file.Truncate(int64(attributes.Size)), file.Close()); err != nil {
			return err
		}
	}
	if set.Acmodtime {
		return h.root.Chtimes(name, time.Unix(int64(attributes.Atime), 0), time.Unix(int64(attributes.Mtime), 0))
	}
	return nil // everything belongs to root
}

// Filelist lists a directory or describes a file.
func (h *fileHandler) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "List":
		dir, err := h.open(r.Filepath)
		if err != nil {
			return nil, err
		}
		defer func() { _ = dir.Close() }()
		entries, err := dir.Readdir(-1)
		return infos(entries), err
	case "Stat":
		info, err := h.stat(r.Filepath)
		if err != nil {
			return nil, err
		}
		return infos{named{info, path.Base(r.Filepath)}}, nil
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat describes a file without following a link.
func (h *fileHandler) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	info, err := h.lstat(r.Filepath)
	if err != nil {
		return nil, err
	}
	return infos{named{info, path.Base(r.Filepath)}}, nil
}

// Readlink reads a link.
func (h *fileHandler) Readlink(name string) (string, error) { return h.root.Readlink(inside(name)) }

// named is a file's description under the name that was asked for.
type named struct {
	fs.FileInfo
	name string
}

// Name returns the name.
func (n named) Name() string { return n.name }

// Uid and Gid say that everything belongs to root, whoever runs the simulator.
func (n named) Uid() uint32 { return 0 } //nolint:revive // the name that package sftp looks for

// Gid is as Uid.
func (n named) Gid() uint32 { return 0 }

// infos is a list of files.
type infos []fs.FileInfo

// ListAt copies the files from offset on.
func (l infos) ListAt(target []fs.FileInfo, offset int64) (int, error) {
	if offset >= int64(len(l)) {
		return 0, io.EOF
	}
	n := copy(target, l[offset:])
	if n < len(target) {
		return n, io.EOF
	}
	return n, nil
}
