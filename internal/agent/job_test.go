package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// image is one that fits the disk of a host.
func image() []byte {
	data := bytes.Repeat([]byte("image "), 500_000)
	return data
}

func installRequest(generation int64, attempt int32, data []byte) *agentv1.InstallRequest {
	return &agentv1.InstallRequest{
		InstallGeneration: generation, Attempt: attempt, TimeoutMs: 600_000,
		Image: &agentv1.Image{
			Url: "http://images/os", Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(data)), Size: int64(len(data)),
			Compression: agentv1.Compression_COMPRESSION_NONE,
		},
	}
}

// slowly brings data in pieces, one a second.
type slowly struct {
	ctx  context.Context
	data []byte
}

func (s *slowly) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	case <-timer.C:
	}
	n := copy(p, s.data[:min(len(s.data), 300_000)])
	s.data = s.data[n:]
	return n, nil
}

func (s *slowly) Close() error { return nil }

func imageClient(data []byte) *http.Client {
	return &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ContentLength: int64(len(data)), Body: &slowly{r.Context(), data}}, nil
	})}
}

// TestInstallIsReportedThenBooted is I8 on the host: a report is kept, and the machine not
// rebooted, until the report is acknowledged.
func TestInstallIsReportedThenBooted(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		data := image()
		f.options.HTTPClient = imageClient(data)
		rebooted := 0
		f.options.Reboot = func(context.Context) error {
			rebooted++
			last := f.seen()[len(f.calls)-1]
			if !last.GetInstallReport().GetOk() {
				t.Error("rebooted before the success was acknowledged")
			}
			f.stop()
			return nil
		}
		lost := 0
		f.answer = func(n int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			if request.GetInstallReport() != nil && lost < 3 {
				lost++
				return nil, status.Error(codes.Unavailable, "not committed")
			}
			response := &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}
			if n == 0 {
				response.InstallRequest = installRequest(1, 1, data)
			}
			return response, nil
		}
		f.start(t)
		if err := <-f.done; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		calls := f.seen()
		progress := 0
		for i, call := range calls {
			if i > 0 && call.GetLastInstallGeneration() != 1 {
				t.Error("the start of the install is not told")
			}
			if call.GetInstallProgress() != nil {
				progress++
				if gap := call.at.Sub(calls[i-1].at); gap < progressEvery/2 {
					t.Errorf("progress after %s", gap)
				}
			}
		}
		if progress < 5 || progress > 15 || rebooted != 1 || lost != 3 {
			t.Errorf("%d heartbeats with progress, %d reboots, %d lost", progress, rebooted, lost)
		}
		last := calls[len(calls)-1].GetInstallReport()
		if last.GetBytesWritten() != int64(len(data)) || last.GetDurationMs() < 9000 || last.GetDisk() != "/dev/vda" {
			t.Errorf("report: %v", last)
		}
		state := f.host.state(t)
		if len(state.GetUnacknowledgedReport()) == 0 || state.GetInstallRunning() {
			t.Error("the report must be kept until the machine has gone down")
		}
		f.server.Stop()
	})
}

// After the reboot that follows a success nothing reboots again.
func TestSuccessIsForgottenAfterTheReboot(t *testing.T) {
	for _, boot := range []string{"boot-1", "boot-2"} {
		t.Run(boot, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				t := f.t
				f.host.prepare(t, initMessage(1, f.authority))
				f.host.change(t, func(state *agentv1.AgentState) {
					state.InstallGeneration, state.InstallAttempt, state.InstallBootId = 1, 1, "boot-1"
					state.UnacknowledgedReport = encodeReport(&agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, Ok: true})
				})
				f.host.write(t, "proc/sys/kernel/random/boot_id", boot)
				reboots := 0
				f.options.Reboot = func(context.Context) error {
					reboots++
					return nil
				}
				f.start(t)
				after(150 * time.Second)
				reports := 0
				for _, call := range f.seen() {
					if call.GetInstallReport() != nil {
						reports++
					}
				}
				// one a rebootWait, because it does not go down
				if boot == "boot-1" && (reboots != 2 || reports != 2) {
					t.Errorf("%d reboots, %d reports", reboots, reports)
				}
				if boot == "boot-2" && (reboots != 0 || reports != 1 || len(f.host.state(t).GetUnacknowledgedReport()) > 0) {
					t.Errorf("%d reboots, %d reports", reboots, reports)
				}
				f.end(t)
			})
		})
	}
}

