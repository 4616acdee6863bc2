package install

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const diskSize = 12*mebibyte + 512*7

// testImage has data, long and short holes, and an end that is no multiple of anything.
func testImage(seed uint64, size int) []byte {
	image := make([]byte, size)
	random := rand.New(rand.NewPCG(seed, 1))
	for offset := 0; offset < size; {
		n := min(size-offset, 1+random.IntN(700<<10))
		if random.IntN(2) == 0 {
			for i := offset; i < offset+n; i++ {
				image[i] = byte(random.Uint32() % 7)
			}
		}
		offset += n
	}
	image[0], image[size-1] = 0xeb, 1
	return image
}

func digestOf(image []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(image)) }

// machine is a root with one disk, full of old data.
type machine struct {
	root string
	disk string
	old  []byte
}

var oldest = sync.OnceValue(func() []byte { return bytes.Repeat([]byte("old data"), bigSize/8) })

// oldData is what a disk holds before an install. All tests share it: nobody writes to it.
func oldData(size int) []byte { return oldest()[:size:size] }

func newMachine(t *testing.T) *machine {
	t.Helper()
	root := t.TempDir()
	m := &machine{root: root, disk: filepath.Join(root, "dev/sda"), old: oldData(diskSize)}
	if err := os.MkdirAll(filepath.Dir(m.disk), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.disk, m.old, 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) options() Options {
	return Options{Root: m.root, Disks: []*agentv1.BlockDevice{{Name: "sda", Serial: "S1", SizeBytes: diskSize}}}
}

func (m *machine) content(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile(m.disk)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) != diskSize {
		t.Fatalf("the disk has %d bytes now", len(data))
	}
	return data
}

// mustNotBoot fails the test unless the first and the last MiB are zeros.
func (m *machine) mustNotBoot(t *testing.T) {
	t.Helper()
	data := m.content(t)
	blank := make([]byte, mebibyte)
	if !bytes.Equal(data[:mebibyte], blank) || !bytes.Equal(data[diskSize-mebibyte:], blank) {
		t.Error("boot sectors or partition tables are left")
	}
}

func requestFor(url string, image []byte) *agentv1.InstallRequest {
	return &agentv1.InstallRequest{
		InstallGeneration: 3, Attempt: 2,
		Image:         &agentv1.Image{Url: url, Digest: digestOf(image), Compression: agentv1.Compression_COMPRESSION_NONE},
		FirstBootData: []byte("hello"),
		BootToken:     &agentv1.BootToken{MachineId: "m", Secret: []byte("secret")},
		TimeoutMs:     600_000,
	}
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/image"
}

func serveBytes(t *testing.T, data []byte) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(data))
	})
}

func compress(t *testing.T, image []byte, compression agentv1.Compression) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch compression {
	case agentv1.Compression_COMPRESSION_NONE:
		return image
	case agentv1.Compression_COMPRESSION_ZSTD:
		w, err = zstd.NewWriter(&out)
	case agentv1.Compression_COMPRESSION_GZIP:
		w = gzip.NewWriter(&out)
	case agentv1.Compression_COMPRESSION_XZ:
		w, err = xz.NewWriter(&out)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(image); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestInstallEveryCompression(t *testing.T) {
	t.Parallel()
	for number, name := range agentv1.Compression_name {
		compression := agentv1.Compression(number)
		if compression == agentv1.Compression_COMPRESSION_UNSPECIFIED || compression == agentv1.Compression_COMPRESSION_LAYER {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			size := 5*mebibyte + 4321
			if compression == agentv1.Compression_COMPRESSION_XZ { // its encoder is slow
				size = 2*mebibyte + 4321
			}
			image := testImage(uint64(number), size)
			m := newMachine(t)
			request := requestFor(serveBytes(t, compress(t, image, compression)), image)
			request.Image.Compression = compression
			var phases []agentv1.InstallProgress_Phase
			options := m.options()
			options.Progress = func(phase agentv1.InstallProgress_Phase, _ int64) {
				if len(phases) == 0 || phases[len(phases)-1] != phase {
					phases = append(phases, phase)
				}
			}
			report := Run(t.Context(), request, options)
			if !report.GetOk() {
				t.Fatal(report.GetError())
			}
			if report.GetInstallGeneration() != 3 || report.GetAttempt() != 2 || report.GetDisk() != "/dev/sda" ||
				report.GetDiskSerial() != "S1" || report.GetBytesWritten() != int64(len(image)) {
				t.Errorf("report: %v", report)
			}
			if len(phases) != 4 {
				t.Errorf("phases: %v", phases)
			}
			checkInstalled(t, m, image, request)
		})
	}
}

