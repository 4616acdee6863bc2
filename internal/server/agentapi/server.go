package agentapi

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

// Observer is told what agents do. It is called from many goroutines at once and must not block.
type Observer interface {
	// AgentCall reports one call: "Heartbeat" or "ReportUp", and the name of the gRPC code that it was
	// answered with.
	AgentCall(method, code string, took time.Duration)
	// AgentReport reports a committed fact: "spoken", "hardware", "install", "handed out", "up".
	AgentReport(kind string)
	// AgentFlush reports one batch of liveness.
	AgentFlush(agents int, took time.Duration, err error)
	// AgentRefused reports that a caller was turned away who is not admitted.
	AgentRefused(why string)
}

// Options is what a server is built with besides its configuration.
type Options struct {
	Logger *slog.Logger
	// Certificates are what it proves itself with, and what installed systems are given to verify it
	// by.
	Certificates *server.Certificates
	// Observer may be nil.
	Observer Observer
}

// Server is the agent API.
type Server struct {
	agentv1.UnimplementedAgentCallbackServer

	db       *bmdb.DB
	config   Config
	options  Options
	observer Observer
	agents   *agentCache
	pace     *pace
	refusals *server.Refusals
	// identities and ups are for what anybody can make this server ask the BMDB: who the agent of a
	// machine is, and whether a secret is that of an install.
	identities server.Gate
	ups        *server.Turns[upCall] // one of each at a time
	// rechecks is for whether an agent that is remembered is in charge still. Strangers are not in its
	// way.
	rechecks server.Gate
	// oddHostKeys bounds the lines of the log about host keys that are none.
	oddHostKeys rate.Sometimes
	// unserved bounds those about calls that failed here, and unservedCalls counts the calls since the
	// last one.
	unserved      rate.Sometimes
	unservedCalls atomic.Int64
	// unflushed bounds those about liveness that cannot be written, which is tried again every second.
	unflushed rate.Sometimes
	// invalid bounds those about a certificate that no agent accepts, and stranded those about an
	// endpoint that machines do not reach.
	invalid, stranded rate.Sometimes
	// full: agents may have found no room, and the BMDB is not told yet. Only alive uses it.
	full bool
}

// New returns a server. It does nothing until Serve is called.
func New(db *bmdb.DB, config Config, options Options) *Server {
	s := &Server{
		db: db, config: config, options: options, observer: options.Observer,
		agents: newAgentCache(config), pace: newPace(config.HeartbeatsPerSecond),
		identities: make(server.Gate, strangersAtATime), ups: server.NewTurns[upCall](strangersAtATime, 1),
		rechecks:    make(server.Gate, strangersAtATime),
		oddHostKeys: rate.Sometimes{First: 1, Interval: time.Minute}, unserved: rate.Sometimes{First: 10, Interval: 10 * time.Second},
		unflushed: rate.Sometimes{First: 3, Interval: time.Minute}, invalid: rate.Sometimes{First: 1, Interval: time.Minute},
		stranded: rate.Sometimes{First: 1, Interval: time.Minute},
	}
	if s.observer == nil {
		s.observer = nobody{}
	}
	s.refusals = server.NewRefusals(options.Logger, s.observer.AgentRefused)
	return s
}

// Progress returns where the install of a machine stands, as its agent last said; nil when none is
// under way, or when the agent has not spoken to this process lately.
func (s *Server) Progress(machine fleet.MachineID) *agentv1.InstallProgress {
	return s.agents.progress(machine, s.lately())
}

// lately is how long ago an agent may have spoken here that speaks to no other process. Two
// intervals are longer than any that it was asked for, and shorter than the three before which
// nobody is declared silent.
func (s *Server) lately() time.Duration { return 2 * s.pace.promised() }

// Agents returns how many agents have spoken to this process lately.
func (s *Server) Agents() int { return s.agents.size() }

