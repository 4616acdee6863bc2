package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

func readerOf(data []byte) io.Reader { return bytes.NewReader(data) }

// inBubble runs a session test in fake time. The certificate is made outside, where randomness
// costs nothing.
func inBubble(t *testing.T, test func(f *fixture)) {
	t.Helper()
	t.Parallel()
	host, authority := newHost(t), newAuthority(t)
	synctest.Test(t, func(t *testing.T) {
		test(&fixture{t: t, plane: newPlane(t, authority), host: host})
	})
}

// after lets that much time pass and everything come to rest.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestHeartbeats(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		key := f.host.prepare(t, initMessage(4, f.authority))
		f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			return &agentv1.HeartbeatResponse{NextIntervalMs: 10_000}, nil
		}
		f.start(t)
		after(25 * time.Second)
		calls := f.seen()
		if len(calls) != 3 {
			t.Fatalf("%d heartbeats", len(calls))
		}
		for i, call := range calls {
			if call.GetMachineId() != machineID || call.GetTakeoverGeneration() != 4 || call.GetBootId() != "boot-1" ||
				call.GetAgentVersion() != "v1" || !bytes.Equal(call.key, key) {
				t.Errorf("heartbeat: %v", call.HeartbeatRequest)
			}
			if (call.GetHardwareReport() != nil) != (i == 0) {
				t.Errorf("heartbeat %d: hardware %v", i, call.GetHardwareReport())
			}
			if gap := call.at.Sub(calls[0].at); gap != time.Duration(i)*10*time.Second {
				t.Errorf("heartbeat %d after %s", i, gap)
			}
		}
		f.end(t)
	})
}

// TestClockYearsBehind: to a host whose clock is behind, no certificate is valid yet. The control
// plane has told the time at the takeover.
func TestClockYearsBehind(t *testing.T) {
	inBubble(t, func(f *fixture) { // it is 2000-01-01
		t := f.t
		issued := time.Now().AddDate(20, 0, 0)
		f.plane = newPlane(t, newAuthorityFrom(t, issued))
		for i, sent := range []*timestamppb.Timestamp{nil, timestamppb.New(issued.Add(-time.Minute)), timestamppb.New(issued.Add(time.Minute))} {
			init := initMessage(int64(i+1), f.authority)
			init.SentAt = sent
			f.host.prepare(t, init)
			f.start(t)
			after(50 * time.Second)
			if got, want := len(f.seen()) > 0, i == 2; got != want {
				t.Errorf("the control plane told %v: heard %v, want %v", sent.AsTime(), got, want)
			}
			f.stop()
			if err := <-f.done; err != nil {
				t.Error(err)
			}
			f.options.Dial = nil
		}
		f.server.Stop()
	})
}

func TestHardwareIsReportedWhenItChanges(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		f.start(t)
		after(inventoryEvery + time.Minute)
		f.host.write(t, "sys/class/block/vdb/size", "99\n")
		f.host.write(t, "sys/class/block/vdb/device/x", "")
		after(inventoryEvery + time.Minute)
		var disks []int
		for _, call := range f.seen() {
			if hardware := call.GetHardwareReport(); hardware != nil {
				disks = append(disks, len(hardware.GetBlockDevices()))
			}
		}
		if len(disks) != 2 || disks[0] != 1 || disks[1] != 2 {
			t.Errorf("reports with so many disks: %v", disks)
		}
		f.end(t)
	})
}

