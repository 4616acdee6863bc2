package install

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// faulty panics wherever it is used.
type faulty struct{ medium }

func (faulty) Read([]byte) (int, error)           { panic("a byte that nobody expected") }
func (faulty) WriteAt([]byte, int64) (int, error) { panic("a byte that nobody expected") }

// TestAFaultFailsTheInstall: where the agent is the first process of the machine, a panic would
// restart it from a disk that was wiped. Whatever panics, the report says it, and the machine
// stays.
func TestAFaultFailsTheInstall(t *testing.T) {
	t.Parallel()
	image := testImage(9, 6*mebibyte)
	boom := func() { panic("a byte that nobody expected") }
	body := func(r io.Reader) *http.Client {
		return &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, ContentLength: int64(len(image)), Body: io.NopCloser(r)}, nil
		})}
	}
	for name, change := range map[string]func(o *Options){
		"preparing": func(o *Options) {
			o.Progress = func(agentv1.InstallProgress_Phase, int64) { boom() }
		},
		"beginning": func(o *Options) { o.Begin = func(context.Context, *agentv1.BegunDisk) error { boom(); return nil } },
		"fetching":  func(o *Options) { o.Client = body(io.MultiReader(bytes.NewReader(image[:3*mebibyte]), faulty{})) },
		"writing": func(o *Options) {
			o.medium = func(m medium) medium { return &faultyLater{medium: m} }
		},
		"between the parts": func(o *Options) {
			o.Progress = func(phase agentv1.InstallProgress_Phase, done int64) {
				if phase == agentv1.InstallProgress_PHASE_WRITING && done > 2*mebibyte {
					boom()
				}
			}
		},
		"finishing": func(o *Options) {
			o.Progress = func(phase agentv1.InstallProgress_Phase, _ int64) {
				if phase == agentv1.InstallProgress_PHASE_FINISHING {
					boom()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			options := m.options()
			options.Client = body(bytes.NewReader(image))
			change(&options)
			report := Run(t.Context(), requestFor("http://host/image", image), options)
			if report.GetOk() || !strings.Contains(report.GetError(), "there is a fault in the agent: a byte that nobody expected (") ||
				!strings.Contains(report.GetError(), "_test.go:") {
				t.Errorf("report: %v", report)
			}
			if report.GetDisk() != "" {
				m.mustNotBoot(t)
			} else if !bytes.Equal(m.content(t), m.old) {
				t.Error("the disk was touched")
			}
		})
	}
}

// faultyLater is a medium that panics when it gets the image.
type faultyLater struct{ medium }

func (m *faultyLater) WriteAt(p []byte, offset int64) (int, error) {
	if offset >= 2*mebibyte && offset < 4*mebibyte {
		return faulty{}.WriteAt(p, offset)
	}
	return m.medium.WriteAt(p, offset)
}

// TestAFaultOfADecoderEndsTheStream, wherever in the image it is met.
func TestAFaultOfADecoderEndsTheStream(t *testing.T) {
	t.Parallel()
	target, err := openDisk(newMachine(t).root, "sda", diskSize)
	if err != nil {
		t.Fatal(err)
	}
	defer target.close()
	s := &stream{
		raw: io.MultiReader(bytes.NewReader(make([]byte, 3*mebibyte)), faulty{}), abort: func() {}, limit: 10 * mebibyte, disk: target,
		progress: func(int64) {},
	}
	if err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), "there is a fault in the agent: ") {
		t.Errorf("the stream ended with %v", err)
	}
}
