package agent

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// jumped has the host be in memory, after the jump for an install of that image.
func (f *fixture) jumped(data []byte) {
	t := f.t
	t.Helper()
	f.host.prepare(t, initMessage(1, f.authority))
	pending, err := proto.Marshal(installRequest(3, 1, data))
	if err != nil {
		t.Fatal(err)
	}
	f.host.change(t, func(state *agentv1.AgentState) {
		state.InstallGeneration, state.InstallAttempt, state.InstallRunning, state.PendingInstall = 3, 1, true, pending
	})
	f.options.HTTPClient, f.options.Mode = imageClient(data), agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
}

// untouched says whether nothing was written to the host's disk, nor was to be.
func (h *host) untouched(tb testing.TB) bool {
	tb.Helper()
	disk, err := os.ReadFile(filepath.Join(h.root, "dev/vda"))
	if err != nil {
		tb.Fatal(err)
	}
	return len(bytes.Trim(disk, "\x00")) == 0 && h.state(tb).GetFirstInstallBootId() == "" && h.state(tb).GetBegunDisk() == nil
}

// TestNothingIsWrittenBeforeTheFirstAnswer: after a jump for an install, the control plane may have
// called it off, and it may be out of reach. The image comes all the same, but the disk is written
// only when an answer has come and lets the install go on.
func TestNothingIsWrittenBeforeTheFirstAnswer(t *testing.T) {
	data := image()
	for name, c := range map[string]struct {
		answer *agentv1.HeartbeatResponse // the first one, after some minutes of silence
		ok     bool
		err    string // of the report of attempt 1
	}{
		"goes on":    {answer: &agentv1.HeartbeatResponse{}, ok: true},
		"called off": {answer: &agentv1.HeartbeatResponse{CancelInstall: &agentv1.CancelInstall{InstallGeneration: 3, Attempt: 1}}, err: "called off: nothing was written"},
		"replaced":   {answer: &agentv1.HeartbeatResponse{InstallRequest: installRequest(3, 2, data)}, ok: true},
		"unanswered": {},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				f.jumped(data)
				f.options.Reboot = func(context.Context) error { f.stop(); return nil }
				var last *agentv1.InstallReport
				begun, silent := time.Now(), 5*time.Minute
				f.answer = func(_ int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
					if r := request.GetInstallReport(); r != nil {
						last = r
					}
					if c.answer == nil || time.Since(begun) < silent {
						if request.GetInstallProgress().GetAttempt() != 1 {
							f.t.Errorf("a heartbeat does not tell of the install: %v", request)
						}
						return nil, status.Error(codes.Unavailable, "nobody is there")
					}
					response := &agentv1.HeartbeatResponse{NextIntervalMs: 1000}
					if last == nil {
						proto.Merge(response, c.answer) // again and again
					}
					return response, nil
				}
				f.start(f.t)
				after(silent - time.Second)
				if !f.host.untouched(f.t) {
					f.t.Error("the disk was written before the first answer")
				}
				if c.answer == nil || !c.ok {
					after(time.Minute)
					if !f.host.untouched(f.t) {
						f.t.Error("the disk was written")
					}
					f.end(f.t)
				} else {
					if err := <-f.done; err != nil {
						f.t.Fatal(err)
					}
					synctest.Wait()
					f.server.Stop()
				}
				if c.answer != nil && (last.GetOk() != c.ok || last.GetError() != c.err) {
					f.t.Errorf("report: %v", last)
				}
				if first := f.host.state(f.t).GetFirstInstallAttempt(); name == "replaced" && (first != 2 || last.GetAttempt() != 2) {
					f.t.Errorf("attempt %d wrote first; report: %v", first, last)
				}
			})
		})
	}
}

// TestADiskOfBeforeIsWaitedFor: an install after a jump waits for the disks that the machine had,
// and then takes no other disk in the place of one that it could mean.
func TestADiskOfBeforeIsWaitedFor(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.jumped(image())
		f.host.change(f.t, func(state *agentv1.AgentState) {
			state.DisksBefore = []*agentv1.BlockDevice{{Name: "sda", Serial: "BOOT", SizeBytes: 1 << 40}}
		})
		var last atomic.Pointer[agentv1.InstallReport]
		f.answer = func(_ int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			if r := request.GetInstallReport(); r != nil {
				last.Store(r)
			}
			return &agentv1.HeartbeatResponse{NextIntervalMs: 1000}, nil
		}
		f.start(f.t)
		after(diskWait - 2*time.Second)
		if report := last.Load(); report != nil {
			f.t.Errorf("it did not wait: %v", report)
		}
		after(time.Minute)
		report := last.Load()
		if report.GetOk() || !strings.Contains(report.GetError(), `sda (serial number "BOOT", 1099511627776 bytes), which the machine had before it was taken over`) ||
			!f.host.untouched(f.t) {
			f.t.Errorf("report: %v", report)
		}
		f.end(f.t)
	})
}

