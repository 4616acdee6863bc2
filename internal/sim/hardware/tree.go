package hardware

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// tree is a file tree in memory: paths without a leading slash.
type tree struct {
	dirs    []string
	known   map[string]bool
	files   []file
	symlink [][2]string
}

type file struct {
	path    string
	content string
	// own is set for content that no other machine has.
	own  bool
	mode os.FileMode
}

func newTree() *tree { return &tree{known: map[string]bool{".": true}} }

// dir adds a directory and those above it.
func (t *tree) dir(name string) {
	if t.known[name] {
		return
	}
	t.dir(path.Dir(name))
	t.known[name] = true
	t.dirs = append(t.dirs, name)
}

// file adds an attribute that machines have in common; a newline is added, as sysfs does.
func (t *tree) file(name, content string) { t.raw(name, content+"\n", false) }

// own adds an attribute that is this machine's alone.
func (t *tree) own(name, content string) { t.raw(name, content+"\n", true) }

func (t *tree) raw(name, content string, own bool) {
	t.dir(path.Dir(name))
	t.files = append(t.files, file{name, content, own, 0o444})
}

// link adds a relative symbolic link at name to target, both from the root.
func (t *tree) link(name, target string) {
	dir := path.Dir(name)
	t.dir(dir)
	relative, _ := filepath.Rel("/"+dir, "/"+target) // cannot fail: both are absolute
	t.symlink = append(t.symlink, [2]string{name, relative})
}

// Shared keeps one inode for each content that machines have in common. Its methods may be called
// concurrently.
type Shared struct {
	dir string
	mu  sync.Mutex
	// copies is how often the file of a content has been begun anew, because a file system bounds the
	// links to an inode.
	copies map[[32]byte]int
}

// NewShared keeps the inodes in a directory, which is made if it does not exist.
func NewShared(dir string) (*Shared, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("shared files: %w", err)
	}
	return &Shared{dir: dir, copies: map[[32]byte]int{}}, nil
}

// link makes name a file of that content.
func (s *Shared) link(name, content string) error {
	sum := sha256.Sum256([]byte(content))
	s.mu.Lock()
	n := s.copies[sum]
	s.mu.Unlock()
	source := s.source(sum, n)
	err := os.Link(source, name)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EMLINK):
		s.mu.Lock()
		s.copies[sum] = max(s.copies[sum], n+1)
		s.mu.Unlock()
		return s.link(name, content)
	case errors.Is(err, os.ErrNotExist):
		if err := s.create(source, content); err != nil {
			return err
		}
		return os.Link(source, name)
	}
	return err
}

func (s *Shared) source(sum [32]byte, n int) string {
	return filepath.Join(s.dir, fmt.Sprintf("%s.%d", hex.EncodeToString(sum[:16]), n))
}

// create makes the file source whole or not at all. Where another caller made it meanwhile, that
// one stays: to replace it would take it away from whoever is about to link it.
func (s *Shared) create(source, content string) error {
	temporary, err := os.CreateTemp(s.dir, "new-")
	if err != nil {
		return err
	}
	_, err = temporary.WriteString(content)
	err = errors.Join(err, temporary.Chmod(0o444), temporary.Close())
	if err == nil {
		err = os.Link(temporary.Name(), source)
	}
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(temporary.Name()))
}

// write puts the tree below root, where nothing of it may exist but directories.
func (t *tree) write(root string, shared *Shared) error {
	at := func(name string) string { return root + "/" + name }
	for _, name := range t.dirs {
		if err := os.Mkdir(at(name), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	for _, f := range t.files {
		var err error
		if f.own {
			err = os.WriteFile(at(f.path), []byte(f.content), f.mode)
		} else {
			err = shared.link(at(f.path), f.content)
		}
		if err != nil {
			return err
		}
	}
	for _, l := range t.symlink {
		if err := os.Symlink(l[1], at(l[0])); err != nil {
			return err
		}
	}
	return nil
}

func lines(pairs ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(&b, "%s\t: %s\n", pairs[i], pairs[i+1])
	}
	return b.String()
}
