package agentapi_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// nobodys is how the IDs of machines begin that there are not.
const nobodys = "00000000-0000-0000-0000-"

// crowd is an engine that keeps the answers about nobody's machines, while it is gathered.
type crowd struct {
	bmdb.Engine
	gathered chan struct{} // closed when it dissolves
	waiting  atomic.Int64
}

func (c *crowd) View(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	return c.keep(ctx, c.Engine.View, fn)
}

func (c *crowd) Peek(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	return c.keep(ctx, c.Engine.Peek, fn)
}

type look func(context.Context, func(context.Context, bmdb.Tx) error) error

func (c *crowd) keep(ctx context.Context, read look, fn func(context.Context, bmdb.Tx) error) error {
	stranger := false
	err := read(ctx, func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, &crowdTx{Tx: tx, stranger: &stranger}) })
	if stranger {
		c.waiting.Add(1)
		<-c.gathered
	}
	return err
}

// crowdTx notices who asks.
type crowdTx struct {
	bmdb.Tx
	stranger *bool
}

func (t *crowdTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.notice(args)
	return t.Tx.QueryRowContext(ctx, query, args...)
}

func (t *crowdTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.notice(args)
	return t.Tx.QueryContext(ctx, query, args...)
}

func (t *crowdTx) notice(args []any) {
	*t.stranger = *t.stranger || strings.Contains(fmt.Sprintf("%s", args), nobodys)
}

// TestStrangersDoNotKeepAgentsWaiting whose identity is to be looked up again.
func TestStrangersDoNotKeepAgentsWaiting(t *testing.T) {
	t.Parallel()
	engine := &crowd{
		Engine: sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}), gathered: make(chan struct{}),
	}
	h := newFixtureOn(t, engine, func(c *agentapi.Config, p *fleet.Policy) {
		impatient(c, p)
		c.Recheck = 1
	})
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	h.heartbeat(client, m.beat())
	var strangers sync.WaitGroup
	for range 12 {
		stranger := h.dial(nil)
		strangers.Go(func() {
			if _, err := stranger.Heartbeat(t.Context(), &agentv1.HeartbeatRequest{}); status.Code(err) != codes.PermissionDenied {
				t.Errorf("a stranger: %v", err)
			}
		})
	}
	h.until("strangers fill their gate", func() bool { return engine.waiting.Load() == 8 })
	read := h.counter.of("agent")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := client.Heartbeat(ctx, m.beat()); err != nil {
		t.Errorf("the agent: %v", err)
	}
	if h.counter.of("agent") == read {
		t.Error("the agent was not looked up")
	}
	close(engine.gathered)
	strangers.Wait()
}

// turnedAway counts who was turned away, by why.
type turnedAway struct {
	agentapi.Observer
	mu  sync.Mutex
	why map[string]int
}

func (o *turnedAway) AgentCall(string, string, time.Duration) {}

func (o *turnedAway) AgentReport(string) {}

func (o *turnedAway) AgentFlush(int, time.Duration, error) {}

func (o *turnedAway) AgentRefused(why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.why[why]++
}

// TestStrangersWhoWaitMakeRoom: strangers from many addresses, whose calls wait for their turn,
// keep nobody out. This server works at few of them, and the others make room.
func TestStrangersWhoWaitMakeRoom(t *testing.T) {
	t.Parallel()
	for _, call := range []struct {
		method  string
		message func(machine string) proto.Message
	}{
		{agentv1.AgentCallback_Heartbeat_FullMethodName, func(machine string) proto.Message {
			return &agentv1.HeartbeatRequest{MachineId: machine, TakeoverGeneration: 1}
		}},
		{agentv1.AgentCallback_ReportUp_FullMethodName, func(machine string) proto.Message {
			return &agentv1.ReportUpRequest{MachineId: machine, InstallGeneration: 1, Attempt: 1, Secret: make([]byte, bmdb.InstallSecretBytes), BootId: "b"}
		}},
	} {
		t.Run(call.method, func(t *testing.T) {
			t.Parallel()
			engine := &crowd{
				Engine: sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}), gathered: make(chan struct{}),
			}
			const sources, perSource = 4, 12 // more than this server works at
			h := newIdleFixture(t, engine, func(c *agentapi.Config, p *fleet.Policy) {
				c.MaxUnadmitted, c.MaxUnadmittedPerAddress = sources*perSource, perSource
			})
			refused := &turnedAway{why: map[string]int{}}
			h.api = agentapi.New(h.db, h.config, agentapi.Options{Logger: discard, Certificates: h.certificates, Observer: refused})
			h.start()
			defer close(engine.gathered)
			agents := h.machines(3, nil)
			for _, m := range agents {
				h.heartbeat(h.dial(m.key), m.beat())
			}
			for source := range sources {
				dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(source+1))}}
				for i := range perSource {
					h.waits(dialer, call.method, call.message(fmt.Sprintf("%s%012d", nobodys, source*perSource+i)))
				}
			}
			h.until("strangers fill their gate", func() bool { return engine.waiting.Load() == 8 })
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for i, m := range agents {
				if _, err := h.dialNamed(string(m.id), m.key).Heartbeat(ctx, m.beat()); err != nil {
					t.Errorf("agent %d: %v", i, err)
				}
			}
			refused.mu.Lock()
			defer refused.mu.Unlock()
			if n := refused.why["no_room"]; n > 0 {
				t.Errorf("%d callers find no room", n)
			}
		})
	}
}

// waits makes a call on a connection of its own that is not answered. It returns when the server
// has it.
func (h *fixture) waits(dialer net.Dialer, method string, message proto.Message) {
	h.t.Helper()
	conn := h.connect("", nil, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}))
	stream, err := conn.NewStream(h.t.Context(), &grpc.StreamDesc{}, method)
	h.must(err)
	h.must(stream.SendMsg(message))
	h.must(stream.CloseSend())
	// The server reads what comes after it only then.
	if _, err := agentv1.NewAgentCallbackClient(conn).ReportUp(h.t.Context(), &agentv1.ReportUpRequest{}); status.Code(err) != codes.PermissionDenied {
		h.t.Fatalf("a malformed call is answered with %v", err)
	}
}
