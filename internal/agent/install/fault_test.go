package install

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// broken is a medium that ponders for long over what is behind the first two MiB, and then fails.
type broken struct {
	medium
	write, zero bool
	err         error // nil: EIO
}

func (m *broken) ponder(fails bool, offset int64) error {
	if !fails || offset < 2*mebibyte || offset >= diskSize-2*mebibyte {
		return nil
	}
	time.Sleep(2 * time.Minute) // it does not hear of the end of ctx
	return cmp.Or(m.err, error(unix.EIO))
}

func (m *broken) WriteAt(p []byte, offset int64) (int, error) {
	if err := m.ponder(m.write, offset); err != nil {
		return 0, err
	}
	return m.medium.WriteAt(p, offset)
}

func (m *broken) Zero(mode uint32, offset, length int64) error {
	if err := m.ponder(m.zero, offset); err != nil {
		return err
	}
	return m.medium.Zero(mode, offset, length)
}

func (m *broken) Sync() error { return unix.EIO }

// TestABrokenDiskIsTold: a disk that fails may take longer for it than an install may last, or than
// anybody wants. The report says both.
func TestABrokenDiskIsTold(t *testing.T) {
	t.Parallel()
	image := testImage(3, 8*mebibyte)
	for name, c := range map[string]struct {
		broken  broken
		timeout time.Duration
		off     time.Duration // from when on nobody wants the install; 0: never
		want    []string
	}{
		"write":      {broken{write: true}, time.Minute, 0, []string{"the install did not end within 1m0s; the disk has failed: input/output error"}},
		"zero":       {broken{zero: true, err: unix.ENXIO}, time.Minute, 0, []string{"the install did not end within 1m0s; the disk has failed: zero ", "sda: no such device or address"}},
		"both":       {broken{write: true, zero: true}, time.Hour, 0, []string{"input/output error"}},
		"called off": {broken{write: true}, time.Hour, time.Minute, []string{"called off: /dev/sda was wiped and ", "is undefined; the disk has failed: input/output error"}},
		"in time":    {broken{write: true}, time.Hour, 0, []string{"copy the image: write the disk: input/output error"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if c.off > 0 {
					defer time.AfterFunc(c.off, func() { cancel(ErrCalledOff) }).Stop()
				}
				options := m.options()
				options.medium = func(m medium) medium { c.broken.medium = m; return &c.broken }
				options.Client = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: io.NopCloser(bytes.NewReader(image))}, nil
				})}
				request := requestFor("http://host/image", image)
				request.TimeoutMs = c.timeout.Milliseconds()
				report := Run(ctx, request, options)
				for _, want := range c.want {
					if report.GetOk() || !strings.Contains(report.GetError(), want) {
						t.Errorf("report: %v, want %q", report, want)
					}
				}
			})
		})
	}
	d := &disk{isDevice: true, medium: &broken{}}
	err := d.sync()
	if told, ok := errors.AsType[*diskError](d.withFault(context.DeadlineExceeded)); !ok || !errors.Is(told.fault, err) || err == nil {
		t.Errorf("a failed sync is not noted: %v", err)
	}
}

// TestADiskThatHangsIsTold: a disk may never answer. The install is given up, no other one begins
// meanwhile, and one does when the disk has answered at last.
func TestADiskThatHangsIsTold(t *testing.T) {
	t.Parallel()
	image := testImage(3, 8*mebibyte)
	m := newMachine(t)
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		options := m.options()
		options.Busy = new(atomic.Bool)
		options.medium = func(m medium) medium { return &hung{m, answers} }
		options.Client = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: io.NopCloser(bytes.NewReader(image))}, nil
		})}
		request := requestFor("http://host/image", image)
		request.TimeoutMs = time.Minute.Milliseconds()
		began := time.Now()
		report := Run(t.Context(), request, options)
		if report.GetError() != "the install did not end within 1m0s; a disk does not answer" || report.GetDisk() != "/dev/sda" || time.Since(began) != time.Minute+patience {
			t.Errorf("after %s: %v", time.Since(began), report)
		}
		request = proto.CloneOf(request) // the one that hangs has the other
		request.Attempt++
		report = Run(t.Context(), request, options)
		if report.GetOk() || !strings.Contains(report.GetError(), "an earlier install still waits for a disk") || report.GetDisk() != "" {
			t.Errorf("while it hangs: %v", report)
		}
		close(answers)
		synctest.Wait()
		if report = Run(t.Context(), request, options); !report.GetOk() {
			t.Errorf("when it has answered: %v", report)
		}
	})
}

