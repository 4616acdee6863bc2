package agentapi_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// TestWhoHeedsNothingIsCutOff: an agent that calls on and on, although it is told each time that it
// does so too often, or calls what there is not, loses its connection. It may come again.
func TestWhoHeedsNothingIsCutOff(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]codes.Code{"Heartbeat": codes.Aborted, "NoSuchCall": codes.Unimplemented} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) {
				c.CallRate = fleet.Rate{Every: time.Hour, Burst: 2} // nobody pauses for that long
			})
			m := h.machines(1, nil)[0]
			conn := h.connect(string(m.id), m.key)
			call := func(ctx context.Context) error {
				if name == "Heartbeat" {
					return conn.Invoke(ctx, "/ironherd.agent.v1.AgentCallback/Heartbeat", m.beat(), &emptypb.Empty{})
				}
				return conn.Invoke(ctx, "/ironherd.agent.v1.AgentCallback/"+name, &emptypb.Empty{}, &emptypb.Empty{})
			}
			answered := 0
			for ; answered < 5000; answered++ {
				err := call(t.Context())
				if code := status.Code(err); code == codes.Unavailable {
					break
				} else if code != told && err != nil {
					t.Fatalf("call %d is answered with %v", answered, err)
				}
			}
			if answered < 200 || answered == 5000 {
				t.Errorf("%d calls are answered", answered)
			}
			h.until("it is served again", func() bool {
				code := status.Code(call(t.Context()))
				return code == told || code == codes.OK
			})
		})
	}
}
