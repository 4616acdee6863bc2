package agent

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
	"github.com/ironherd/ironherd/internal/agent/inventory"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// holds has the host's disk hold an install of its machine.
func (h *host) holds(tb testing.TB, generation int64, attempt int32) {
	tb.Helper()
	const size = 16384 * 512 // as newHost says
	area, err := install.EncodeFirstBoot(&agentv1.FirstBoot{Token: &agentv1.BootToken{
		MachineId: machineID, InstallGeneration: generation, Attempt: attempt,
	}})
	if err != nil {
		tb.Fatal(err)
	}
	disk := make([]byte, size)
	disk[0] = 1 // it boots
	copy(disk[install.FirstBootOffset(size):], area)
	h.write(tb, "dev/vda", string(disk))
}

// TestJumpOnlyForWhatNoDiskForbids is I9 before a jump: the system that runs is not ended for an
// install that its disk forbids, or whose image is for another architecture, and the report is that
// of the install itself. A disk of which this is not known keeps no jump away.
func TestJumpOnlyForWhatNoDiskForbids(t *testing.T) {
	for name, c := range map[string]struct {
		generation int64 // of the install on the disk; 0: none
		stranger   bool  // the disk holds a file system
		erase      bool
		unreadable bool
		foreign    bool // the image is for another architecture
		refused    bool
	}{
		"a newer install":            {generation: 5, refused: true},
		"the same install":           {generation: 3, refused: true},
		"an older install":           {generation: 2},
		"nothing":                    {},
		"somebody's file system":     {stranger: true, refused: true},
		"what may be erased":         {stranger: true, erase: true},
		"a disk that cannot be read": {unreadable: true},
		"another architecture":       {foreign: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				f.host.prepare(f.t, initMessage(1, f.authority))
				path := filepath.Join(f.host.root, "dev/vda")
				if c.generation > 0 {
					f.host.holds(f.t, c.generation, 1)
				}
				if c.stranger {
					h := make([]byte, 16384*512)
					copy(h[1080:], "\x53\xef")
					f.host.write(f.t, "dev/vda", string(h))
				}
				if c.unreadable { // a directory can be opened, and fails to be read
					if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
						f.t.Fatal(err)
					}
				}
				before, _ := os.ReadFile(path) // nil: it cannot be read
				request := installRequest(3, 1, image())
				request.RootDisk = &agentv1.DiskSelector{Pick: request.GetRootDisk().GetPick(), Erase: c.erase}
				if c.foreign {
					request.Image.Architecture = "riscv64"
				}
				var jumps atomic.Int32
				f.options.jumpForInstall = func(context.Context, *takeover.Store, *agentv1.AgentState, *agentv1.InstallRequest) error {
					jumps.Add(1)
					return errors.New("the kernel went on")
				}
				f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
					response := &agentv1.HeartbeatResponse{NextIntervalMs: 10_000}
					if n == 0 {
						response.InstallRequest = request
					}
					return response, nil
				}
				f.start(f.t)
				after(time.Minute)
				var report *agentv1.InstallReport
				for _, call := range f.seen() {
					if r := call.GetInstallReport(); r != nil {
						report = r
					}
				}
				if !c.refused {
					if jumps.Load() != 1 || !strings.HasSuffix(report.GetError(), "the kernel went on") {
						f.t.Errorf("%d jumps; report: %v", jumps.Load(), report)
					}
					f.end(f.t)
					return
				}
				disks, err := inventory.Disks(f.host.root)
				if err != nil {
					f.t.Fatal(err)
				}
				want := install.Run(f.t.Context(), request, install.Options{Root: f.host.root, Disks: disks, MachineID: machineID})
				want.DurationMs = report.GetDurationMs()
				if jumps.Load() != 0 || report.GetHeldInstallGeneration() != c.generation || report.GetNeedsErase() != c.stranger || !proto.Equal(report, want) {
					f.t.Errorf("%d jumps; report: %v, want %v", jumps.Load(), report, want)
				}
				if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, before) {
					f.t.Error("the disk was touched", err)
				}
				f.end(f.t)
			})
		})
	}
}