// TestAnInstallThatCannotBeRecordedIsReported: after a jump, too, where nobody else would tell the
// control plane.
func TestAnInstallThatCannotBeRecordedIsReported(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.jumped(image())
		f.host.write(f.t, "var/lib/ironherd-agent/state.new/in-the-way", "")
		var reported *agentv1.InstallReport
		f.answer = func(_ int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			if r := request.GetInstallReport(); r != nil {
				reported = r
			}
			return &agentv1.HeartbeatResponse{}, nil
		}
		f.start(f.t)
		after(time.Minute)
		if reported.GetAttempt() != 1 || !strings.HasPrefix(reported.GetError(), "the install was not started, because the agent cannot record it: ") || !f.host.untouched(f.t) {
			f.t.Errorf("report: %v", reported)
		}
		f.end(f.t)
	})
}

// A lost install says which disk it may have written. What it recorded in memory is gone with that:
// of a machine that is back from there nobody knows, if the agent in memory has not left word.
func TestLostInstallNamesItsDisk(t *testing.T) {
	back := func(nothing bool) *agentv1.ReturnedTakeover {
		return &agentv1.ReturnedTakeover{TakeoverGeneration: 1, Cause: "power", NothingWritten: nothing}
	}
	for name, c := range map[string]struct {
		change       func(*agentv1.AgentState)
		disk, serial string
	}{
		"the agent ended":                        {func(*agentv1.AgentState) {}, "", ""},
		"the host was restarted without a jump":  {func(s *agentv1.AgentState) { s.InstallBootId = "boot-0" }, "", ""},
		"back from memory":                       {func(s *agentv1.AgentState) { s.InstallBootId, s.Returned = "boot-0", back(false) }, "unknown", ""},
		"back from memory, with nothing written": {func(s *agentv1.AgentState) { s.InstallBootId, s.Returned = "boot-0", back(true) }, "", ""},
		"back from memory, of an earlier install": {func(s *agentv1.AgentState) {
			s.Returned, s.BegunDisk = back(false), &agentv1.BegunDisk{InstallGeneration: 1, Name: "vda"}
		}, "unknown", ""},
		"a disk was begun": {func(s *agentv1.AgentState) {
			s.BegunDisk = &agentv1.BegunDisk{InstallGeneration: 2, Name: "vda", Serial: "S1"}
		}, "/dev/vda", "S1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				t := f.t
				f.host.prepare(t, initMessage(1, f.authority))
				f.host.change(t, func(state *agentv1.AgentState) {
					state.InstallGeneration, state.InstallAttempt, state.InstallRunning, state.InstallBootId = 2, 3, true, "boot-1"
					c.change(state)
				})
				f.start(t)
				after(time.Minute)
				if report := f.seen()[0].GetInstallReport(); report.GetDisk() != c.disk || report.GetDiskSerial() != c.serial {
					t.Errorf("report: %v", report)
				}
				f.end(t)
			})
		})
	}
}

// An agent that installs tells how it goes on as often as the control plane lets it, and its
// heartbeats come all the same.
func TestProgressWaitsForThePaceOfTheControlPlane(t *testing.T) {
	for name, c := range map[string]struct{ interval, progress, least, most int64 }{
		"less often than each second": {30_000, 4_000, 4_000, 6_000},
		"no less often than it beats": {5_000, 60_000, 5_000, 5_000},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				t := f.t
				f.host.prepare(t, initMessage(1, f.authority))
				data := append(image(), make([]byte, 3_000_000)...) // twenty seconds
				f.options.HTTPClient = imageClient(data)
				f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
					response := &agentv1.HeartbeatResponse{NextIntervalMs: c.interval, ProgressIntervalMs: c.progress}
					if n == 0 {
						response.InstallRequest = installRequest(1, 1, data)
					}
					return response, nil
				}
				f.start(t)
				after(19 * time.Second)
				calls, told := f.seen(), 0
				for i, call := range calls {
					if call.GetInstallProgress().GetBytesDone() == 0 || calls[i-1].GetInstallProgress().GetBytesDone() == 0 {
						continue
					}
					told++
					if gap := call.at.Sub(calls[i-1].at).Milliseconds(); gap < c.least || gap > c.most {
						t.Errorf("progress %d ms after the heartbeat before", gap)
					}
				}
				if told == 0 {
					t.Errorf("%d heartbeats with progress", told)
				}
				f.end(t)
			})
		})
	}
}
