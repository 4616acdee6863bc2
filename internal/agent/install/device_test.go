package install

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// device is a real block device: a loop device over a file.
type device struct {
	root, name string
	file       string
	size       int64
}

// newDevice makes one, with that content. It has a directory for its root, so that nothing of the
// host is written but the device. Only root can make one; a CI that cannot fails.
func newDevice(t *testing.T, content []byte) *device {
	t.Helper()
	d := &device{root: t.TempDir(), file: filepath.Join(t.TempDir(), "disk"), size: int64(len(content))}
	if err := os.WriteFile(d.file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	unable := func(err error) {
		t.Helper()
		if os.Getenv("CI") == "" {
			t.Skipf("there are no loop devices: %v", err)
		}
		t.Fatalf("there are no loop devices: %v", err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", d.file).Output()
	if err != nil {
		unable(err)
	}
	path := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", path).CombinedOutput(); err != nil { //nolint:noctx // the test's has ended
			t.Errorf("losetup --detach: %v %s", err, out)
		}
	})
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	d.name = filepath.Base(path)
	if err := os.Mkdir(filepath.Join(d.root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(d.root, "dev", d.name), unix.S_IFBLK|0o600, int(stat.Rdev)); err != nil {
		unable(err)
	}
	if file, err := os.OpenFile(filepath.Join(d.root, "dev", d.name), os.O_RDONLY, 0); err != nil {
		unable(err) // a file system on which devices do not count
	} else {
		_ = file.Close()
	}
	return d
}

func (d *device) options() Options {
	return Options{Root: d.root, MachineID: "m", Disks: []*agentv1.BlockDevice{{Name: d.name, SizeBytes: d.size}}}
}

func (d *device) content(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile(d.file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

const deviceSize = 12 * mebibyte

// oldSystem is a disk with a partition table and two file systems, and data everywhere else.
func oldSystem(t *testing.T) []byte {
	t.Helper()
	content := bytes.Repeat([]byte("old data"), deviceSize/8)
	copy(content, partitioned(t))
	copy(content[8*mebibyte-33*512:], bytes.Repeat([]byte("old data"), 33*64))
	return content
}

func TestDeviceIsInstalled(t *testing.T) {
	t.Parallel()
	d := newDevice(t, oldSystem(t))
	image := partitioned(t)
	image[0] = 0xeb // code for a BIOS
	request := requestFor(serveBytes(t, compress(t, image, agentv1.Compression_COMPRESSION_ZSTD)), image)
	request.Image.Compression = agentv1.Compression_COMPRESSION_ZSTD
	request.RootDisk = &agentv1.DiskSelector{Erase: true, Grow: true}
	options := d.options()
	options.Warn = func(err error) { t.Errorf("warned: %v", err) }
	if report := Run(t.Context(), request, options); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	got := d.content(t)
	// All but the table and the two MiB that a grown image has at its end, besides what it is made of.
	if !bytes.Equal(got[mebibyte:8*mebibyte], image[mebibyte:]) {
		t.Error("the device does not hold the image")
	}
	if said := tool(t, "", "sfdisk", "-V", d.file); !strings.Contains(said, "No errors detected") {
		t.Errorf("sfdisk says: %s", said)
	}
}

// TestDeviceIsLeftHarmless: whatever is wrong with an image, the device is untouched or boots
// nothing, and the report says why.
func TestDeviceIsLeftHarmless(t *testing.T) {
	t.Parallel()
	old := oldSystem(t)
	image := partitioned(t)
	zst := compress(t, image, agentv1.Compression_COMPRESSION_ZSTD)
	for name, test := range map[string]struct {
		served    []byte
		code      int
		digest    string
		keep      bool
		want      string
		untouched bool
	}{
		"wrong digest":      {served: zst, digest: digestOf(nil), want: "the image has the digest " + digestOf(image)},
		"truncated":         {served: zst[:len(zst)/2], digest: digestOf(image), want: "copy the image: the compressed image ends in the middle: it is cut short"},
		"larger than disk":  {served: compress(t, make([]byte, deviceSize+1), agentv1.Compression_COMPRESSION_ZSTD), digest: digestOf(image), want: "the image does not fit: it would reach into the first-boot area"},
		"foreign signature": {served: zst, digest: digestOf(image), keep: true, want: "holds a GUID partition table and a partition table (MBR), and the request does not allow that to be erased", untouched: true},
		"not found":         {code: http.StatusNotFound, digest: digestOf(image), want: `the server says "404 Not Found"`, untouched: true},
		"forbidden":         {code: http.StatusForbidden, digest: digestOf(image), want: `the server says "403 Forbidden"`, untouched: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDevice(t, old)
			url := serveBytes(t, test.served)
			if test.code != 0 {
				url = serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(test.code) })
			}
			request := requestFor(url, image)
			request.Image.Compression, request.Image.Digest = agentv1.Compression_COMPRESSION_ZSTD, test.digest
			request.RootDisk = &agentv1.DiskSelector{Erase: !test.keep}
			report := Run(t.Context(), request, d.options())
			if report.GetOk() || !strings.Contains(report.GetError(), test.want) {
				t.Errorf("report: %v", report)
			}
			got := d.content(t)
			if test.untouched {
				if sha256.Sum256(got) != sha256.Sum256(old) {
					t.Error("the device was touched")
				}
				return
			}
			found, err := contents(bytes.NewReader(got), d.size)
			if err != nil || len(found) > 0 || !bytes.Equal(got[:mebibyte], make([]byte, mebibyte)) || !bytes.Equal(got[d.size-mebibyte:], make([]byte, mebibyte)) {
				t.Errorf("something may boot or be taken for a system: %v, %v", found, err)
			}
			// The next attempt needs nothing but a good image.
			request = requestFor(serveBytes(t, image), image)
			if report := Run(t.Context(), request, d.options()); !report.GetOk() {
				t.Errorf("the next attempt: %s", report.GetError())
			}
		})
	}
}

