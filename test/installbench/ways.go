package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
)

// order is what the process that installs is told.
type order struct {
	URL, Digest, Root, Disk string
	Size, DiskSize          int64
}

// installed has a process of its own install the image over HTTP.
func installed(ctx context.Context, image *diskImage, disk *loop) (cost, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return cost{}, err
	}
	server := &http.Server{Handler: http.FileServer(http.Dir(filepath.Dir(image.zst))), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	defer func() { _ = server.Close() }()
	text, err := json.Marshal(order{
		URL: "http://" + listener.Addr().String() + "/" + filepath.Base(image.zst), Digest: image.digest,
		Root: disk.root, Disk: disk.name, Size: image.size, DiskSize: disk.size,
	})
	if err != nil {
		return cost{}, err
	}
	executable, err := os.Executable()
	if err != nil {
		return cost{}, err
	}
	return timed(exec.CommandContext(ctx, executable, "-child", string(text)))
}

// child is that process.
func child(ctx context.Context, text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	report := install.Run(ctx, &agentv1.InstallRequest{
		InstallGeneration: 1, Attempt: 1,
		Image:    &agentv1.Image{Url: o.URL, Digest: o.Digest, Compression: agentv1.Compression_COMPRESSION_ZSTD, Size: o.Size},
		RootDisk: &agentv1.DiskSelector{Erase: true}, BootToken: &agentv1.BootToken{MachineId: "bench"},
		TimeoutMs: time.Hour.Milliseconds(),
	}, install.Options{Root: o.Root, Disks: []*agentv1.BlockDevice{{Name: o.Disk, SizeBytes: o.DiskSize}}})
	if !report.GetOk() {
		return fmt.Errorf("the install failed: %s", report.GetError())
	}
	return nil
}

// timed runs a command and says what it took.
func timed(cmd *exec.Cmd) (cost, error) {
	started := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return cost{}, fmt.Errorf("%w: %s", err, out)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return cost{
		wall: time.Since(started), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), memory: usage.Maxrss << 10,
	}, nil
}

// zstdDD is what people do without any tool.
func zstdDD(ctx context.Context, image *diskImage, disk *loop) (cost, error) {
	c, err := timed(exec.CommandContext(ctx, "bash", "-c", `set -o pipefail; zstd -dc "$0" | dd of="$1" bs=4M iflag=fullblock conv=fsync status=none`, image.zst, disk.path))
	c.memory = 0 // of the shell
	return c, err
}

// bmaptool writes only what is in the map of the image.
func bmaptool(ctx context.Context, image *diskImage, disk *loop) (cost, error) {
	c, err := timed(exec.CommandContext(ctx, "bmaptool", "-q", "copy", "--bmap", image.bmap, image.zst, disk.path))
	c.memory = 0 // of its parent alone
	return c, err
}

// own measures a part of the work in this process.
func own(work func() error) (cost, error) {
	before, started := processTime(), time.Now()
	err := work()
	return cost{wall: time.Since(started), cpu: processTime() - before}, err
}

func processTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// decodeAlone decodes the image as the agent does, and throws it away.
func decodeAlone(_ context.Context, image *diskImage, _ *loop) (cost, error) {
	return own(func() error {
		file, err := os.Open(image.zst)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		decoder, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return err
		}
		defer decoder.Close()
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{decoder}, make([]byte, chunk))
		return err
	})
}

const chunk = 256 << 10

// writeAlone writes as much as the image has besides zeros, from memory, and makes the rest holes.
func writeAlone(_ context.Context, image *diskImage, disk *loop) (cost, error) {
	block := bytes.Repeat([]byte("0123456789abcdef"), chunk/16)
	return own(func() error {
		file, err := os.OpenFile(disk.path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		for _, e := range image.extents {
			if e.zero {
				if err := unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, e.offset, e.length); err != nil {
					return err
				}
				continue
			}
			for done := int64(0); done < e.length; done += chunk {
				if _, err := file.WriteAt(block[:min(chunk, e.length-done)], e.offset+done); err != nil {
					return err
				}
			}
		}
		return file.Sync()
	})
}

// hashAlone hashes as much as the image has.
func hashAlone(_ context.Context, image *diskImage, _ *loop) (cost, error) {
	block := make([]byte, chunk)
	return own(func() error {
		sum := sha256.New()
		for done := int64(0); done < image.size; done += chunk {
			sum.Write(block)
		}
		sum.Sum(nil)
		return nil
	})
}
