package static

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	// settled is for how long a file has the same size and time when nobody writes it any more. Before
	// that it may be half of what it is to become, and may change without a new size or time: file
	// systems count time in steps, some of a second or two.
	settled = 2 * time.Second
	// unsettled is for how long a reading waits for a file that is written all the time.
	unsettled = 10 * time.Second
	// readLimit bounds the wait for one reading.
	readLimit = time.Minute
)

// errHangs is why nobody waits longer.
var errHangs = fleet.Errorf(fleet.KindTimeout, "it did not answer within %s", readLimit)

// file is a list in a file, which people edit and programs rewrite in place.
//
// It is read again when its size, its time or its inode is another one. Nothing counts that is new
// in it until these have stayed as they are for a while (settled): half of a list makes no host
// gone, and half of an address is not taken for a host's. A reading waits for that, by this host's
// clock: the time of a file is that of the file server, which may be any other.
//
// At most one reading is under way; all who ask meanwhile wait for it, or for their context, for
// some time at most (readLimit). One that hangs, as on a network file system, is not begun again.
type file struct {
	path string
	load func(path string) ([]byte, os.FileInfo, error)

	mu sync.Mutex
	// under is the reading that is under way; nil: none is. It alone touches what follows.
	under *flight
	// met is the newest state of the file that was read, and since when that had been read for the
	// first time; nil: none was.
	met   os.FileInfo
	since time.Time
	// info is that of the last reading which counted; nil: there was none.
	info os.FileInfo
	// says is what it says, or fault why it cannot be understood.
	says  *list
	fault error
}

// read returns the list as of now.
func (f *file) read(ctx context.Context) (*list, error) {
	f.mu.Lock()
	under := f.under
	if under == nil {
		under = &flight{done: make(chan struct{})}
		f.under = under
		go func() {
			under.says, under.fault = f.look()
			f.mu.Lock()
			defer f.mu.Unlock()
			f.under = nil
			close(under.done)
		}()
	}
	f.mu.Unlock()
	limited, cancel := context.WithTimeoutCause(ctx, readLimit, errHangs)
	defer cancel()
	return under.wait(limited, "read host list "+f.path)
}

// look looks whether the file has changed, and returns what counts.
func (f *file) look() (*list, error) {
	for begin := time.Now(); ; {
		now := time.Now()
		info, err := statFile(f.path)
		if err != nil {
			return nil, err
		}
		if f.info != nil && unchanged(f.info, info) {
			return f.says, f.fault
		}
		data, info, err := f.load(f.path)
		if err != nil && !errors.Is(err, errWritten) {
			return nil, err
		}
		if f.met == nil || !unchanged(f.met, info) {
			f.met, f.since = info, time.Now()
		}
		if err == nil {
			says, fault := newList(f.path, data, f.says)
			if now.Sub(f.since) >= settled {
				f.info, f.says, f.fault = info, says, fault
				return says, fault
			}
			if says.same(f.says) {
				return f.says, f.fault
			}
			err = fleet.Errorf(fleet.KindTemporary, "host list %s may be unfinished: it counts when nobody has written it for %s", f.path, settled)
		}
		if now.Sub(begin) >= unsettled {
			return nil, err
		}
		<-time.After(settled)
	}
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