// checkInstalled compares every byte of the disk.
func checkInstalled(t *testing.T, m *machine, image []byte, request *agentv1.InstallRequest) {
	t.Helper()
	data := m.content(t)
	if !bytes.Equal(data[:len(image)], image) {
		t.Error("the image is not on the disk")
	}
	offset := FirstBootOffset(diskSize)
	if !bytes.Equal(data[len(image):offset], m.old[len(image):offset]) {
		t.Error("what lies between image and first-boot area was changed")
	}
	first, err := DecodeFirstBoot(data[offset : offset+mebibyte])
	if err != nil {
		t.Fatal(err)
	}
	want := proto.CloneOf(request.GetImage())
	want.Size, want.Url = int64(len(image)), ""
	if !proto.Equal(first.GetImage(), want) || !proto.Equal(first.GetToken(), request.GetBootToken()) || string(first.GetData()) != "hello" {
		t.Errorf("first-boot area: %v", first)
	}
	used, err := EncodeFirstBoot(first)
	if err != nil {
		t.Fatal(err)
	}
	if len(bytes.Trim(data[int(offset)+len(used):offset+mebibyte], "\x00")) > 0 || len(bytes.Trim(data[diskSize-mebibyte:], "\x00")) > 0 {
		t.Error("old data is left behind the first-boot area")
	}
}

func TestInstallSmallImage(t *testing.T) {
	t.Parallel()
	image := testImage(5, 100_000) // all of it is head
	m := newMachine(t)
	request := requestFor(serveBytes(t, image), image)
	request.Image.Size = int64(len(image))
	if report := Run(t.Context(), request, m.options()); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	if data := m.content(t); !bytes.Equal(data[:len(image)], image) || len(bytes.Trim(data[len(image):mebibyte], "\x00")) > 0 {
		t.Error("the first MiB is not the image and zeros")
	}
}