func TestFailedInstallIsForgottenOnceReported(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		data := image()
		f.options.HTTPClient = imageClient(data)
		wrong := installRequest(3, 1, data)
		wrong.Image.Digest = "sha256:" + strings.Repeat("0", 64)
		var reports []*agentv1.InstallReport
		f.answer = func(_ int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			if report := request.GetInstallReport(); report != nil {
				reports = append(reports, proto.CloneOf(report))
				if len(f.host.state(t).GetUnacknowledgedReport()) == 0 {
					t.Error("the report is not in the state")
				}
			}
			// The same request for ever, as if every answer had been lost; then older ones.
			requests := []*agentv1.InstallRequest{wrong, installRequest(2, 9, data), installRequest(0, 1, data), installRequest(4, 0, data)}
			return &agentv1.HeartbeatResponse{NextIntervalMs: 1000, InstallRequest: requests[len(reports)%4]}, nil
		}
		f.start(t)
		after(5 * time.Minute)
		if len(reports) != 1 || reports[0].GetOk() || !strings.Contains(reports[0].GetError(), "digest") {
			t.Errorf("reports: %v", reports)
		}
		if state := f.host.state(t); len(state.GetUnacknowledgedReport()) > 0 || state.GetInstallGeneration() != 3 || state.GetInstallAttempt() != 1 {
			t.Errorf("state: %v", state)
		}
		f.end(t)
	})
}

func TestNewerRequestReplacesTheInstall(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		data := image()
		f.options.HTTPClient = imageClient(data)
		f.options.Reboot = func(context.Context) error {
			f.stop()
			return nil
		}
		f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			response := &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}
			if n < 4 {
				response.InstallRequest = installRequest(1, int32(n+1), data)
			}
			return response, nil
		}
		f.start(t)
		if err := <-f.done; err != nil {
			t.Fatal(err)
		}
		calls := f.seen()
		if last := calls[len(calls)-1].GetInstallReport(); !last.GetOk() || last.GetAttempt() != 4 {
			t.Errorf("report: %v", last)
		}
		f.server.Stop()
	})
}

func TestLostInstallIsReported(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		f.host.change(t, func(state *agentv1.AgentState) {
			state.InstallGeneration, state.InstallAttempt, state.InstallRunning, state.InstallBootId = 2, 3, true, "boot-1"
		})
		f.host.prepare(t, initMessage(2, f.authority)) // a takeover carries it over
		f.start(t)
		after(time.Minute)
		report := f.seen()[0].GetInstallReport()
		if report.GetInstallGeneration() != 2 || report.GetAttempt() != 3 || report.GetOk() || report.GetError() != restartedMessage {
			t.Errorf("report: %v", report)
		}
		if f.seen()[1].GetInstallReport() != nil || len(f.host.state(t).GetUnacknowledgedReport()) > 0 {
			t.Error("the report was not forgotten")
		}
		f.end(t)
	})
}

func TestStoppedInstallIsReportedByTheNextAgent(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		data := image()
		f.options.HTTPClient = imageClient(data)
		f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			response := &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}
			if n == 0 {
				response.InstallRequest = installRequest(1, 1, data)
			}
			return response, nil
		}
		f.start(t)
		after(3 * time.Second)
		f.stop()
		if err := <-f.done; err != nil {
			t.Error(err)
		}
		report := new(agentv1.InstallReport)
		state := f.host.state(t)
		if err := proto.Unmarshal(state.GetUnacknowledgedReport(), report); err != nil || report.GetError() != errStopped.Error() {
			t.Errorf("report: %v", report)
		}
		if head, err := os.ReadFile(filepath.Join(f.host.root, "dev/vda")); err != nil || len(bytes.Trim(head[:1<<20], "\x00")) > 0 {
			t.Error("what was half written would boot")
		}
		f.server.Stop()
	})
}

// TestInstallIsCalledOff: the agent ends what it works at, and reports that; another attempt than
// the running one it leaves alone.
func TestInstallIsCalledOff(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		data := image()
		f.options.HTTPClient = imageClient(data)
		f.answer = func(n int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			response := &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}
			switch {
			case n == 0:
				response.InstallRequest = installRequest(1, 2, data)
				// nothing runs yet
				response.CancelInstall = &agentv1.CancelInstall{InstallGeneration: 1, Attempt: 2}
			case request.GetInstallProgress().GetBytesDone() == 0:
				response.CancelInstall = &agentv1.CancelInstall{InstallGeneration: 1, Attempt: 1}
			default:
				response.CancelInstall = &agentv1.CancelInstall{InstallGeneration: 1, Attempt: 2}
			}
			return response, nil
		}
		f.start(t)
		after(time.Minute)
		var report *agentv1.InstallReport
		for _, c := range f.seen() {
			if r := c.GetInstallReport(); r != nil {
				report = r
			}
		}
		if report.GetOk() || report.GetAttempt() != 2 || !strings.HasPrefix(report.GetError(), "called off: /dev/vda was wiped ") {
			t.Errorf("report: %v", report)
		}
		if state := f.host.state(t); state.GetInstallRunning() || len(state.GetUnacknowledgedReport()) > 0 {
			t.Errorf("state: %v", state)
		}
		f.end(t)
	})
}