// TestADiskThatFailsAndHangsIsTold: one that failed, and then never answers, is told to have
// failed.
func TestADiskThatFailsAndHangsIsTold(t *testing.T) {
	t.Parallel()
	image := testImage(3, 8*mebibyte)
	m := newMachine(t)
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		defer close(answers)
		options := m.options()
		options.medium = func(m medium) medium { return &failsAndHangs{hung{m, answers}, atomic.Bool{}} }
		options.Client = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: io.NopCloser(bytes.NewReader(image))}, nil
		})}
		request := requestFor("http://host/image", image)
		request.TimeoutMs = time.Minute.Milliseconds()
		report := Run(t.Context(), request, options)
		if report.GetError() != "the install did not end within 1m0s; a disk does not answer; the disk has failed: input/output error" {
			t.Errorf("report: %v", report)
		}
	})
}

// failsAndHangs is a medium of which one write behind the first two MiB hangs, and all others there
// fail, one at least: several are written at a time.
type failsAndHangs struct {
	hung
	hangs atomic.Bool
}

func (m *failsAndHangs) WriteAt(p []byte, offset int64) (int, error) {
	switch {
	case offset < 2*mebibyte || offset >= diskSize-2*mebibyte:
		return m.medium.WriteAt(p, offset)
	case m.hangs.CompareAndSwap(false, true):
		return m.hung.WriteAt(p, offset)
	}
	return 0, unix.EIO
}

// hung is a medium that writes nothing before it answers again.
type hung struct {
	medium
	answers chan struct{}
}

func (m *hung) WriteAt(p []byte, offset int64) (int, error) {
	<-m.answers
	return m.medium.WriteAt(p, offset)
}

// TestWhatIsNotReportedAsInstalledDoesNotBoot: a disk may answer when its install was given up, or
// fail when all but the last of it was written. Either leaves a wiped disk, which a later attempt
// may write, also one of another boot.
func TestWhatIsNotReportedAsInstalledDoesNotBoot(t *testing.T) {
	t.Parallel()
	image := partitioned(t)
	for name, at := range map[string]int64{
		"first-boot area":       FirstBootOffset(bigSize),
		"backup of the table":   bigSize - 33*512,
		"boot sectors":          0,
		"removal of the record": FirstBootOffset(bigSize) + begunSlots[0],
	} {
		for _, hangs := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, hangs: %t", name, hangs), func(t *testing.T) {
				t.Parallel()
				m, options := bigMachine(t)
				options.Busy = new(atomic.Bool)
				last := &lastWrite{at: at}
				options.medium = func(m medium) medium { last.medium = m; return last }
				options.Progress = func(phase agentv1.InstallProgress_Phase, _ int64) {
					last.finishing.Store(phase == agentv1.InstallProgress_PHASE_FINISHING)
				}
				request := requestFor("http://host/image", image)
				request.RootDisk = &agentv1.DiskSelector{Grow: true}
				request.BootToken.InstallGeneration, request.BootToken.Attempt = request.GetInstallGeneration(), request.GetAttempt()
				next := proto.CloneOf(request) // the one that hangs has the other
				next.Attempt++
				synctest.Test(t, func(t *testing.T) {
					last.answers = make(chan struct{})
					if !hangs {
						last.err = unix.ENXIO // after which no other way of zeroing is tried
						close(last.answers)
					}
					options.Client = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
						return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: io.NopCloser(bytes.NewReader(image))}, nil
					})}
					report := Run(t.Context(), request, options)
					if report.GetOk() || strings.Contains(report.GetError(), "a disk does not answer") != hangs {
						t.Errorf("report: %v", report)
					}
					if hangs {
						close(last.answers)
						synctest.Wait()
					}
					content, err := os.ReadFile(m.disk)
					if err != nil || len(bytes.Trim(content[:mebibyte], "\x00")) > 0 || len(bytes.Trim(content[bigSize-mebibyte:], "\x00")) > 0 {
						t.Errorf("what was reported as failed may boot: %v", err)
					}
					if hangs && at == FirstBootOffset(bigSize) && last.booted.Load() {
						t.Error("boot sectors are written although the install was given up before")
					}
					last.at = -1
					if report := Run(t.Context(), next, options); !report.GetOk() {
						t.Errorf("the next attempt: %v", report)
					}
				})
			})
		}
	}
}

// lastWrite is a medium that does not answer a write at one place before it is let, or fails there,
// when the install is about to end.
type lastWrite struct {
	medium
	at        int64
	err       error
	answers   chan struct{}
	finishing atomic.Bool
	// booted says that the boot sectors were written.
	booted atomic.Bool
}

func (m *lastWrite) await(offset int64) error {
	if offset != m.at || !m.finishing.CompareAndSwap(true, false) {
		return nil
	}
	<-m.answers
	return m.err
}

func (m *lastWrite) WriteAt(p []byte, offset int64) (int, error) {
	if err := m.await(offset); err != nil {
		return 0, err
	}
	if offset == 0 {
		m.booted.Store(true)
	}
	return m.medium.WriteAt(p, offset)
}

func (m *lastWrite) Zero(mode uint32, offset, length int64) error {
	if err := m.await(offset); err != nil {
		return err
	}
	return m.medium.Zero(mode, offset, length)
}