// A disk on which zeros can only be written must end up the same.
func TestZerosAreWrittenWhereNothingElseWorks(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	image := testImage(6, 5*mebibyte)
	target, err := openDisk(m.root, "sda", diskSize)
	if err != nil {
		t.Fatal(err)
	}
	defer target.close()
	target.zero = len(zeroWays)
	w := writer{disk: target, put: target.write}
	for offset := 0; offset < len(image); offset += chunkSize {
		if err := w.write(image[offset:min(len(image), offset+chunkSize)], int64(offset)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.content(t)[:len(image)], image) {
		t.Error("the disk differs from the image")
	}
}

func TestInstallRefusals(t *testing.T) {
	t.Parallel()
	image := testImage(1, 3*mebibyte)
	room := FirstBootOffset(diskSize)
	tests := []struct {
		name    string
		image   []byte
		change  func(*agentv1.InstallRequest)
		want    string
		touched bool
	}{
		{"wrong digest", image, func(r *agentv1.InstallRequest) { r.Image.Digest = digestOf(nil) }, "has the digest sha256:", true},
		{"no digest", image, func(r *agentv1.InstallRequest) { r.Image.Digest = "sha256:12" }, "digest is not", false},
		{"no image", image, func(r *agentv1.InstallRequest) { r.Image = nil }, "digest is not", false},
		{
			"another architecture", image, func(r *agentv1.InstallRequest) { r.Image.Architecture = "riscv64" },
			"the image is for riscv64, and the machine is " + runtime.GOARCH + ": ask for an image for " + runtime.GOARCH + ", or call the install off", false,
		},
		{"no URL", image, func(r *agentv1.InstallRequest) { r.Image.Url = "file:///etc/passwd" }, "http://, https:// or oci://", false},
		{"unknown compression", image, func(r *agentv1.InstallRequest) { r.Image.Compression = 77 }, "compression is not known", false},
		{"not compressed", image, func(r *agentv1.InstallRequest) { r.Image.Compression = agentv1.Compression_COMPRESSION_ZSTD }, "magic", false},
		{"not xz", image, func(r *agentv1.InstallRequest) { r.Image.Compression = agentv1.Compression_COMPRESSION_XZ }, "copy the image", false},
		{"larger than announced", image, func(r *agentv1.InstallRequest) { r.Image.Size = 2 * mebibyte }, "larger than the 2097152", false},
		{"turns out larger than announced", compress(t, image, agentv1.Compression_COMPRESSION_GZIP), func(r *agentv1.InstallRequest) {
			r.Image.Size, r.Image.Compression = 2*mebibyte, agentv1.Compression_COMPRESSION_GZIP
		}, "larger than the 2097152", true},
		{"smaller than announced", image, func(r *agentv1.InstallRequest) { r.Image.Size = 4 * mebibyte }, "not the 4194304", true},
		{"announced too large", image, func(r *agentv1.InstallRequest) { r.Image.Size = room + 1 }, "too small for the image", false},
		{"too large", make([]byte, room+1), func(*agentv1.InstallRequest) {}, "reach into the first-boot area", false},
		{"turns out too large", compress(t, make([]byte, room+1), agentv1.Compression_COMPRESSION_GZIP), func(r *agentv1.InstallRequest) {
			r.Image.Compression = agentv1.Compression_COMPRESSION_GZIP
		}, "reach into the first-boot area", true},
		{"empty", nil, func(*agentv1.InstallRequest) {}, "is empty", false},
		{"a page in its place", []byte("<html>log in</html>"), func(r *agentv1.InstallRequest) { r.Image.Digest = digestOf(image) }, "has the digest sha256:", false},
		{"a small one of another size", image[:1000], func(r *agentv1.InstallRequest) { r.Image.Size = 999 }, "larger than the 999", false},
		{"a small one that is smaller", image[:1000], func(r *agentv1.InstallRequest) { r.Image.Size = 1001 }, "not the 1001", false},
		{"no partition table to grow", image, func(r *agentv1.InstallRequest) {
			r.RootDisk = &agentv1.DiskSelector{Grow: true}
		}, "the image has no GUID partition table", false},
		{"wrong serial", image, func(r *agentv1.InstallRequest) {
			r.RootDisk = &agentv1.DiskSelector{Serial: "other"}
		}, "sda has another serial", false},
		{"first-boot data too large", image, func(r *agentv1.InstallRequest) {
			r.FirstBootData = make([]byte, maxFirstBootData+1)
		}, "first-boot data has", false},
		{"first-boot area too large", image, func(r *agentv1.InstallRequest) {
			r.BootToken.CaCertificate = make([]byte, maxFirstBoot-100)
		}, "the first-boot area would take", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			request := requestFor(serveBytes(t, test.image), test.image)
			test.change(request)
			report := Run(t.Context(), request, m.options())
			if report.GetOk() || !strings.Contains(report.GetError(), test.want) {
				t.Errorf("report: %v", report)
			}
			if test.touched {
				m.mustNotBoot(t)
			} else if !bytes.Equal(m.content(t), m.old) {
				t.Error("the disk was touched")
			} else if report.GetDisk() != "" || report.GetBytesWritten() != 0 {
				t.Errorf("nothing was written, and the report says %q, %d bytes", report.GetDisk(), report.GetBytesWritten())
			}
		})
	}
}

// TestAnImageForThisArchitecture is installed.
func TestAnImageForThisArchitecture(t *testing.T) {
	t.Parallel()
	image := testImage(1, 3*mebibyte)
	m := newMachine(t)
	request := requestFor(serveBytes(t, image), image)
	request.Image.Architecture = runtime.GOARCH
	if report := Run(t.Context(), request, m.options()); !report.GetOk() {
		t.Errorf("report: %v", report)
	}
}

func TestImageFillsTheRoom(t *testing.T) {
	t.Parallel()
	image := testImage(8, int(FirstBootOffset(diskSize)))
	m := newMachine(t)
	request := requestFor(serveBytes(t, image), image)
	if report := Run(t.Context(), request, m.options()); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	checkInstalled(t, m, image, request)
}

func TestTimeoutIsObeyed(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "4000000")
		_, _ = w.Write(make([]byte, 2000000))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	request := requestFor(url, nil)
	// enough for a busy host to begin: what is not begun leaves the old system
	request.TimeoutMs = 5000
	if report := Run(t.Context(), request, m.options()); report.GetError() != "the install did not end within 5s" {
		t.Errorf("report: %v", report)
	}
	m.mustNotBoot(t)
}

func TestCancelCauseIsReported(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel(errors.New("replaced by a newer request"))
		<-r.Context().Done()
	})
	if report := Run(ctx, requestFor(url, nil), newMachine(t).options()); report.GetError() != "replaced by a newer request" {
		t.Errorf("report: %v", report)
	}
}

