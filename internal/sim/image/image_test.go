package image_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/ironherd/ironherd/internal/sim/image"
)

const mib = 1 << 20

func raw(t *testing.T, i image.Image) []byte {
	t.Helper()
	file, err := os.Open(i.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var reader io.Reader = file
	if i.Compression == "zstd" {
		z, err := zstd.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		reader = z
	}
	data, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestImages(t *testing.T) {
	t.Parallel()
	for _, compression := range []string{"none", "zstd"} {
		t.Run(compression, func(t *testing.T) {
			t.Parallel()
			spec := image.Spec{Name: "demo-1.0", Size: 16 * mib, Compression: compression, Seed: 3}
			dir := t.TempDir()
			i, err := image.Make(dir, spec)
			if err != nil {
				t.Fatal(err)
			}
			data := raw(t, i)
			if int64(len(data)) != spec.Size || i.Digest != fmt.Sprintf("sha256:%x", sha256.Sum256(data)) {
				t.Fatalf("image %+v has %d bytes with digest %x", i, len(data), sha256.Sum256(data))
			}
			zero := 0
			for b := 0; b < len(data); b += mib {
				if bytes.Equal(data[b:b+mib], make([]byte, mib)) {
					zero++
				}
			}
			if zero < 4 || zero > 10 {
				t.Errorf("%d of 16 MiB are holes", zero)
			}
			info, err := os.Stat(i.Path)
			if err != nil || info.Size() != i.TransferSize {
				t.Errorf("file of %v, %v; want %d", info.Size(), err, i.TransferSize)
			}
			if onDisk := info.Sys().(*syscall.Stat_t).Blocks * 512; onDisk >= spec.Size*3/4 || onDisk < spec.Size/8 {
				t.Errorf("%d bytes on disk", onDisk)
			}
			// The same is made again, and is found again.
			other, err := image.Make(t.TempDir(), spec)
			if err != nil || other.Digest != i.Digest {
				t.Errorf("made again: %s, %v; want %s", other.Digest, err, i.Digest)
			}
			again, err := image.Make(dir, spec)
			if err != nil || again != i {
				t.Errorf("found again: %+v, %v; want %+v", again, err, i)
			}
			spec.Seed++
			if changed, err := image.Make(dir, spec); err != nil || changed.Digest == i.Digest {
				t.Errorf("another seed, same digest %s (%v)", changed.Digest, err)
			}
		})
	}
}

func TestPartitionTableIsWhatToolsRead(t *testing.T) {
	t.Parallel()
	tool, err := exec.LookPath("sfdisk")
	if err != nil {
		tool, err = exec.LookPath("/usr/sbin/sfdisk") // not in everybody's path
	}
	if err != nil {
		t.Fatalf("sfdisk is needed: run `make setup` (Debian: apt-get install fdisk): %v", err)
	}
	i, err := image.Make(t.TempDir(), image.Spec{Name: "p", Size: 8 * mib, Compression: "none"})
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--verify", i.Path}, {"--dump", i.Path}} {
		out, err := exec.CommandContext(t.Context(), tool, args...).CombinedOutput()
		if err != nil || strings.Contains(string(out), "corrupt") || args[0] == "--dump" && !strings.Contains(string(out), `name="root"`) {
			t.Errorf("sfdisk %v: %v\n%s", args, err, out)
		}
	}
}

func TestBadSpecifications(t *testing.T) {
	t.Parallel()
	for _, spec := range []image.Spec{
		{Name: "", Size: 4 * mib, Compression: "none"},
		{Name: "../x", Size: 4 * mib, Compression: "none"},
		{Name: ".x", Size: 4 * mib, Compression: "none"},
		{Name: "x", Size: 4*mib + 1, Compression: "none"},
		{Name: "x", Size: 0, Compression: "none"},
		{Name: "x", Size: 4 * mib, Compression: "bzip2"},
	} {
		if _, err := image.Make(filepath.Join(t.TempDir(), "images"), spec); err == nil {
			t.Errorf("%+v was accepted", spec)
		}
	}
}
