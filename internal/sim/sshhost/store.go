package sshhost

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"
)

// shareAbove is the size from which contents are shared, in bytes.
const shareAbove = 64 << 10

// content is what a shared inode holds, and its mode: a mode belongs to the inode.
type content struct {
	digest string
	mode   fs.FileMode
}

// inode identifies a file on disk.
type inode struct{ device, number uint64 }

func inodeOf(info fs.FileInfo) (inode, bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}, false
	}
	// The type of Dev differs between systems.
	return inode{uint64(stat.Dev), stat.Ino}, true //nolint:unconvert // see above
}

// Store keeps contents that machines have in common, one inode for each content and mode: machines
// get links to it. It is a directory of files named by digest and mode, on the file system of the
// machines. Its methods may be called concurrently.
type Store struct {
	dir string

	mu     sync.Mutex
	inodes map[inode]content
	known  map[content]bool
	// unpacked maps the digest of a gzip stream to that of its content.
	unpacked map[string]string
}

// OpenStore opens the store in a directory, which is made if it does not exist.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("content store: %w", err)
	}
	s := &Store{dir: dir, inodes: map[inode]content{}, known: map[content]bool{}, unpacked: map[string]string{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("content store: %w", err)
	}
	for _, entry := range entries {
		digest, mode, ok := strings.Cut(entry.Name(), ".")
		bits, err := strconv.ParseUint(mode, 8, 12)
		if !ok || err != nil || len(digest) != 2*sha256.Size {
			_ = os.Remove(filepath.Join(dir, entry.Name())) // left by a process that was killed
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return nil, fmt.Errorf("content store: %w", err)
		}
		s.add(content{digest, fs.FileMode(bits)}, info)
	}
	return s, nil
}

func (s *Store) add(c content, info fs.FileInfo) {
	if id, ok := inodeOf(info); ok {
		s.mu.Lock()
		s.inodes[id], s.known[c] = c, true
		s.mu.Unlock()
	}
}

func (s *Store) path(c content) string {
	return filepath.Join(s.dir, fmt.Sprintf("%s.%04o", c.digest, c.mode.Perm()))
}

// lookup tells what a file holds, if it is one of the store's.
func (s *Store) lookup(info fs.FileInfo) (content, bool) {
	id, ok := inodeOf(info)
	if !ok {
		return content{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.inodes[id]
	return c, ok
}

func (s *Store) has(c content) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[c]
}

// missing is a source for content that the store has.
func (s *Store) missing() (*os.File, error) { return nil, fs.ErrNotExist }

// link makes base in the directory a link to the content, or a copy of it where the file system
// allows no further link.
func (s *Store) link(c content, dir *os.File, base string, source func() (*os.File, error)) error {
	if !s.has(c) {
		if err := s.fill(c, source); err != nil {
			return err
		}
	}
	err := unix.Linkat(unix.AT_FDCWD, s.path(c), int(dir.Fd()), base, 0)
	if !errors.Is(err, syscall.EMLINK) {
		return err
	}
	file, err := os.Open(s.path(c))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(c.mode.Perm()))
	if err != nil {
		return err
	}
	target := os.NewFile(uintptr(fd), base)
	_, err = io.Copy(target, file)
	return errors.Join(err, target.Chmod(c.mode.Perm()), target.Close())
}

// fill puts content into the store. Two callers may do so at once; the second inode is the one that
// stays.
func (s *Store) fill(c content, source func() (*os.File, error)) error {
	from, err := source()
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	file, err := os.CreateTemp(s.dir, "new-")
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	err = errors.Join(err, file.Chmod(c.mode.Perm()))
	info, statErr := file.Stat()
	if err = errors.Join(err, statErr, file.Close()); err == nil {
		err = os.Rename(file.Name(), s.path(c))
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return err
	}
	s.add(c, info)
	return nil
}

// inflated returns the digest of what a gzip stream of that digest decompresses to, if such a
// stream was seen.
func (s *Store) inflated(stream string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	digest, ok := s.unpacked[stream]
	return digest, ok
}

func (s *Store) remember(stream, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpacked[stream] = digest
}

// spooled is a stream that was received whole.
type spooled struct {
	memory *bytes.Buffer
	size   int64
}

// spoolLimit bounds what a stream may have, in bytes; an agent has about 5 MB.
const spoolLimit = 256 << 20

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// spool receives a stream to its end.
func (s *Store) spool(stream io.Reader) (*spooled, string, error) {
	buffer := buffers.Get().(*bytes.Buffer)
	buffer.Reset()
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(buffer, hash), io.LimitReader(stream, spoolLimit+1))
	if err == nil && n > spoolLimit {
		err = errors.New("the input is too large")
	}
	if err != nil {
		buffers.Put(buffer)
		return nil, "", err
	}
	return &spooled{buffer, n}, hex.EncodeToString(hash.Sum(nil)), nil
}

func (p *spooled) discard() { buffers.Put(p.memory) }

func (p *spooled) inflate(target io.Writer) error {
	reader, err := gzip.NewReader(bytes.NewReader(p.memory.Bytes()))
	if err != nil {
		return err
	}
	_, err = io.Copy(target, reader)
	return err
}

func digestOf(file *os.File) (string, error) {
	hash := sha256.New()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(hash, io.NewSectionReader(file, 0, info.Size())); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// Content is something that the store keeps, to be placed on machines.
type Content struct {
	store   *Store
	content content
}

// Add keeps the content of a file, with that mode.
func (s *Store) Add(file string, mode fs.FileMode) (Content, error) {
	source, err := os.Open(file)
	if err != nil {
		return Content{}, err
	}
	defer func() { _ = source.Close() }()
	digest, err := digestOf(source)
	if err != nil {
		return Content{}, err
	}
	c := content{digest, mode.Perm()}
	if !s.has(c) {
		err = s.fill(c, func() (*os.File, error) { return os.Open(file) })
	}
	return Content{s, c}, err
}

// Place makes name, a path in the machine whose file system is the directory root, that content.
// Directories on the way are made; nothing of that name may be there.
func (c Content) Place(root, name string) error {
	target := filepath.Join(root, inside(name))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(target))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return c.store.link(c.content, dir, filepath.Base(target), c.store.missing)
}
