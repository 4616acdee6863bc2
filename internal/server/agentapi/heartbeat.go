package agentapi

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Heartbeat implements agentv1.AgentCallbackServer.
func (s *Server) Heartbeat(ctx context.Context, req *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
	arrived := time.Now()
	a, err := s.admit(ctx, req.GetMachineId(), fleet.TakeoverGeneration(req.GetTakeoverGeneration()))
	if err != nil {
		return nil, err
	}
	if err := a.take(ctx); err != nil {
		return nil, s.failure(ctx, "serve the agent", a.identity.Machine, err)
	}
	defer a.release()
	if !a.calls.Allow() {
		return nil, errThrottled
	}
	if err := checkHeartbeat(req); err != nil {
		return nil, s.failure(ctx, "read the heartbeat", a.identity.Machine, err)
	}
	if err := s.record(ctx, a, req); err != nil {
		return nil, err
	}
	order, err := s.install(ctx, a, req, arrived)
	if err != nil {
		return nil, err
	}
	return &agentv1.HeartbeatResponse{NextIntervalMs: s.pace.next().Milliseconds(), InstallRequest: order}, nil
}

// record commits what the heartbeat brings. When it returns nil, all of it is durable but the
// liveness of a mere repetition.
func (s *Server) record(ctx context.Context, a *agent, req *agentv1.HeartbeatRequest) error {
	committed, err := s.speak(ctx, a, req.GetBootId())
	if err != nil {
		return err
	}
	if reports := req.GetHardwareReport() != nil || req.GetInstallReport() != nil; reports && !a.reports.Allow() {
		return errThrottled
	}
	if report := req.GetHardwareReport(); report != nil {
		if err := s.hardware(ctx, a, report); err != nil {
			return err
		}
	}
	if report := req.GetInstallReport(); report != nil {
		if err := s.report(ctx, a, report); err != nil {
			return err
		}
	}
	s.roster.heard(a, !committed, req.GetInstallProgress())
	return nil
}

// speak commits a first heartbeat, a return from silence and a changed boot ID (rule 9), and says
// whether it did.
func (s *Server) speak(ctx context.Context, a *agent, boot string) (committed bool, err error) {
	// Longer than any interval that it was asked for, and shorter than three, below which nobody is
	// declared silent.
	returned := s.roster.quiet(a) > 2*s.pace.promised()
	if a.spoken && a.boot == boot && !returned {
		return false, nil
	}
	if err := s.db.RecordSpoken(ctx, a.identity, boot); err != nil {
		return false, s.failure(ctx, "record the heartbeat", a.identity.Machine, err)
	}
	s.observer.AgentReport("spoken")
	a.spoken, a.boot, a.ask = true, boot, true
	return true, nil
}

func (s *Server) hardware(ctx context.Context, a *agent, report *agentv1.HardwareReport) error {
	if err := cleanHardware(report); err != nil {
		return s.failure(ctx, "read the hardware report", a.identity.Machine, err)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(report)
	if err == nil {
		err = s.db.RecordHardware(ctx, a.identity, encoded)
	}
	if err != nil {
		return s.failure(ctx, "record the hardware report", a.identity.Machine, err)
	}
	s.observer.AgentReport("hardware")
	a.ask = true
	return nil
}

func (s *Server) report(ctx context.Context, a *agent, report *agentv1.InstallReport) error {
	fact, err := installReport(report)
	if err != nil {
		return s.failure(ctx, "read the install report", a.identity.Machine, err)
	}
	if err := s.db.RecordInstallReport(ctx, a.identity, fact); err != nil {
		return s.failure(ctx, "record the install report", a.identity.Machine, err)
	}
	s.observer.AgentReport("install")
	s.options.Logger.InfoContext(ctx, "install ended", slog.String("machine", string(a.identity.Machine)),
		slog.Int64("install_generation", int64(fact.Generation)), slog.Int("attempt", fact.Attempt), slog.Bool("ok", fact.OK))
	a.ask, a.running = true, attempt{}
	return nil
}