// TestHardwareIsReportedAgainAfterAFailure: the database may have lost what it acknowledged, as in
// a failover. The report comes with the next inventory, and not at once: all agents of a fleet may
// have been cut off together, and their inventories are spread.
func TestHardwareIsReportedAgainAfterAFailure(t *testing.T) {
	for name, failure := range map[string]struct {
		code codes.Code
		away time.Duration
	}{
		"a short one":              {codes.Unavailable, time.Minute},
		"longer than an inventory": {codes.Unavailable, inventoryEvery + 2*time.Minute},
		"it calls again":           {codes.Aborted, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				t := f.t
				f.host.prepare(t, initMessage(1, f.authority))
				const fails = 3 * time.Minute
				start := time.Now()
				f.answer = func(int, *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
					if since := time.Since(start); since > fails && since < fails+failure.away {
						return nil, status.Error(failure.code, "not now")
					}
					return &agentv1.HeartbeatResponse{NextIntervalMs: 10_000}, nil
				}
				f.start(t)
				after(3*inventoryEvery + time.Minute)
				var reports []time.Duration
				for _, call := range f.seen() {
					if call.GetHardwareReport() != nil {
						reports = append(reports, call.at.Sub(start))
					}
				}
				// the first inventory after the control plane answers again
				want := (fails + failure.away).Truncate(inventoryEvery) + inventoryEvery
				if len(reports) != 2 || reports[0] != 0 || reports[1] < want || reports[1] > want+time.Minute {
					t.Errorf("the hardware is reported at %v, want 0s and %v", reports, want)
				}
				f.end(t)
			})
		})
	}
}

func TestRefusalIsRepeatedEverMoreSlowly(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			if n < 12 {
				return refuse()
			}
			return &agentv1.HeartbeatResponse{NextIntervalMs: 5000}, nil
		}
		f.start(t)
		after(10 * time.Minute)
		calls := f.seen()
		if len(calls) < 14 {
			t.Fatalf("%d heartbeats", len(calls))
		}
		for i := 1; i <= 12; i++ {
			want := refusedWaits[min(i-1, len(refusedWaits)-1)]
			if gap := calls[i].at.Sub(calls[i-1].at); gap < want-want/8 || gap > want+want/8 {
				t.Errorf("refusal %d was followed after %s, not about %s", i, gap, want)
			}
		}
		if calls[12].GetHardwareReport() == nil || calls[13].GetHardwareReport() != nil {
			t.Error("the hardware report was not kept until it was taken")
		}
		if gap := calls[13].at.Sub(calls[12].at); gap != 5*time.Second {
			t.Errorf("next heartbeat after %s", gap)
		}
		f.end(t)
	})
}

func TestOutageIsSurvived(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		var dials []time.Time
		f.options.Dial = func(context.Context, string) (net.Conn, error) {
			dials = append(dials, time.Now())
			return nil, errors.New("nobody is there")
		}
		f.start(t)
		after(24 * time.Hour)
		if len(dials) < 24*60*2 || len(dials) > 24*60*60 {
			t.Errorf("%d tries in a day", len(dials))
		}
		for i := range dials[1:] {
			if gap := dials[i+1].Sub(dials[i]); gap > retryCap+minInterval || gap < minInterval {
				t.Fatalf("a pause of %s", gap)
			}
		}
		f.end(t)
	})
}

func TestReconnects(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			if n == 1 {
				return nil, status.Error(codes.Unavailable, "going down")
			}
			return &agentv1.HeartbeatResponse{NextIntervalMs: 1000}, nil
		}
		f.start(t)
		after(5 * time.Second)
		if calls := f.seen(); len(calls) < 4 {
			t.Errorf("%d heartbeats", len(calls))
		}
		f.end(t)
	})
}

// A server that cannot prove itself hears nothing.
func TestServerIsVerified(t *testing.T) {
	t.Parallel()
	other := newAuthority(t)
	host, authority := newHost(t), newAuthority(t)
	synctest.Test(t, func(t *testing.T) {
		for _, init := range []*agentv1.TakeoverInit{
			initMessage(1, other),
			func() *agentv1.TakeoverInit {
				init := initMessage(2, authority)
				init.Endpoint = "127.0.0.2:1"
				return init
			}(),
		} {
			f := &fixture{plane: newPlane(t, authority), host: host}
			host.prepare(t, init)
			f.start(t)
			after(time.Minute)
			if calls := f.seen(); len(calls) != 0 {
				t.Errorf("%d heartbeats", len(calls))
			}
			f.end(t)
		}
	})
}

