package agentapi_test

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// holding is an observer that keeps calls while it is told to, whatever becomes of their contexts.
type holding struct {
	stuck
	hold *atomic.Bool
}

func (h holding) AgentReport(report string) {
	if h.hold.Load() {
		h.stuck.AgentReport(report)
	}
}

// TestAConnectionOfOldAgeEnds: when a connection is twelve hours old, give or take a tenth, its
// agent is told to connect anew. A call that goes on is cut off a minute later, and the next call
// of the agent comes on a new connection.
func TestAConnectionOfOldAgeEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newIdleFixture(t, sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}),
			func(c *agentapi.Config, _ *fleet.Policy) { c.FlushInterval = time.Minute })
		m := h.machines(1, nil)[0]
		observer := holding{stuck{entered: make(chan struct{}), release: make(chan struct{})}, new(atomic.Bool)}
		api := agentapi.New(h.db, h.config, agentapi.Options{Logger: discard, Certificates: h.certificates, Observer: observer})
		listener := bufconn.Listen(64 << 10)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- api.Serve(ctx, listener) }()
		var connections atomic.Int32
		h.address = "passthrough:///127.0.0.1:1"
		conn := h.connect("", m.key, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			connections.Add(1)
			return listener.DialContext(ctx)
		}))
		client := agentv1.NewAgentCallbackClient(conn)
		h.heartbeat(client, m.beat())
		connected := time.Now()

		observer.hold.Store(true)
		cut, news := make(chan error, 1), m.beat()
		news.HardwareReport = report()
		go func() {
			_, err := client.Heartbeat(t.Context(), news)
			cut <- err
		}()
		<-observer.entered
		day, over := context.WithTimeout(t.Context(), 24*time.Hour)
		defer over()
		conn.WaitForStateChange(day, connectivity.Ready)
		told := time.Now()
		if age := told.Sub(connected); age < 10*time.Hour+48*time.Minute || age > 13*time.Hour+12*time.Minute {
			t.Errorf("the agent is told to connect anew after %s", age)
		}
		select {
		case err := <-cut:
			// gRPC gives the caller a second more to read that it is over.
			if took := time.Since(told); status.Code(err) != codes.Unavailable || took < time.Minute || took > time.Minute+5*time.Second {
				t.Errorf("the call ended %s after that: %v", took, err)
			}
		case <-time.After(time.Hour):
			t.Error("the call goes on")
		}
		observer.hold.Store(false)
		h.heartbeat(client, m.beat())
		if n := connections.Load(); n != 2 {
			t.Errorf("%d connections", n)
		}
		close(observer.release)
		_ = conn.Close()
		cancel()
		h.must(<-served)
	})
}
