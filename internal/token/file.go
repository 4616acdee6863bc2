package token

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
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

// Last returns, for each role that has one, the token that lasts longest of those that count at
// that time, or were made for 30 days or longer and have expired within the last 30, by the order
// of the roles. The error is that of Find.
func (f *File) Last(now time.Time) (last []Token, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	for _, role := range Roles() {
		var longest Token
		for _, t := range f.byHash {
			lasting := !t.Expired(now) || now.Sub(t.Expires) < keepExpired && t.Expires.Sub(t.Created) >= keepExpired
			if t.Role == role && lasting && t.Expires.After(longest.Expires) {
				longest = t
			}
		}
		if longest.Role == role {
			last = append(last, longest)
		}
	}
	return last, f.err
}

// Counts reports whether any token counts. The error is that of Find.
func (f *File) Counts(now time.Time) (bool, error) {
	last, err := f.Last(now)
	return slices.ContainsFunc(last, func(t Token) bool { return !t.Expired(now) }), err
}

// RunsOut reports whether the last token of a role expires soon, or has expired.
func (f *File) RunsOut(role Role, now time.Time) bool {
	last, _ := f.Last(now)
	return slices.ContainsFunc(last, func(t Token) bool { return t.Role == role && t.ExpiresSoon(now) })
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