// Internal is what gRPC says of a message that the control plane would not decode.
func TestUnwantedHardwareDoesNotStopHeartbeats(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.Internal} {
		t.Run(code.String(), func(t *testing.T) { unwanted(t, code) })
	}
}

func unwanted(t *testing.T, code codes.Code) {
	t.Helper()
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		f.answer = func(_ int, request *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			if request.GetHardwareReport() != nil {
				return nil, status.Error(code, "too large")
			}
			return &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}, nil
		}
		f.start(t)
		after(2*inventoryEvery + time.Minute)
		with, without := 0, 0
		for _, call := range f.seen() {
			if call.GetHardwareReport() != nil {
				with++
			} else {
				without++
			}
		}
		if with < 2 || with > 3 || without < 30 {
			t.Errorf("%d heartbeats with hardware, %d without", with, without)
		}
		f.end(t)
	})
}

// A heartbeat that came too often is made again over the same connection, with all that it had.
func TestThrottledHeartbeatIsMadeAgain(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
			if n < 3 {
				return nil, status.Error(codes.Aborted, "too many calls")
			}
			return &agentv1.HeartbeatResponse{NextIntervalMs: 30_000}, nil
		}
		listener, dials := bufconn.Listen(64<<10), 0
		go func() { _ = f.server.Serve(listener) }()
		f.options.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
			dials++
			return listener.DialContext(ctx)
		}
		f.start(t)
		after(time.Minute)
		calls := f.seen()
		if len(calls) < 4 || dials != 1 {
			t.Fatalf("%d heartbeats over %d connections", len(calls), dials)
		}
		for i, call := range calls {
			if (call.GetHardwareReport() != nil) != (i <= 3) {
				t.Errorf("heartbeat %d: hardware %v", i, call.GetHardwareReport())
			}
		}
		f.end(t)
	})
}

func TestSupersededAgentEnds(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		f.start(t)
		after(time.Minute)
		before := len(f.seen())
		// The state of a newer takeover, as one leaves it that died before it stopped the agent.
		state := f.host.state(t)
		state.Init.TakeoverGeneration = 2
		f.host.write(t, "var/lib/ironherd-agent/state", string(encoded(t, state)))
		if err := <-f.done; err != nil {
			t.Error(err)
		}
		if calls := f.seen(); len(calls) != before {
			t.Error("the superseded agent spoke")
		}
		f.server.Stop()
	})
}

func TestSecondAgentIsRefused(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.host.prepare(t, initMessage(1, f.authority))
		f.start(t)
		synctest.Wait()
		if err := Run(t.Context(), f.options); !errors.Is(err, takeover.ErrAgentRunning) {
			t.Errorf("got %v", err)
		}
		f.end(t)
	})
}

func TestRunWithoutTakeover(t *testing.T) {
	t.Parallel()
	f := &fixture{plane: newPlane(t, newAuthority(t)), host: newHost(t)}
	f.start(t)
	if err := <-f.done; !errors.Is(err, takeover.ErrNoState) {
		t.Errorf("got %v", err)
	}
	f.stop()
}

func TestRebootTrigger(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if err := rebootKernel(h.root); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(h.root, "proc/sysrq-trigger")); err != nil || string(data) != "b" {
		t.Errorf("%q, %v", data, err)
	}
	if err := rebootKernel(t.TempDir()); err == nil {
		t.Error("a machine without a trigger was rebooted")
	}
}

func TestLogStaysBounded(t *testing.T) {
	t.Parallel()
	log := &logFile{path: filepath.Join(t.TempDir(), "var/log/x.log")}
	for i := range 40_000 {
		if _, err := fmt.Fprintf(log, "line %d %s\n", i, strings.Repeat("x", 80)); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(log.path)
	if err != nil || len(data) > maxLog || len(data) < maxLog/2 {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	if !strings.HasPrefix(string(data), "line ") || !strings.HasSuffix(strings.TrimRight(string(data), "x\n"), "line 39999 ") {
		t.Errorf("%q … %q", data[:20], data[len(data)-100:])
	}
}
