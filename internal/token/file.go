package token

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// File is a file of tokens as a server uses it: it is read again when it has changed.
type File struct {
	path   string
	logger *slog.Logger

	mu     sync.Mutex
	seen   version
	byHash map[string]Token
	err    error
}

// version tells one state of a file from another. Write replaces the file, so its inode changes; a
// time or a size tells of other programs.
type version struct {
	inode         uint64
	size, changed int64
	mode          fs.FileMode
}

// Open returns the tokens of a file; the file need not be there. An error is of kind Invalid. Where
// the file is damaged, what is returned beside the error lets nobody in until the file is whole.
func Open(path string, logger *slog.Logger) (*File, error) {
	f := &File{path: path, logger: logger}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	return f, f.err
}

// Find returns the token that is this text, expired or not. An error says that the tokens cannot be
// told at the moment; the log has the cause.
func (f *File) Find(text string) (found Token, ok bool, err error) {
	hash := hashOf(text)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	found, ok = f.byHash[hash]
	return found, ok, f.err
}

// Last returns the token that counts longest; ok is false when none counts at that time. The error
// is that of Find.
func (f *File) Last(now time.Time) (last Token, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	for _, t := range f.byHash {
		if !t.Expired(now) && t.Expires.After(last.Expires) {
			last, ok = t, true
		}
	}
	return last, ok, f.err
}

// RunsOut reports whether no token counts, or none that does not expire soon.
func (f *File) RunsOut(now time.Time) bool {
	last, ok, _ := f.Last(now)
	return !ok || last.ExpiresSoon(now)
}

// refresh reads the file if it is not as it was.
func (f *File) refresh() {
	now, err := versionOf(f.path)
	if err == nil && f.err == nil && f.byHash != nil && now == f.seen {
		return
	}
	var all []Token
	if err == nil {
		all, err = Read(f.path)
	}
	if err != nil && (f.err == nil || f.err.Error() != err.Error()) {
		f.logger.Error("the tokens of the operator API cannot be read; none counts until they can", slog.Any("err", err))
	}
	f.seen, f.err, f.byHash = now, err, make(map[string]Token, len(all))
	for _, t := range all {
		f.byHash[t.Hash] = t
	}
}

func versionOf(path string) (version, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return version{}, nil
	}
	if err != nil {
		return version{}, err
	}
	v := version{size: info.Size(), changed: info.ModTime().UnixNano(), mode: info.Mode()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		v.inode = stat.Ino
	}
	return v, nil
}