// TestInstalledSystemIsStartedByKexec, where the request wants it and the kernel can be loaded;
// else, and when the start fails, the machine is restarted.
func TestInstalledSystemIsStartedByKexec(t *testing.T) {
	for _, c := range []struct {
		name              string
		loadErr, startErr error
		want              string
	}{
		{"started", nil, nil, "load /dev/vda; start; "},
		{"not loaded", errors.New("no GRUB"), nil, "load /dev/vda; reboot; "},
		{"not started", nil, errors.New("the kernel went on"), "load /dev/vda; start; reboot; "},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				f.host.prepare(f.t, initMessage(1, f.authority))
				data, done := image(), ""
				f.options.HTTPClient = imageClient(data)
				f.options.loadInstalled = func(disk string) error { done += "load " + disk + "; "; return c.loadErr }
				f.options.startInstalled = func(context.Context) error {
					done += "start; "
					if c.startErr == nil {
						f.stop()
					}
					return c.startErr
				}
				f.options.Reboot = func(context.Context) error { done += "reboot; "; f.stop(); return nil }
				f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
					response := &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}
					if n == 0 {
						response.InstallRequest = installRequest(1, 1, data)
						response.InstallRequest.Kexec = true
					}
					return response, nil
				}
				f.start(f.t)
				if err := <-f.done; err != nil {
					f.t.Fatal(err)
				}
				synctest.Wait()
				if done != c.want {
					f.t.Errorf("%s, want %s", done, c.want)
				}
				calls := f.seen()
				warnings := strings.Join(calls[len(calls)-1].GetInstallReport().GetWarnings(), "; ")
				if want := "cannot start the installed system: no GRUB"; strings.Contains(warnings, want) != (c.loadErr != nil) {
					f.t.Errorf("warnings of the report: %s", warnings)
				}
				f.server.Stop()
			})
		})
	}
}

// TestAFaultAroundAnInstallIsReported: where the agent is the first process of the machine, a panic
// would restart it. The report says it instead, and the machine stays.
func TestAFaultAroundAnInstallIsReported(t *testing.T) {
	boom := func() error { panic("a byte that nobody expected") }
	const want = "there is a fault in the agent: a byte that nobody expected (job_test.go:"
	for name, change := range map[string]func(o *Options){
		"before": func(o *Options) {
			o.jumpForInstall = func(context.Context, *takeover.Store, *agentv1.AgentState, *agentv1.InstallRequest) error {
				return boom()
			}
		},
		"after": func(o *Options) { o.loadInstalled = func(string) error { return boom() } },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				f.host.prepare(f.t, initMessage(1, f.authority))
				data := image()
				f.options.HTTPClient = imageClient(data)
				f.options.Reboot = func(context.Context) error { return nil }
				change(&f.options)
				var report *agentv1.InstallReport
				f.answer = func(n int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
					response := &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}
					if n == 0 {
						response.InstallRequest = installRequest(1, 1, data)
						response.InstallRequest.Kexec = true
					}
					if r := request.GetInstallReport(); r != nil {
						report = r
					}
					return response, nil
				}
				f.start(f.t)
				after(time.Minute)
				if said := report.GetError() + strings.Join(report.GetWarnings(), ""); report.GetOk() != (name == "after") || !strings.Contains(said, want) {
					f.t.Errorf("report: %v", report)
				}
				f.end(f.t)
			})
		})
	}
}

// TestWaitingIsTold: while the image server is away, each heartbeat says what the install waits
// for.
func TestWaitingIsTold(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.host.prepare(f.t, initMessage(1, f.authority))
		data := image()
		begun, requests := time.Now(), 0
		f.options.HTTPClient = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			requests++
			response := &http.Response{StatusCode: 200, ContentLength: int64(len(data)), Body: &slowly{r.Context(), data}}
			switch {
			case requests == 1:
				response.Body = &slowly{r.Context(), data[:1_500_000]}
			case time.Since(begun) < 3*time.Minute:
				return nil, errors.New("connection refused")
			}
			return response, nil
		})}
		f.options.Reboot = func(context.Context) error { f.stop(); return nil }
		f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			response := &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}
			if n == 0 {
				response.InstallRequest = installRequest(1, 1, data)
			}
			return response, nil
		}
		f.start(f.t)
		if err := <-f.done; err != nil {
			f.t.Fatal(err)
		}
		synctest.Wait()
		waited, last := 0, ""
		calls := f.seen()
		for _, call := range calls {
			if p := call.GetInstallProgress(); p != nil {
				if last = p.GetWaitingFor(); last == "http://images/os: connection refused" {
					waited++
				}
			}
		}
		report := calls[len(calls)-1].GetInstallReport()
		if waited < 10 || last != "" || !report.GetOk() || len(report.GetWarnings()) != 1 {
			f.t.Errorf("%d heartbeats told it, the last %q; report: %v", waited, last, report)
		}
		f.server.Stop()
	})
}
