package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

// newerRequests are requests of a newer control plane: each has one thing that no agent of this
// version knows, a field of the request or of a message at any depth within, or a value of an enum.
func newerRequests(data []byte) map[string]*agentv1.InstallRequest {
	requests := make(map[string]*agentv1.InstallRequest)
	whole := installRequest(3, 1, data)
	var walk func(m protoreflect.Message, name string)
	walk = func(m protoreflect.Message, name string) {
		unknown := protowire.AppendTag(nil, 99, protowire.BytesType)
		m.SetUnknown(protowire.AppendString(unknown, "only the boot controller's"))
		requests["a field of "+name] = proto.CloneOf(whole)
		m.SetUnknown(nil)
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			switch field := fields.Get(i); {
			case field.IsList(): // no request has one of messages or enums
			case field.Kind() == protoreflect.EnumKind:
				was := m.Get(field)
				m.Set(field, protoreflect.ValueOfEnum(99))
				requests["a value of "+name+"."+string(field.Name())] = proto.CloneOf(whole)
				m.Set(field, was)
			case field.Message() != nil:
				walk(m.Mutable(field).Message(), name+"."+string(field.Name()))
			}
		}
	}
	walk(whole.ProtoReflect(), "request")
	return requests
}

// TestWhatIsNotUnderstoodIsRefused: an agent that is older than its control plane does nothing for
// an install that it knows only in part: it writes no disk, does not jump, and says so once. It is
// there for the next install.
func TestWhatIsNotUnderstoodIsRefused(t *testing.T) {
	const refusal = "the agent (version v1) does not understand all that the install asks for, and has done nothing"
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