// TestAJumpTellsTheTime: a host whose clock is years behind knows the time by what the control
// plane has told it. Weeks after the takeover, the agent in memory is not told the time of the
// takeover.
func TestAJumpTellsTheTime(t *testing.T) {
	const weeks = 21 * 24 * time.Hour
	for name, ahead := range map[string]time.Duration{"the agent's own clock": 0, "the boot token": time.Hour} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) { // it is 2000-01-01
				init := initMessage(1, f.authority)
				sent := time.Now().AddDate(20, 0, 0)
				init.SentAt = timestamppb.New(sent)
				f.host.prepare(f.t, init)
				request := installRequest(3, 1, image())
				request.BootToken = &agentv1.BootToken{MadeAt: timestamppb.New(sent.Add(weeks + ahead))}
				if ahead == 0 {
					request.BootToken.MadeAt = nil
				}
				var told, known time.Time
				begun := time.Now()
				f.options.jumpForInstall = func(_ context.Context, _ *takeover.Store, state *agentv1.AgentState, _ *agentv1.InstallRequest) error {
					told, known = state.GetInit().GetSentAt().AsTime(), sent.Add(time.Since(begun))
					return errors.New("the kernel went on")
				}
				f.answer = func(int, *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
					response := &agentv1.HeartbeatResponse{NextIntervalMs: maxInterval.Milliseconds()}
					if time.Since(begun) >= weeks {
						response.InstallRequest = request
					}
					return response, nil
				}
				f.start(f.t)
				after(weeks + 2*time.Hour)
				if known.IsZero() || told.Before(known) || told.Before(request.GetBootToken().GetMadeAt().AsTime()) {
					f.t.Errorf("told %s, known %s, the token is of %s", told, known, request.GetBootToken().GetMadeAt().AsTime())
				}
				f.end(f.t)
			})
		})
	}
}

// TestATakeoverKnowsAllDisks in the time that it has, also where a drive is silent: the list of the
// disks waits for that one no longer than told. Where there is no list, the takeover warns of it.
func TestATakeoverKnowsAllDisks(t *testing.T) {
	t.Parallel()
	list := []*agentv1.BlockDevice{{Name: "sda"}, {Name: "nvme0n1", Serial: "DATA", Health: new(agentv1.Health)}}
	silent := func(limit time.Duration) ([]*agentv1.BlockDevice, error) {
		time.Sleep(limit)
		return list, nil
	}
	for name, c := range map[string]struct {
		look    func(limit time.Duration) ([]*agentv1.BlockDevice, error)
		disks   int
		warning string
	}{
		"a drive is silent": {silent, 2, ""},
		"no disks":          {func(time.Duration) ([]*agentv1.BlockDevice, error) { return nil, nil }, 0, ""},
		"the list hangs": {
			func(limit time.Duration) ([]*agentv1.BlockDevice, error) { return silent(2 * limit) }, 0,
			"the disks could not be read within 15s; an install in memory cannot tell whether one is missing",
		},
		"a fault": {
			func(time.Duration) ([]*agentv1.BlockDevice, error) {
				return nil, errors.New("a byte that nobody expected")
			}, 0,
			"a byte that nobody expected; an install in memory cannot tell whether one is missing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				disks, warning := disksBefore(t.Context(), lookFor(new(agentv1.AgentState)), c.look)
				if took := time.Since(begun); len(disks) != c.disks || warning != c.warning || took > takeoverLook {
					t.Errorf("%v, %q after %s", disks, warning, took)
				}
				for _, disk := range disks {
					if disk.GetHealth() != nil {
						t.Error("the health has no use there")
					}
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestALookEndsInTime: a disk that hangs keeps a jump away for a while, and the next jump not at
// all. Whoever calls the install off need not wait.
func TestALookEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy, hung := new(atomic.Bool), make(chan struct{})
		state, refused := &agentv1.AgentState{PendingInstall: []byte{1}}, &agentv1.InstallReport{HeldInstallGeneration: 5}
		hang := func() *agentv1.InstallReport { <-hung; return refused }
		find := func() *agentv1.InstallReport { return refused }
		check := func(ctx context.Context, what string, look func() *agentv1.InstallReport, want *agentv1.InstallReport, takes time.Duration) {
			t.Helper()
			begun := time.Now()
			if got := inTime(ctx, lookFor(state), busy, look); got != want || time.Since(begun) != takes {
				t.Errorf("%s: %v after %s", what, got, time.Since(begun))
			}
			synctest.Wait()
		}
		off, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		check(off, "called off", hang, nil, time.Second)
		hung <- struct{}{}
		synctest.Wait()
		check(t.Context(), "a disk that hangs", hang, nil, time.Minute)
		check(t.Context(), "it hangs still", find, nil, 0)
		close(hung)
		synctest.Wait()
		check(t.Context(), "a fault", func() *agentv1.InstallReport { panic("a byte that nobody expected") }, nil, 0)
		check(t.Context(), "a disk that answers", find, refused, 0)
		// A control plane waits a minute for the answer of a takeover, which has more to do.
		hung, state = make(chan struct{}), new(agentv1.AgentState)
		check(t.Context(), "a takeover of a disk that hangs", hang, nil, 15*time.Second)
		close(hung)
		synctest.Wait()
	})
}
