package install

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// broken is a medium that ponders for long over what is behind the first two MiB, and then fails.
type broken struct {
	medium
	write, zero bool
}

func (m *broken) ponder(fails bool, offset int64) error {
	if !fails || offset < 2*mebibyte || offset >= diskSize-2*mebibyte {
		return nil
	}
	time.Sleep(2 * time.Minute) // it does not hear of the end of ctx
	return unix.EIO
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
		"zero":       {broken{zero: true}, time.Minute, 0, []string{"the install did not end within 1m0s; the disk has failed: zero ", "sda: input/output error"}},
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

// hung is a medium that writes nothing before it answers again.
type hung struct {
	medium
	answers chan struct{}
}

func (m *hung) WriteAt(p []byte, offset int64) (int, error) {
	<-m.answers
	return m.medium.WriteAt(p, offset)
}
