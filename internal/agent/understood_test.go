package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// newerRequests are requests of a newer control plane: each has one thing that no agent of this
// version knows.
func newerRequests(data []byte) map[string]*agentv1.InstallRequest {
	requests := make(map[string]*agentv1.InstallRequest)
	add := func(name string, change func(*agentv1.InstallRequest)) {
		r := installRequest(3, 1, data)
		r.RootDisk = &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_SMALLEST, Erase: true}
		r.BootToken, r.SshHostKey = &agentv1.BootToken{MachineId: machineID}, new(agentv1.SshHostKey)
		change(r)
		requests[name] = r
	}
	newer := func(m proto.Message) {
		field := protowire.AppendTag(nil, 99, protowire.BytesType)
		m.ProtoReflect().SetUnknown(protowire.AppendString(field, "only the boot controller's"))
	}
	add("a field of the request", func(r *agentv1.InstallRequest) { newer(r) })
	add("a field of the disk", func(r *agentv1.InstallRequest) { newer(r.RootDisk) })
	add("a field of the image", func(r *agentv1.InstallRequest) { newer(r.Image) })
	add("a field of the token", func(r *agentv1.InstallRequest) { newer(r.BootToken) })
	add("a field of the host key", func(r *agentv1.InstallRequest) { newer(r.SshHostKey) })
	add("a choice of the disk", func(r *agentv1.InstallRequest) { r.RootDisk.Pick = 99 })
	add("a compression", func(r *agentv1.InstallRequest) { r.Image.Compression = 99 })
	add("a form of first-boot data", func(r *agentv1.InstallRequest) { r.Image.FirstBootForm = 99 })
	return requests
}

// TestWhatIsNotUnderstoodIsRefused: an agent that is older than its control plane does nothing for
// an install that it knows only in part: it writes no disk, does not jump, and says so once. It is
// there for the next install.
func TestWhatIsNotUnderstoodIsRefused(t *testing.T) {
	const refusal = "the agent (version v1) does not understand all that the install asks for, and has done nothing; " +
		"restart the machine, and a newer agent is started on it"
	data := image()
	for name, request := range newerRequests(data) {
		for where, inMemory := range map[string]bool{"in place": false, "in memory": true} {
			t.Run(name+"/"+where, func(t *testing.T) {
				inBubble(t, func(f *fixture) {
					f.host.prepare(f.t, initMessage(1, f.authority))
					f.options.HTTPClient = imageClient(data)
					var jumps atomic.Int32
					if !inMemory {
						f.options.jumpForInstall = func(context.Context, *takeover.Store, *agentv1.AgentState, *agentv1.InstallRequest) error {
							jumps.Add(1)
							return errors.New("the kernel went on")
						}
					}
					f.answer = func(n int, _ *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
						response := &agentv1.HeartbeatResponse{NextIntervalMs: 10_000}
						if n == 0 {
							response.InstallRequest = request
						}
						return response, nil
					}
					f.start(f.t)
					after(2 * time.Minute)
					f.refused(refusal)
					if jumps.Load() != 0 {
						f.t.Error("it has jumped")
					}
					f.end(f.t)
				})
			})
		}
		t.Run(name+"/after a jump", func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				f.jumped(data)
				pending, err := proto.Marshal(request)
				if err != nil {
					f.t.Fatal(err)
				}
				f.host.change(f.t, func(state *agentv1.AgentState) { state.PendingInstall = pending })
				f.answer = func(int, *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
					return &agentv1.HeartbeatResponse{NextIntervalMs: 10_000}, nil
				}
				f.start(f.t)
				after(2 * time.Minute)
				f.refused(refusal)
				f.end(f.t)
			})
		})
	}
}

// refused fails the test unless the agent has refused attempt 1 at install generation 3 with that
// sentence, told it once, and left the disk alone.
func (f *fixture) refused(sentence string) {
	f.t.Helper()
	told := 0
	for _, call := range f.seen() {
		r := call.GetInstallReport()
		if r == nil {
			continue
		}
		told++
		want := &agentv1.InstallReport{InstallGeneration: 3, Attempt: 1, NotUnderstood: true, Error: sentence}
		if !proto.Equal(r, want) || call.GetLastInstallGeneration() != 3 || call.GetLastInstallAttempt() != 1 {
			f.t.Errorf("heartbeat %v, want the report %v", call.HeartbeatRequest, want)
		}
	}
	if told != 1 || !f.host.untouched(f.t) {
		f.t.Errorf("told %d times; the disk is untouched: %t", told, f.host.untouched(f.t))
	}
}
