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
	"strings"
	"testing"
	"testing/synctest"
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

func newMachine(t *testing.T) *machine {
	t.Helper()
	root := t.TempDir()
	m := &machine{root: root, disk: filepath.Join(root, "dev/sda"), old: bytes.Repeat([]byte("old data"), diskSize/8)}
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
		TimeoutMs:     60_000,
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
		if compression == agentv1.Compression_COMPRESSION_UNSPECIFIED {
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
	want.Size = int64(len(image))
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
	w := writer{disk: target}
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
		{"no URL", image, func(r *agentv1.InstallRequest) { r.Image.Url = "file:///etc/passwd" }, "http:// or https://", false},
		{"unknown compression", image, func(r *agentv1.InstallRequest) { r.Image.Compression = 77 }, "compression is not known", true},
		{"not compressed", image, func(r *agentv1.InstallRequest) { r.Image.Compression = agentv1.Compression_COMPRESSION_ZSTD }, "magic", true},
		{"not xz", image, func(r *agentv1.InstallRequest) { r.Image.Compression = agentv1.Compression_COMPRESSION_XZ }, "copy the image", true},
		{"larger than announced", image, func(r *agentv1.InstallRequest) { r.Image.Size = 2 * mebibyte }, "larger than the 2097152", true},
		{"smaller than announced", image, func(r *agentv1.InstallRequest) { r.Image.Size = 4 * mebibyte }, "not the 4194304", true},
		{"announced too large", image, func(r *agentv1.InstallRequest) { r.Image.Size = room + 1 }, "too small for the image", false},
		{"turns out too large", make([]byte, room+1), func(*agentv1.InstallRequest) {}, "reach into the first-boot area", true},
		{"empty", nil, func(*agentv1.InstallRequest) {}, "is empty", true},
		{"wrong serial", image, func(r *agentv1.InstallRequest) {
			r.RootDisk = &agentv1.DiskSelector{Serial: "other"}
		}, "sda has another serial", false},
		{"first-boot data too large", image, func(r *agentv1.InstallRequest) {
			r.FirstBootData = make([]byte, maxFirstBootData+1)
		}, "first-boot data has", false},
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
			}
		})
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

// breaking serves data in pieces: each connection is cut after a while.
func breaking(data []byte, piece int, ranges bool, requests *[]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*requests = append(*requests, r.Header.Get("Range"))
		first := 0
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &first); err == nil && ranges {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, len(data)-1, len(data)))
			w.Header().Set("Content-Length", fmt.Sprint(len(data)-first))
			w.WriteHeader(http.StatusPartialContent)
		} else {
			first = 0
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		}
		end := min(len(data), piece*len(*requests))
		_, _ = w.Write(data[first:end])
		if end < len(data) {
			panic(http.ErrAbortHandler)
		}
	}
}

func TestDownloadResumes(t *testing.T) {
	t.Parallel()
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprintf("ranges=%v", ranges), func(t *testing.T) {
			t.Parallel()
			image := testImage(2, 4*mebibyte)
			m := newMachine(t)
			var requests []string
			request := requestFor(serve(t, breaking(image, 3<<19, ranges, &requests)), image)
			if report := Run(t.Context(), request, m.options()); !report.GetOk() {
				t.Fatal(report.GetError())
			}
			checkInstalled(t, m, image, request)
			if len(requests) != 3 || requests[0] != "" || !strings.HasPrefix(requests[2], "bytes=") {
				t.Errorf("requests: %q", requests)
			}
		})
	}
}

// brokenBody brings its data and then breaks.
type brokenBody struct{ io.Reader }

func (b brokenBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (brokenBody) Close() error { return nil }

func TestTruncatedDownloadFails(t *testing.T) {
	t.Parallel()
	image := testImage(3, 4*mebibyte)
	m := newMachine(t)
	synctest.Test(t, func(t *testing.T) {
		options := m.options()
		options.Client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Range") != "" {
				return &http.Response{StatusCode: 503, Status: "503 Service Unavailable", Body: http.NoBody}, nil
			}
			body := brokenBody{bytes.NewReader(image[:3*mebibyte])}
			return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: body}, nil
		})}
		report := Run(t.Context(), requestFor("http://host/image", image), options)
		if report.GetOk() || !strings.Contains(report.GetError(), "tries in a row") || !strings.Contains(report.GetError(), "503") {
			t.Errorf("report: %v", report)
		}
	})
	m.mustNotBoot(t)
}

