package kexec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// archive writes a cpio archive in the format that the kernel reads ("newc"), until a write fails.
// It makes the directories of a file that are not there yet.
type archive struct {
	out   io.Writer
	made  map[string]bool
	inode int
	err   error
}

// File types and devices (stat.h).
const (
	typeFile      = 0o100000
	typeDirectory = 0o040000
	typeCharacter = 0o020000
)

func newArchive(w io.Writer) *archive { return &archive{out: w, made: map[string]bool{"/": true}} }

// record writes one entry. Header and data are each padded to a multiple of four bytes.
func (a *archive) record(name string, mode uint64, major, minor int, data []byte) {
	if a.err != nil {
		return
	}
	if len(data) > 1<<32-1 {
		a.err = errors.New(name + " is too large")
		return
	}
	a.inode++
	var header bytes.Buffer
	// magic, inode, mode, uid, gid, links, mtime, size, device, device of the entry, name's size,
	// check
	_, _ = fmt.Fprintf(&header, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.inode, mode, 0, 0, 1, 0, len(data), 0, 0,
		major, minor, len(name)+1, 0)
	header.WriteString(name)
	header.WriteByte(0)
	for _, part := range [][]byte{header.Bytes(), padding(header.Len()), data, padding(len(data))} {
		if a.err == nil {
			_, a.err = a.out.Write(part)
		}
	}
}

func padding(size int) []byte { return make([]byte, (4-size%4)%4) }

// directory writes a directory after those above it, once.
func (a *archive) directory(name string) {
	if a.made[name] {
		return
	}
	a.made[name] = true
	a.directory(path.Dir(name))
	a.record(strings.TrimPrefix(name, "/"), typeDirectory|0o755, 0, 0, nil)
}

func (a *archive) file(f File) {
	a.directory(path.Dir(f.Path))
	a.record(strings.TrimPrefix(f.Path, "/"), typeFile|f.Mode, 0, 0, f.Data)
}

// close ends the archive.
func (a *archive) close() error {
	a.record("TRAILER!!!", 0, 0, 0, nil)
	return a.err
}
