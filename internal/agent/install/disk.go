package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// zeroBlock is the granularity in which zeros are looked for.
const zeroBlock = 32 << 10

// maxSector is the largest logical sector. What is written past the kernel's cache must be whole
// sectors, and so must what is made zeros on a device without writing.
const maxSector = 4096

// maxZeros is the most that the disk makes zeros at a time. It cannot be stopped in between, and
// some disks take as long as for writing it.
const maxZeros = 64 << 20

var zeros [zeroBlock]byte

// medium takes what is written to a disk. What was written since the last Sync may be lost with the
// power, any part of it.
type medium interface {
	io.WriterAt
	// Zero makes a range read as zeros, by a mode of fallocate(2).
	Zero(mode uint32, offset, length int64) error
	Sync() error
}

// fileMedium is a file as a medium. All methods may be called at the same time.
type fileMedium struct {
	*os.File
	// direct is the same device, open for writes past the kernel's cache; nil: there is no such way.
	direct *os.File
}

// WriteAt implements io.WriterAt. An image is written once and not read again, so a copy of it in
// the kernel's cache costs time and memory, and keeps the disk waiting until there is much of it.
// What is not whole sectors goes through the cache.
func (f fileMedium) WriteAt(p []byte, offset int64) (int, error) {
	if f.direct != nil && offset%maxSector == 0 && len(p)%maxSector == 0 {
		n, err := f.direct.WriteAt(p, offset)
		if !errors.Is(err, unix.EINVAL) { // the device wants it otherwise
			return n, err
		}
	}
	return f.File.WriteAt(p, offset)
}

func (f fileMedium) Zero(mode uint32, offset, length int64) error {
	return unix.Fallocate(int(f.Fd()), mode, offset, length)
}

// openDirect opens the device of an open file once more, for writes past the kernel's cache; nil
// where that cannot be.
func openDirect(file *os.File) *os.File {
	direct, err := os.OpenFile(file.Name(), os.O_WRONLY|unix.O_DIRECT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	var first, second unix.Stat_t
	err = errors.Join(unix.Fstat(int(file.Fd()), &first), unix.Fstat(int(direct.Fd()), &second))
	if err != nil || second.Mode&unix.S_IFMT != unix.S_IFBLK || first.Rdev != second.Rdev {
		_ = direct.Close() // the name stands for another one by now
		return nil
	}
	return direct
}

// disk is an open target.
type disk struct {
	// file is the target, and direct the same one for writes past the kernel's cache, or nil.
	file, direct *os.File
	// medium is both, unless a test looks at what is written.
	medium medium
	size   int64
	// isDevice: a block device, synced and opened exclusively; otherwise a regular file.
	isDevice bool
	// zero is the index in zeroWays of the cheapest way that has not failed yet.
	zero int
	// fault is the first failure of the device itself; nil: none.
	fault atomic.Pointer[error]
}

// noted keeps a failure of the device: another error may come first, and hide it.
func (d *disk) noted(err error) error {
	if err != nil {
		d.fault.CompareAndSwap(nil, &err)
	}
	return err
}

// diskError is that an install has failed, and its disk, too, which may have been the reason.
type diskError struct {
	error
	fault error
}

func (e *diskError) Unwrap() error { return e.error }

// withFault adds to the end of an install what the disk has said.
func (d *disk) withFault(err error) error {
	if fault := d.fault.Load(); err != nil && fault != nil {
		return &diskError{err, *fault}
	}
	return err
}

// zeroWays are modes of fallocate(2) that make a range read as zeros, cheapest first. Both work for
// files and for block devices (since Linux 4.9, where they guarantee zeros or fail; before it, each
// fails with ENODEV). After the last of them, makeZero writes zeros.
var zeroWays = [...]uint32{
	unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
	unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE,
}

// devicePath is where the device of a kernel name is; names such as cciss!c0d0 stand for a path
// with slashes.
func devicePath(name string) string { return "/dev/" + strings.ReplaceAll(name, "!", "/") }

// openDisk opens the disk of that kernel name, which must have that size. A block device is opened
// exclusively, so that the kernel itself refuses one that it uses. A regular file stands for a disk
// only below a root other than "/".
func openDisk(root, name string, size int64) (*disk, error) {
	path := filepath.Join(root, devicePath(name))
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	flags := os.O_RDWR | unix.O_CLOEXEC | unix.O_NOFOLLOW
	isDevice := info.Mode()&(os.ModeDevice|os.ModeCharDevice) == os.ModeDevice
	switch {
	case isDevice:
		flags |= unix.O_EXCL
	case !info.Mode().IsRegular() || filepath.Clean(root) == "/":
		return nil, fmt.Errorf("%s is not a block device", path)
	}
	file, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("%s is in use", path)
	}
	if err != nil {
		return nil, err
	}
	d := &disk{file: file, size: size, isDevice: isDevice}
	if err := d.checkSize(); err != nil {
		_ = file.Close()
		return nil, err
	}
	if isDevice {
		d.direct = openDirect(file)
	}
	d.medium = fileMedium{file, d.direct}
	return d, nil
}