func TestFirstBootArea(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]int64{
		0: -1, 2 * mebibyte: 0, 10 * mebibyte: 8 * mebibyte, 10*mebibyte - 1: 7 * mebibyte, 10*mebibyte + 511: 8 * mebibyte,
	} {
		if got := FirstBootOffset(size); got != want {
			t.Errorf("offset for %d: %d, want %d", size, got, want)
		}
	}
	if _, err := EncodeFirstBoot(&agentv1.FirstBoot{Data: make([]byte, maxFirstBoot)}); err == nil {
		t.Error("too large a payload was taken")
	}
	later := &agentv1.FirstBoot{
		Image: &agentv1.Image{Size: 1 << 62, Digest: digestOf(nil)}, ChangedHead: mebibyte, Content: &agentv1.DiskContent{Kinds: []string{kindGPT, kindBackup, kindMBR}},
	}
	for _, s := range signatures {
		later.Content.Kinds = append(later.Content.Kinds, s.what)
	}
	for range maxPartitions {
		later.Content.Partitions = append(later.Content.Partitions, make([]byte, 32))
	}
	if size := proto.Size(later); size > firstBootLater {
		t.Errorf("what is known at the end may take %d bytes, and %d are kept for it", size, firstBootLater)
	}
	area, err := EncodeFirstBoot(&agentv1.FirstBoot{Data: []byte("data")})
	if err != nil {
		t.Fatal(err)
	}
	for i := range area {
		damaged := bytes.Clone(area)
		damaged[i] ^= 1
		if _, err := DecodeFirstBoot(damaged); err == nil {
			t.Errorf("byte %d may be anything", i)
		}
	}
}

func FuzzDecodeFirstBoot(f *testing.F) {
	area, _ := EncodeFirstBoot(&agentv1.FirstBoot{Data: []byte("data")})
	f.Add(area)
	f.Add([]byte(firstBootMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		if first, err := DecodeFirstBoot(data); err == nil && first == nil {
			t.Error("neither data nor an error")
		}
	})
}

// BenchmarkInstall writes an 8 MiB image of which half are holes to a sparse file, in parallel.
func BenchmarkInstall(b *testing.B) {
	image := testImage(1, 8*mebibyte)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(image))
	}))
	defer server.Close()
	request := requestFor(server.URL, image)
	client := NewClient()
	defer client.CloseIdleConnections()
	root := b.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(image)))
	b.ReportAllocs()
	for b.Loop() {
		_ = os.Remove(filepath.Join(root, "dev/sda"))
		if err := os.WriteFile(filepath.Join(root, "dev/sda"), nil, 0o600); err != nil {
			b.Fatal(err)
		}
		report := Run(b.Context(), request, Options{
			Root: root, Client: client, Disks: []*agentv1.BlockDevice{{Name: "sda", SizeBytes: 64 * mebibyte}},
		})
		if !report.GetOk() {
			b.Fatal(report.GetError())
		}
	}
}

// TestCalledOffSaysWhatIsOnTheDisk: nothing before the disk was wiped; afterwards it is undefined,
// and does not boot what was being written.
func TestCalledOffSaysWhatIsOnTheDisk(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	m := newMachine(t)
	options := m.options()
	options.Progress = func(agentv1.InstallProgress_Phase, int64) { cancel(ErrCalledOff) }
	report := Run(ctx, requestFor("http://127.0.0.1:1/image", nil), options)
	if report.GetOk() || report.GetError() != "called off: nothing was written" || report.GetDisk() != "" || !bytes.Equal(m.content(t), m.old) {
		t.Errorf("before: %v", report)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	options.Progress = func(phase agentv1.InstallProgress_Phase, done int64) {
		if phase == agentv1.InstallProgress_PHASE_WRITING && done > mebibyte {
			cancel(ErrCalledOff)
		}
	}
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "4000000")
		_, _ = w.Write(bytes.Repeat([]byte("x"), 3000000)) // which the old data has nowhere
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	report = Run(ctx, requestFor(url, nil), options)
	if report.GetOk() || report.GetBytesWritten() == 0 || report.GetDisk() != "/dev/sda" || !strings.HasPrefix(report.GetError(), "called off: /dev/sda was wiped and ") ||
		!strings.HasSuffix(report.GetError(), fmt.Sprintf(" %d bytes of the image were written, so what it holds is undefined", report.GetBytesWritten())) {
		t.Errorf("in the middle: %v", report)
	}
	if n := bytes.Count(m.content(t)[:FirstBootOffset(diskSize)], []byte("x")); int64(n) != report.GetBytesWritten() {
		t.Errorf("the disk holds %d bytes of the image, and the report says %d", n, report.GetBytesWritten())
	}
	m.mustNotBoot(t)
}