func TestImageChangedMeanwhile(t *testing.T) {
	t.Parallel()
	image := testImage(4, 2*mebibyte)
	m := newMachine(t)
	request := requestFor(serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"`+r.Header.Get("Range")+`"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(image)))
		_, _ = w.Write(image[:mebibyte])
		panic(http.ErrAbortHandler)
	}), image)
	if report := Run(t.Context(), request, m.options()); !strings.Contains(report.GetError(), "changed while") {
		t.Errorf("report: %v", report)
	}
}

func TestPermanentAnswerIsNotRepeated(t *testing.T) {
	t.Parallel()
	requests := 0
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.WriteHeader(http.StatusNotFound)
	})
	report := Run(t.Context(), requestFor(url+"?token=hush", nil), newMachine(t).options())
	if !strings.Contains(report.GetError(), "404") || strings.Contains(report.GetError(), "hush") || requests != 1 {
		t.Errorf("%d requests, report: %v", requests, report)
	}
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
	request.TimeoutMs = 100
	if report := Run(t.Context(), request, m.options()); report.GetError() != "the install did not end within 100ms" {
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

// A disk that fails ends the install at once, although the download stands still.
func TestDiskFailureEndsTheDownload(t *testing.T) {
	t.Parallel()
	source, err := newSource(t.Context(), NewClient(), serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte{1}, mebibyte+chunkSize))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	file, err := os.Open(os.DevNull) // not open for writing
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{
		raw: source, abort: source.abort, limit: 10 * mebibyte, disk: &disk{file: file, size: diskSize},
		head: make([]byte, 0, mebibyte), progress: func(int64) {},
	}
	started := time.Now()
	if err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), "write the disk") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(started); took > stallLimit/2 {
		t.Errorf("it took %s", took)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// silent is a body that brings nothing until its request ends.
type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func (silent) Close() error { return nil }

func TestStalledDownloadIsAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if requests++; requests < 3 {
				return &http.Response{StatusCode: 200, ContentLength: 3, Body: silent{r.Context()}}, nil
			}
			return &http.Response{StatusCode: 200, ContentLength: 3, Body: io.NopCloser(strings.NewReader("abc"))}, nil
		})}
		started := time.Now()
		source, err := newSource(t.Context(), client, "http://host/image")
		if err != nil {
			t.Fatal(err)
		}
		defer source.Close()
		data, err := io.ReadAll(source)
		if string(data) != "abc" || err != nil || time.Since(started) < 2*stallLimit {
			t.Errorf("%q, %v after %s", data, err, time.Since(started))
		}
	})
}

