package sshhost

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// files is a machine's file system. Names are absolute, or relative to /root; none leads out of the
// machine's directory.
type files struct {
	dir      string
	root     *os.Root
	store    *Store
	observer Observer
}

func openFiles(dir string, store *Store, observer Observer) (*files, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &files{dir: dir, root: root, store: store, observer: observer}, nil
}

func (f *files) close() { _ = f.root.Close() }

// inside turns a name on the machine into one below its directory.
func inside(name string) string {
	if !path.IsAbs(name) {
		name = path.Join("/root", name)
	}
	if name = strings.TrimPrefix(path.Clean(name), "/"); name == "" {
		return "."
	}
	return name
}

// outside is where a name on the machine is found by the simulator.
func (f *files) outside(name string) string { return filepath.Join(f.dir, inside(name)) }

func (f *files) open(name string) (*os.File, error)     { return f.root.Open(inside(name)) }
func (f *files) stat(name string) (fs.FileInfo, error)  { return f.root.Stat(inside(name)) }
func (f *files) lstat(name string) (fs.FileInfo, error) { return f.root.Lstat(inside(name)) }

// shared reports whether the file is an inode that other machines have too.
func shared(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().IsRegular() && stat.Nlink > 1
}

// openWrite opens a file to be written, as open(2) would with those flags. A shared inode is left
// to the others.
func (f *files) openWrite(name string, flag int, mode fs.FileMode) (*outputFile, error) {
	name = inside(name)
	if info, err := f.root.Lstat(name); err == nil && shared(info) && flag&os.O_EXCL == 0 {
		if err := f.unshare(name, info, flag&os.O_TRUNC == 0); err != nil {
			return nil, err
		}
		flag |= os.O_CREATE
	}
	file, err := f.root.OpenFile(name, flag, mode)
	if err != nil {
		return nil, err
	}
	return &outputFile{File: file, files: f, name: name}, nil
}

// create opens a file to be written from its beginning, or its end.
func (f *files) create(name string, mode fs.FileMode, atEnd bool) (*outputFile, error) {
	flag := os.O_RDWR | os.O_CREATE
	if !atEnd {
		flag |= os.O_TRUNC
	}
	file, err := f.openWrite(name, flag, mode)
	if err == nil && atEnd {
		_, err = file.Seek(0, io.SeekEnd)
	}
	return file, err
}

// unshare replaces a shared file by one of the machine's own, with the same content if that is
// wanted.
func (f *files) unshare(name string, info fs.FileInfo, keep bool) (err error) {
	if !keep {
		return f.root.Remove(name)
	}
	source, err := f.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	temporary := name + ".unshare"
	target, err := f.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	if err = errors.Join(err, target.Close()); err == nil {
		err = f.root.Rename(temporary, name)
	}
	if err != nil {
		_ = f.root.Remove(temporary)
	}
	return err
}

// chmod sets the mode of a file, of this machine alone.
func (f *files) chmod(name string, mode fs.FileMode) error {
	name = inside(name)
	info, err := f.root.Stat(name)
	if err != nil || info.Mode().Perm() == mode.Perm() {
		return err
	}
	if !shared(info) {
		return f.root.Chmod(name, mode.Perm())
	}
	if content, ok := f.store.lookup(info); ok {
		content.mode = mode.Perm()
		return f.replace(name, content, func() (*os.File, error) { return f.root.Open(name) })
	}
	if err := f.unshare(name, info, true); err != nil {
		return err
	}
	return f.root.Chmod(name, mode.Perm())
}

// digest returns the SHA-256 of a file that is kept in the store, without reading it.
func (f *files) digest(file any) (string, bool) {
	open, ok := file.(*os.File)
	if !ok {
		return "", false
	}
	info, err := open.Stat()
	if err != nil {
		return "", false
	}
	content, ok := f.store.lookup(info)
	return content.digest, ok
}

// replace makes name a link to the content, which is taken from source if the store does not have
// it yet. Where the store cannot share it (too many links to the inode), the machine gets a copy.
func (f *files) replace(name string, c content, source func() (*os.File, error)) error {
	temporary := name + ".share"
	dir, err := f.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	_ = f.root.Remove(temporary)
	if err := f.store.link(c, dir, path.Base(temporary), source); err != nil {
		return fmt.Errorf("share %s: %w", path.Base(name), err)
	}
	return f.root.Rename(temporary, name)
}

// outputFile is a file that is being written by a client. When it is closed, large contents become
// shared.
type outputFile struct {
	*os.File
	files *files
	name  string
	// done is set when the content is in place already.
	done bool
	// received is how much came over the wire, when that is not what was written.
	received int64
	// local is set when nothing came over the wire: another file was decompressed.
	local bool
}

// Close ends the writing.
func (o *outputFile) Close() error {
	if o.done {
		return o.File.Close()
	}
	o.done = true
	info, err := o.Stat()
	if err != nil {
		return errors.Join(err, o.File.Close())
	}
	if o.files.observer != nil && !o.local {
		o.files.observer.Uploaded(cmp.Or(o.received, info.Size()))
	}
	if info.Size() < shareAbove {
		return o.File.Close()
	}
	digest, err := digestOf(o.File)
	if err := errors.Join(err, o.File.Close()); err != nil {
		return err
	}
	// What another client did to the name meanwhile stays as it is.
	now, err := o.files.root.Lstat(o.name)
	if err != nil || !os.SameFile(info, now) {
		return nil //nolint:nilerr // what was written was written
	}
	return o.files.replace(o.name, content{digest, info.Mode().Perm()}, func() (*os.File, error) { return o.files.root.Open(o.name) })
}

// inflate fills the file with the decompressed content of a gzip stream. Streams that were seen
// before are not decompressed again.
func (o *outputFile) inflate(stream io.Reader) error {
	packed, digest, err := o.files.store.spool(stream)
	if err != nil {
		return err
	}
	defer packed.discard()
	info, err := o.Stat()
	if err != nil {
		return err
	}
	if known, ok := o.files.store.inflated(digest); ok && o.files.store.has(content{known, info.Mode().Perm()}) {
		if err := o.files.replace(o.name, content{known, info.Mode().Perm()}, o.files.store.missing); err != nil {
			return err
		}
		o.done = true
		if o.files.observer != nil && !o.local {
			o.files.observer.Uploaded(packed.size)
		}
		return nil
	}
	o.received = packed.size
	if err := packed.inflate(o.File); err != nil {
		return err
	}
	whole, err := digestOf(o.File)
	if err == nil {
		o.files.store.remember(digest, whole)
	}
	return err
}