// Serve serves the listener until ctx ends, then lets the calls that are under way finish within
// the drain time, and writes the liveness that is still in memory. It closes the listener, and
// returns nil after an orderly end. Where the BMDB is shared and out of reach, it closes the
// listener, and returns an error when the BMDB is back. It may be called again with another
// listener.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if err := s.alive(ctx); err != nil { // also learns the policy, which the first answer needs
		if ctx.Err() != nil {
			return ln.Close()
		}
		return errors.Join(fmt.Errorf("agent API: %w", err), ln.Close())
	}
	srv := s.grpcServer(ctx)
	limit := s.config.limit()
	if limit.Total != s.config.MaxConnections {
		s.options.Logger.InfoContext(ctx, "the limit of open files leaves room for fewer connections than max_connections",
			slog.Int("connections", limit.Total), slog.Int("max_connections", s.config.MaxConnections))
	}
	limited := server.LimitConnections(ln, limit, s.refusals)
	group, ctx := errgroup.WithContext(ctx)
	drained := make(chan struct{})
	group.Go(func() error { return s.serve(srv, limited, drained) })
	group.Go(func() error { s.flushEvery(ctx); return nil })
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	group.Go(func() error { return s.aliveEvery(ctx, stopServing) })
	group.Go(func() error { s.sweepEvery(ctx); return nil })
	group.Go(func() error {
		defer close(drained)
		s.stop(serving, srv)
		return nil
	})
	err := group.Wait()
	flush, done := context.WithTimeout(context.WithoutCancel(ctx), s.config.Drain)
	defer done()
	s.flush(flush)
	return err
}

// serve serves until the server has stopped, or is given up because drained is closed.
func (s *Server) serve(srv *grpc.Server, ln net.Listener, drained <-chan struct{}) error {
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("agent API: %w", err)
		}
	case <-drained:
	}
	return nil
}

// stop ends the server when ctx does. Calls may finish within half of the drain time. Then they are
// cancelled, and those that ignore it when the drain time is over are left behind.
func (s *Server) stop(ctx context.Context, srv *grpc.Server) {
	<-ctx.Done()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		srv.GracefulStop()
	}()
	half := s.config.Drain / 2
	if within(half, stopped) {
		return
	}
	go srv.Stop() // cancels the calls, and waits for them
	if !within(half, stopped) {
		s.options.Logger.Warn("calls of agents go on although the server stops; they are left behind")
	}
}

// within says whether done is closed within that time.
func within(patience time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

const (
	buffer      = 4 << 10 // per direction and connection; a heartbeat is a few hundred bytes
	maxStreams  = 4
	maxHeaders  = 8 << 10
	pingAfter   = 2 * time.Minute
	pingTimeout = 20 * time.Second
	minimumPing = 10 * time.Second
	// connectionAge makes agents connect anew, so that they spread over several control planes. gRPC
	// jitters it.
	connectionAge = 12 * time.Hour
	// ageGrace is how long the calls of a connection may go on after that; an agent waits less long.
	ageGrace = time.Minute
)

func (s *Server) grpcServer(ctx context.Context) *grpc.Server {
	recognize := func(conn *server.LimitedConn, machine string, key ed25519.PublicKey) {
		s.recognize(ctx, conn, machine, key)
	}
	srv := grpc.NewServer(
		grpc.Creds(newHandshaker(s.options.Certificates.TLS(), s.config.CallRate, recognize)),
		grpc.ReadBufferSize(buffer), grpc.WriteBufferSize(buffer),
		grpc.ForceServerCodecV2(newBoundedCodec()),
		grpc.MaxRecvMsgSize(s.config.MaxMessageBytes), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(s.config.AdmitWithin),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: pingAfter, Timeout: pingTimeout, MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: ageGrace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minimumPing, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.observed),
		grpc.UnknownServiceHandler(unknown),
		grpc.WaitForHandlers(true),
	)
	agentv1.RegisterAgentCallbackServer(srv, s)
	return srv
}

// unknown answers calls that there are not. They count for how often a caller calls.
func unknown(_ any, stream grpc.ServerStream) error {
	connectionOf(stream.Context()).throttled()
	return status.Error(codes.Unimplemented, "there is no such call")
}

// observed counts the call, and turns a panic into an error of that call alone.
func (s *Server) observed(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	start := time.Now()
	defer func() {
		if v := recover(); v != nil {
			s.options.Logger.Error("a call of an agent panicked", slog.String("method", info.FullMethod), slog.Any("err", v),
				slog.String("stack", string(debug.Stack())))
			resp, err = nil, status.Error(codes.Internal, "something failed in the control plane; its log says what")
		}
		s.observer.AgentCall(methodName(info.FullMethod), status.Code(err).String(), time.Since(start))
	}()
	return handle(ctx, req)
}

func methodName(full string) string {
	if full == agentv1.AgentCallback_Heartbeat_FullMethodName {
		return "Heartbeat"
	}
	return "ReportUp"
}

type nobody struct{}

func (nobody) AgentCall(string, string, time.Duration) {}

func (nobody) AgentReport(string) {}

func (nobody) AgentFlush(int, time.Duration, error) {}

func (nobody) AgentRefused(string) {}