func TestChoose(t *testing.T) {
	t.Parallel()
	disks := []*agentv1.BlockDevice{
		{Name: "sdd", Serial: "D", SizeBytes: 500 * mebibyte, Wwn: "0xAB"},
		{Name: "sdc", Serial: "C", SizeBytes: 500 * mebibyte},
		{Name: "sdb", Serial: "B", SizeBytes: 100 * mebibyte},
		{Name: "sda", Serial: "A", SizeBytes: 2 * mebibyte},
		{Name: "sde", Serial: "E", SizeBytes: 900 * mebibyte, Removable: true},
		{Name: "sdf", Serial: "F", SizeBytes: 900 * mebibyte, ReadOnly: true},
		{Name: "sdg", Serial: "G", SizeBytes: 900 * mebibyte},
		{Name: "../x", Serial: "X", SizeBytes: 900 * mebibyte},
	}
	inUse := func(name string) string {
		if name == "sdg" {
			return "is mounted at /"
		}
		return ""
	}
	tests := []struct {
		name     string
		selector *agentv1.DiskSelector
		need     int64
		want     string
		err      string
	}{
		{"smallest", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST}, 1, "sdb", ""},
		{"smallest that holds the image", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST}, 99 * mebibyte, "sdc", ""},
		{"largest, first by name", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_LARGEST}, 1, "sdc", ""},
		{"minimum", &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST, MinSize: 101 * mebibyte}, 1, "sdc", ""},
		{"serial", &agentv1.DiskSelector{Serial: "D"}, 1, "sdd", ""},
		{"WWN in either case", &agentv1.DiskSelector{Wwn: "0xab"}, 1, "sdd", ""},
		{"serial and other WWN", &agentv1.DiskSelector{Serial: "C", Wwn: "0xab"}, 1, "", "no disk fits"},
		{"ambiguous", nil, 1, "", "3 disks match (sdb, sdc, sdd)"},
		{"mounted", &agentv1.DiskSelector{Serial: "G"}, 1, "", "sdg is mounted at /"},
		{"removable", &agentv1.DiskSelector{Serial: "E"}, 1, "", "sde is removable"},
		{"read-only", &agentv1.DiskSelector{Serial: "F"}, 1, "", "sdf is read-only"},
		{"too small", &agentv1.DiskSelector{Serial: "A"}, 1, "", "sda is too small"},
		{"bad name", &agentv1.DiskSelector{Serial: "X"}, 1, "", "name that makes no sense"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := choose(disks, test.selector, test.need, inUse)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			if err != nil || got.GetName() != test.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	if _, err := choose(nil, nil, 1, inUse); err == nil {
		t.Error("a disk out of nothing")
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, content := range map[string]string{
		"proc/self/mountinfo":                  "22 1 8:2 / / rw,relatime - ext4 /dev/sda2 rw\n",
		"proc/swaps":                           "Filename\tType\tSize\n/dev/sdb1 partition 1 0 -2\n",
		"sys/class/block/sda/dev":              "8:0\n",
		"sys/class/block/sda/sda2/dev":         "8:2\n",
		"sys/class/block/sda/sda2/partition":   "2\n",
		"sys/class/block/sdb/dev":              "8:16\n",
		"sys/class/block/sdb/sdb1/dev":         "8:17\n",
		"sys/class/block/sdb/sdb1/partition":   "1\n",
		"sys/class/block/sdc/dev":              "8:32\n",
		"sys/class/block/sdc/holders/dm-0/dev": "254:0\n",
		"sys/class/block/sdd/dev":              "8:48\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	usage := readUsage(root)
	for disk, want := range map[string]string{"sda": "is mounted at /", "sdb": "is used as swap", "sdc": "is held by dm-0", "sdd": ""} {
		if got := usage.of(disk); got != want {
			t.Errorf("%s %q, want %q", disk, got, want)
		}
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

func TestXZWithHugeDictionaryIsRefused(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w, err := xz.WriterConfig{DictCap: 1 << 30}.NewWriter(&out)
	if err != nil {
		t.Skip("the encoder cannot do it:", err)
	}
	_, _ = w.Write([]byte("x"))
	_ = w.Close()
	if _, _, err := decompress(&out, agentv1.Compression_COMPRESSION_XZ); err == nil || !strings.Contains(err.Error(), "dictionary") {
		t.Errorf("got %v", err)
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

func FuzzXZ(f *testing.F) {
	var out bytes.Buffer
	w, _ := xz.NewWriter(&out)
	_, _ = w.Write([]byte("some data"))
	_ = w.Close()
	f.Add(out.Bytes())
	f.Fuzz(func(_ *testing.T, data []byte) {
		raw, release, err := decompress(bytes.NewReader(data), agentv1.Compression_COMPRESSION_XZ)
		defer release()
		if err == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(raw, 1<<20))
		}
	})
}

func FuzzUsage(f *testing.F) {
	f.Add([]byte("22 1 8:2 / / rw - ext4 /dev/sda2 rw\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		parseMounts(data)
		parseSwaps(data)
		parseContentRange(string(data))
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
