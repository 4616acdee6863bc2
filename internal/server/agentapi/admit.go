package agentapi

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
)

// errRefused is the answer to whoever is not admitted.
var errRefused = status.Error(codes.PermissionDenied, "agent not admitted")

// errLooksRestored is the answer in its place while the database looks restored.
var errLooksRestored = status.Error(codes.Unavailable, "agent not admitted now")

// errThrottled is not ResourceExhausted, which gRPC says of a message that is too large: an agent
// leaves its hardware report out then.
var errThrottled = status.Error(codes.Aborted, "too many calls; call again at the next interval")

// errAgain has an agent report its hardware again: it does so after a call that failed. This one
// keeps its connection.
var errAgain = status.Error(codes.Aborted, "the database may have lost what was recorded; call again")

// admit returns the caller's agent, or the error to answer with.
func (s *Server) admit(ctx context.Context, machine string, generation fleet.TakeoverGeneration) (*agent, error) {
	conn := connectionOf(ctx)
	if conn.throttled() {
		return nil, errThrottled
	}
	id, err := fleet.ParseMachineID(machine)
	if err != nil {
		id = nobodyID // so that a malformed ID takes as long as an unknown one
	}
	a, confirmed := s.agents.lookup(id, conn.key)
	if a != nil && a.identity.TakeoverGeneration != generation {
		a = nil
	}
	if a != nil && confirmed < s.recheck() {
		conn.limited.AdmitFor(string(id))
		return a, nil
	}
	leave, err := serve(ctx, conn.limited, s.entrance(a != nil).Enter)
	if err != nil {
		return nil, s.failure(ctx, "read the agent's identity", id, err)
	}
	defer leave()
	identity, err := s.db.Agent(ctx, id)
	switch {
	case fleet.KindOf(err) == fleet.KindNotFound:
		s.agents.dropUnless(id, bmdb.AgentIdentity{})
		return nil, s.refuse(ctx, id, generation)
	case err != nil:
		return nil, s.failure(ctx, "read the agent's identity", id, err)
	}
	s.agents.dropUnless(id, identity)
	if !fits(identity, conn.key) || identity.TakeoverGeneration != generation {
		return nil, s.refuse(ctx, id, generation)
	}
	conn.limited.AdmitFor(string(id))
	return s.agents.remember(identity), nil
}

// recognitionPatience bounds how long a handshake waits for the BMDB.
const recognitionPatience = 5 * time.Second

// recognize admits a connection if the key is that of the agent of the machine, whatever the
// takeover generation. It only decides how much the connection may send: every call is admitted on
// its own.
func (s *Server) recognize(ctx context.Context, conn *server.LimitedConn, machine string, key ed25519.PublicKey) {
	id, err := fleet.ParseMachineID(machine)
	if err != nil {
		return
	}
	a, confirmed := s.agents.lookup(id, key)
	if a != nil && confirmed < s.recheck() {
		conn.AdmitFor(string(id))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recognitionPatience)
	defer cancel()
	leave, err := serve(ctx, conn, s.entrance(a != nil).Enter)
	if err != nil {
		return
	}
	defer leave()
	if !conn.Open() { // it has made room for another one
		return
	}
	if identity, err := s.db.Agent(ctx, id); err == nil && fits(identity, key) {
		conn.AdmitFor(string(id))
	}
}

// recheck returns how long a remembered identity is good for. Agents that speak less often than
// Config.Recheck asks for would otherwise be looked up with every heartbeat.
func (s *Server) recheck() time.Duration { return max(s.config.Recheck, 2*s.pace.promised()) }

// strangersAtATime is how many callers whom nobody knows yet ask the BMDB at the same time. The
// others wait, so that however many call, those that are known find it free.
const strangersAtATime = 8

// entrance is where a caller waits to have their agent read: anybody, or who has the key of the
// agent that is remembered (known).
func (s *Server) entrance(known bool) server.Gate {
	if known {
		return s.rechecks
	}
	return s.identities
}

// serve waits for the turn of a caller who is not admitted. From then on this server works at it;
// whoever waits makes room for others.
func serve(ctx context.Context, conn *server.LimitedConn, enter func(context.Context) (func(), error)) (leave func(), err error) {
	leaveGate, err := enter(ctx)
	if err != nil {
		return nil, err
	}
	served := conn.Serving()
	return func() {
		served()
		leaveGate()
	}, nil
}

// nobodyID is a well-formed ID that no machine has.
const nobodyID = fleet.MachineID("00000000-0000-0000-0000-000000000000")

// refuse logs why for the operator, and returns the error that tells the caller nothing.
func (s *Server) refuse(ctx context.Context, id fleet.MachineID, generation fleet.TakeoverGeneration) error {
	s.options.Logger.DebugContext(ctx, "refused an agent", slog.String("machine", string(id)),
		slog.Int64("takeover_generation", int64(generation)))
	return s.turnAway(ctx)
}

// turnAway counts the refusal and returns it. A connection that was admitted is so no longer. While
// the database looks restored, it may be the caller's start that it has lost. An agent in memory
// that was admitted before and is refused for long restarts its host, as nothing of ours should
// before a person has accepted the database; one that is told to call again waits for a day.
func (s *Server) turnAway(ctx context.Context) error {
	conn := connectionOf(ctx)
	s.refusals.Count(server.RefusedCall, conn.remote)
	conn.limited.Dismiss()
	if s.agents.looksRestored() {
		return errLooksRestored
	}
	return errRefused
}

// failure returns the answer to an agent that was admitted. An error that the agent is not to blame
// for becomes UNAVAILABLE without details, so that the agent calls again. The log has the first ten
// of these, and then one in ten seconds, whosever it is.
func (s *Server) failure(ctx context.Context, doing string, id fleet.MachineID, err error) error {
	switch code := server.StatusOf(err).GRPC; {
	case ctx.Err() != nil: // an error of another context may say the same, and then there is no cause
		return status.FromContextError(context.Cause(ctx)).Err()
	case code == codes.PermissionDenied:
		s.agents.dropUnless(id, bmdb.AgentIdentity{})
		return s.turnAway(ctx)
	case code == codes.InvalidArgument || code == codes.FailedPrecondition || code == codes.NotFound:
		s.options.Logger.WarnContext(ctx, "an agent's report is not accepted", slog.String("machine", string(id)),
			slog.String("doing", doing), slog.Any("err", err))
		return status.Error(code, err.Error())
	}
	s.unservedCalls.Add(1)
	s.unserved.Do(func() { // while the database is away, that is every call of every agent
		s.options.Logger.ErrorContext(ctx, "cannot serve an agent", slog.String("machine", string(id)), slog.String("doing", doing),
			slog.Int64("calls", s.unservedCalls.Swap(0)), slog.Any("err", err))
	})
	return status.Error(codes.Unavailable, "the control plane cannot "+doing+" now")
}