// checkSize compares the device with what the kernel's tables say of it, and grows a file to it.
func (d *disk) checkSize() error {
	end, err := d.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if d.isDevice {
		if end != d.size {
			return fmt.Errorf("%s has %d bytes now, not %d", d.file.Name(), end, d.size)
		}
		return nil
	}
	if end < d.size {
		return d.file.Truncate(d.size)
	}
	return nil
}

func (d *disk) close() {
	_ = d.file.Close()
	if d.direct != nil {
		_ = d.direct.Close()
	}
}

// sync waits until everything is on stable storage. A file that stands for a disk has none of its
// own.
func (d *disk) sync() error {
	if !d.isDevice {
		return nil
	}
	return d.noted(d.medium.Sync())
}

// wipe makes whatever boots the disk zeros, and waits until that is on stable storage.
func (d *disk) wipe() error {
	for _, offset := range []int64{0, d.size - mebibyte} {
		if err := d.makeZero(offset, mebibyte); err != nil {
			return fmt.Errorf("wipe the disk: %w", err)
		}
	}
	return doing("wipe the disk", d.sync())
}

// readPartitions has the kernel read the partitions of a device anew.
func (d *disk) readPartitions() error {
	if !d.isDevice {
		return nil
	}
	_, err := unix.IoctlRetInt(int(d.file.Fd()), unix.BLKRRPART)
	if errors.Is(err, unix.EINVAL) { // a device that has no partitions
		return nil
	}
	return err
}

// write writes data at the offset.
func (d *disk) write(data []byte, offset int64) error {
	_, err := d.medium.WriteAt(data, offset)
	return d.noted(err)
}

// makeZero makes the range read as zeros. The offset is a multiple of zeroBlock.
func (d *disk) makeZero(offset, length int64) error {
	if length <= 0 || d.isHole(offset, length) {
		return nil
	}
	cheap := length
	if d.isDevice {
		cheap -= length % maxSector
	}
	for d.zero < len(zeroWays) && cheap > 0 {
		err := d.medium.Zero(zeroWays[d.zero], offset, cheap)
		switch {
		case err == nil:
			offset, length, cheap = offset+cheap, length-cheap, 0
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV),
			errors.Is(err, unix.EREMOTEIO): // the drive claims the command, and rejects it
			d.zero++
		case errors.Is(err, unix.EIO) || errors.Is(err, unix.ETIMEDOUT): // or fails at it
			// What is written shows whether it is broken. Another command may take minutes to fail, too.
			d.zero = len(zeroWays)
		default:
			return d.noted(&os.PathError{Op: "zero", Path: d.file.Name(), Err: err})
		}
	}
	for length > 0 {
		n := min(length, zeroBlock)
		if err := d.write(zeros[:n], offset); err != nil {
			return err
		}
		offset, length = offset+n, length-n
	}
	return nil
}

// isHole says whether a file has nothing at all in the range, so that it reads as zeros already.
func (d *disk) isHole(offset, length int64) bool {
	if d.isDevice {
		return false
	}
	data, err := unix.Seek(int(d.file.Fd()), offset, unix.SEEK_DATA)
	return errors.Is(err, unix.ENXIO) || (err == nil && data >= offset+length)
}

// writer writes a stream of chunks in order, and runs of zeros as such.
type writer struct {
	disk *disk
	// put writes what is no zeros. It may return before it has.
	put func(data []byte, offset int64) error
	// zeroFrom to zeroTo is a run of zeros that is not on the disk yet.
	zeroFrom, zeroTo int64
	// zeroed is how many zeros are.
	zeroed int64
}

// write takes the chunk at the offset, which must be where the last one ended.
func (w *writer) write(chunk []byte, offset int64) error {
	for len(chunk) > 0 {
		length, zero := leading(chunk)
		if zero {
			if w.zeroTo != offset {
				w.zeroFrom = offset
			}
			w.zeroTo = offset + int64(length)
			if w.zeroTo-w.zeroFrom >= maxZeros {
				if err := w.flush(); err != nil {
					return err
				}
			}
		} else {
			if err := w.flush(); err != nil {
				return err
			}
			if err := w.put(chunk[:length], offset); err != nil {
				return err
			}
		}
		chunk, offset = chunk[length:], offset+int64(length)
	}
	return nil
}

// flush puts the pending run of zeros on the disk.
func (w *writer) flush() error {
	from, to := w.zeroFrom, w.zeroTo
	w.zeroFrom, w.zeroTo = 0, 0
	if err := w.disk.makeZero(from, to-from); err != nil {
		return err
	}
	w.zeroed += to - from
	return nil
}

// leading returns how many bytes at the beginning of a chunk are all blocks of zeros, or all other
// blocks.
func leading(chunk []byte) (length int, zero bool) {
	for length < len(chunk) {
		block := chunk[length:min(len(chunk), length+zeroBlock)]
		isZero := bytes.Equal(block, zeros[:len(block)])
		if length > 0 && isZero != zero {
			break
		}
		zero = isZero
		length += len(block)
	}
	return length, zero
}