// TestADeviceIsHeldBeforeItIsLookedAt: what makes a file system opens a device for nobody else, as
// the kernel does to mount it. While the image is opened, which may take its time, nobody can:
// otherwise what is made then would be wiped, although the request does not allow it.
func TestADeviceIsHeldBeforeItIsLookedAt(t *testing.T) {
	t.Parallel()
	d := newDevice(t, make([]byte, deviceSize))
	image := partitioned(t)
	var made atomic.Bool
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		file, err := os.OpenFile(filepath.Join(d.root, "dev", d.name), os.O_RDWR|unix.O_EXCL, 0)
		if err == nil {
			_, err = file.WriteAt([]byte("\x53\xef"), 1080)
			made.Store(errors.Join(err, file.Close()) == nil)
		} else if !errors.Is(err, unix.EBUSY) {
			t.Errorf("open the device: %v", err)
		}
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(image))
	})
	report := Run(t.Context(), requestFor(url, image), d.options())
	if made.Load() || !report.GetOk() {
		t.Errorf("somebody made a file system: %t; report: %v", made.Load(), report)
	}
}

// TestServerThatStopsInTheMiddle cuts every connection after some bytes, at another place each
// time.
func TestServerThatStopsInTheMiddle(t *testing.T) {
	t.Parallel()
	d := newDevice(t, make([]byte, deviceSize))
	image := partitioned(t)
	for i := 3 * mebibyte; i < len(image)-mebibyte; i += 17 {
		image[i] = byte(i) // not to be sent in one go
	}
	var connections atomic.Int64
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := connections.Add(1)
		w.Header().Set("ETag", `"one"`)
		http.ServeContent(&cutWriter{ResponseWriter: w, left: int(n) * 700_001}, r, "", time.Time{}, bytes.NewReader(image))
	})
	if report := Run(t.Context(), requestFor(url, image), d.options()); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	if got := d.content(t); !bytes.Equal(got[mebibyte:8*mebibyte], image[mebibyte:]) {
		t.Error("the device does not hold the image")
	}
	if n := connections.Load(); n < 4 {
		t.Errorf("%d connections", n)
	}
}

// cutWriter ends a connection after some bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if w.left <= 0 {
		panic(http.ErrAbortHandler)
	}
	n := min(len(p), w.left)
	w.left -= n
	written, err := w.ResponseWriter.Write(p[:n])
	if err == nil && n < len(p) {
		panic(http.ErrAbortHandler)
	}
	return written, err
}

// TestADeviceIsWrittenPastTheCache: chunks fit what the kernel wants of writes past its cache, and
// what does not fit is written all the same.
func TestADeviceIsWrittenPastTheCache(t *testing.T) {
	t.Parallel()
	d := newDevice(t, make([]byte, deviceSize))
	target, err := openDisk(d.root, d.name, d.size)
	if err != nil {
		t.Fatal(err)
	}
	defer target.close()
	if target.direct == nil {
		t.Fatal("the device is not open for such writes")
	}
	c := chunks.Get().(*chunk)
	for i := range c.buffer {
		c.buffer[i] = byte(i%251) + 1
	}
	if _, err := target.direct.WriteAt(c.buffer[zeroBlock:], mebibyte); err != nil {
		t.Errorf("a chunk does not fit: %v", err)
	}
	tail := c.buffer[:1000]
	if err := errors.Join(target.write(tail, 2*mebibyte), target.write(c.buffer[1:1+maxSector], 3*mebibyte), target.sync()); err != nil {
		t.Fatal(err)
	}
	got := d.content(t)
	for at, want := range map[int][]byte{mebibyte: c.buffer[zeroBlock:], 2 * mebibyte: tail, 3 * mebibyte: c.buffer[1 : 1+maxSector]} {
		if !bytes.Equal(got[at:at+len(want)], want) {
			t.Errorf("at %d the device does not hold what was written", at)
		}
	}
}
