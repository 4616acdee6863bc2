package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// diskImage is an image in all the forms that it is wanted in.
type diskImage struct {
	raw, zst, bmap string
	digest         string
	size           int64
	compressed     int64
	// zeros is the share of it that is zeros.
	zeros   float64
	extents []extent
}

// extent is a part of the image, all zeros or all else.
type extent struct {
	offset, length int64
	zero           bool
}

// makeImage writes an image: stretches of 1 to 32 MiB, of zeros or of what compresses about as a
// system's files do, to a half. The same size gives the same image.
func makeImage(ctx context.Context, dir string, size int64, holes float64) (*diskImage, error) {
	image := &diskImage{raw: filepath.Join(dir, "image.raw"), zst: filepath.Join(dir, "image.raw.zst"), bmap: filepath.Join(dir, "image.bmap"), size: size}
	file, err := os.OpenFile(image.raw, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	random := rand.New(rand.NewPCG(1, uint64(size)))
	sum := sha256.New()
	block, zero := make([]byte, 1<<20), make([]byte, 1<<20)
	var zeros int64
	for offset := int64(0); offset < size; {
		e := extent{offset: offset, length: min(size-offset, (1+random.Int64N(32))<<20), zero: float64(zeros) < holes*float64(offset)}
		for done := int64(0); done < e.length; done += 1 << 20 {
			if e.zero {
				sum.Write(zero)
				continue
			}
			fill(block, random)
			sum.Write(block)
			if _, err := file.WriteAt(block, offset+done); err != nil {
				return nil, err
			}
		}
		if e.zero {
			zeros += e.length
		}
		image.extents = append(image.extents, e)
		offset += e.length
	}
	if err := errors.Join(file.Truncate(size), file.Sync()); err != nil {
		return nil, err
	}
	image.digest, image.zeros = fmt.Sprintf("sha256:%x", sum.Sum(nil)), float64(zeros)/float64(size)
	if out, err := exec.CommandContext(ctx, "zstd", "-q", "-f", "-3", image.raw, "-o", image.zst).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("zstd: %w: %s", err, out)
	}
	if out, err := exec.CommandContext(ctx, "bmaptool", "-q", "create", "-o", image.bmap, image.raw).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("bmaptool: %w: %s", err, out)
	}
	info, err := os.Stat(image.zst)
	if err != nil {
		return nil, err
	}
	image.compressed = info.Size()
	return image, nil
}

// fill makes a block: half of it noise, half of it words that come again.
func fill(block []byte, random *rand.Rand) {
	words := make([]byte, 4096)
	for i := range words {
		words[i] = byte(random.Uint32())
	}
	for i := 0; i < len(block); {
		if random.IntN(2) == 0 {
			for n := min(len(block), i+64+random.IntN(64)); i < n; i += 8 {
				v := random.Uint64()
				for k := range min(8, len(block)-i) {
					block[i+k] = byte(v >> (8 * k))
				}
			}
			i = min(i, len(block))
			continue
		}
		at := random.IntN(len(words) - 128)
		i += copy(block[i:], words[at:at+64+random.IntN(64)])
	}
}

func (i *diskImage) remove() error {
	return errors.Join(os.Remove(i.raw), os.Remove(i.zst), os.Remove(i.bmap))
}

// loop is a loop device over a file, below a root of its own.
type loop struct {
	root, name, path, file string
	size                   int64
}

func newDisk(ctx context.Context, dir string, size int64) (*loop, error) {
	d := &loop{root: filepath.Join(dir, "root"), file: filepath.Join(dir, "disk"), size: size}
	if err := os.WriteFile(d.file, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(d.file, size); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "losetup", "--find", "--show", d.file).Output()
	if err != nil {
		return nil, fmt.Errorf("make a loop device (as root): %w", err)
	}
	d.path = string(bytes.TrimSpace(out))
	d.name = strings.TrimPrefix(d.path, "/dev/")
	var stat unix.Stat_t
	if err := unix.Stat(d.path, &stat); err != nil {
		return nil, errors.Join(err, d.remove())
	}
	if err := os.MkdirAll(filepath.Join(d.root, "dev"), 0o700); err != nil {
		return nil, errors.Join(err, d.remove())
	}
	if err := unix.Mknod(filepath.Join(d.root, "dev", d.name), unix.S_IFBLK|0o600, int(stat.Rdev)); err != nil {
		return nil, errors.Join(err, d.remove())
	}
	return d, nil
}

// discard empties the device, and waits until the host has nothing more to write.
func (d *loop) discard(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, "blkdiscard", "-f", d.path).CombinedOutput(); err != nil {
		return fmt.Errorf("blkdiscard: %w: %s", err, out)
	}
	file, err := os.OpenFile(d.file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

func (d *loop) remove() error {
	out, err := exec.Command("losetup", "--detach", d.path).CombinedOutput() //nolint:noctx // after an interrupt, too
	if err != nil {
		err = fmt.Errorf("losetup --detach %s: %w: %s", d.path, err, out)
	}
	return errors.Join(err, os.Remove(d.file), os.RemoveAll(d.root))
}
