package static

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// settled is how long ago a file was written that nobody writes any more. A younger one may be
	// half of what it is to become, and may change without a new size or time: file systems count
	// time in steps, some of a second or two.
	settled = 2 * time.Second
	// unsettled is how long the last good list stands in for a file that is written all the time.
	unsettled = 10 * time.Second
)

// file is a list in a file, which people edit and programs rewrite in place.
//
// It is read again when its size, its time or its inode is another one. While it is being written
// (settled), what is empty, malformed or lacks a host that was on the list before does not count:
// the last good list does. So a list that was read when half of it was written makes no host gone.
type file struct {
	path   string
	logger *slog.Logger

	mu sync.Mutex
	// info is that of the last reading, and at when that began; nil: there was none.
	info os.FileInfo
	at   time.Time
	// data is what was read, and says what it says, or why it cannot be understood.
	data  []byte
	says  *list
	fault error
	// good is the last list that counted, and doubt since when it stands in for a newer one.
	good  *list
	doubt time.Time
}

// read returns the list as of now.
func (f *file) read(ctx context.Context) (*list, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	info, err := statFile(f.path)
	if err != nil {
		return nil, err
	}
	if f.info == nil || !unchanged(f.info, info) || f.at.Sub(info.ModTime()) < settled {
		data, read, err := readFile(f.path)
		if errors.Is(err, errWritten) && f.good != nil && f.beingWritten(now, read) {
			return f.good, nil
		}
		if err != nil {
			return nil, err
		}
		if f.info == nil || !bytes.Equal(data, f.data) {
			f.data = data
			f.says, f.fault = newList(f.path, data)
		}
		f.info, f.at = read, now
	}
	switch finished := f.fault == nil && (f.good == nil || f.says == f.good || f.says.hasAll(f.good)); {
	case !finished && f.good != nil && f.beingWritten(now, f.info):
		f.logger.DebugContext(ctx, "host list is being written: what it said before counts", slog.String("path", f.path))
		return f.good, nil
	case f.fault != nil:
		return nil, f.fault
	}
	f.good, f.doubt = f.says, time.Time{}
	return f.good, nil
}

// beingWritten reports whether what a file holds may be unfinished, and notes since when that is
// so.
func (f *file) beingWritten(now time.Time, info os.FileInfo) bool {
	if now.Sub(info.ModTime()).Abs() >= settled {
		f.doubt = time.Time{}
		return false
	}
	if f.doubt.IsZero() {
		f.doubt = now
	}
	return now.Sub(f.doubt) < unsettled
}

// errWritten is the error for a file that was written while it was read.
var errWritten = fleet.Errorf(fleet.KindTemporary, "it was written while it was read")

// unchanged reports whether a file is the one that it was, as far as its attributes tell.
func unchanged(a, b os.FileInfo) bool {
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
}

// statFile returns the attributes of a list. A list that is not there says nothing about its hosts,
// so no error is of kind NotFound.
func statFile(path string) (os.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindTemporary, "read host list: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fleet.Errorf(fleet.KindInvalid, "read host list: %s is not a file", path)
	}
	return info, nil
}

// readings is how often a file is read that is written meanwhile.
const readings = 3

// readFile returns what a list holds, and its attributes, which were the same before and after. The
// attributes come with errWritten, too.
func readFile(path string) ([]byte, os.FileInfo, error) { return readWhole(path, readOnce) }

func readWhole(path string, read func(string) ([]byte, error)) (data []byte, info os.FileInfo, err error) {
	before, err := statFile(path)
	if err != nil {
		return nil, nil, err
	}
	for range readings {
		if data, err = read(path); err != nil {
			return nil, nil, err
		}
		after, err := statFile(path)
		if err != nil {
			return nil, nil, err
		}
		if unchanged(before, after) && int64(len(data)) == after.Size() {
			return data, after, nil
		}
		before = after
	}
	return nil, before, fleet.Errorf(fleet.KindTemporary, "read host list %s: %w", path, errWritten)
}

func readOnce(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindTemporary, "read host list: %w", err)
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, listSize+1))
	if err != nil {
		return nil, fleet.Errorf(fleet.KindTemporary, "read host list: %w", err)
	}
	if len(data) > listSize {
		return nil, fleet.Errorf(fleet.KindInvalid, "host list %s has more than %d bytes", path, listSize)
	}
	return data, nil
}
