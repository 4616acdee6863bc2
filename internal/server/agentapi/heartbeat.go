package agentapi

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/hardware"
)

// Heartbeat implements agentv1.AgentCallbackServer.
func (s *Server) Heartbeat(ctx context.Context, req *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
	arrived := time.Now()
	a, err := s.admit(ctx, req.GetMachineId(), fleet.TakeoverGeneration(req.GetTakeoverGeneration()))
	if err != nil {
		return nil, err
	}
	served, err := a.turn.Enter(ctx)
	if err != nil {
		return nil, s.failure(ctx, "serve the agent", a.identity.Machine, err)
	}
	defer served()
	if !a.calls.Allow() {
		return nil, errThrottled
	}
	if s.agents.take(hintLost, a) {
		a.spoken = false
		return nil, errAgain
	}
	if err := checkHeartbeat(req); err != nil {
		if !a.reports.Allow() {
			return nil, errThrottled // a line of the log is durable, too
		}
		return nil, s.failure(ctx, "read the heartbeat", a.identity.Machine, err)
	}
	if err := s.commit(ctx, a, req); err != nil {
		return nil, err
	}
	order, err := s.nextInstall(ctx, a, req, arrived)
	if err != nil {
		return nil, err
	}
	leave, err := s.leaveMachine(ctx, a, req, order)
	if err != nil {
		return nil, err
	}
	off, err := s.cancelInstall(ctx, a, req)
	if err != nil {
		return nil, err
	}
	interval, progress := s.pace.next()
	return &agentv1.HeartbeatResponse{
		NextIntervalMs: interval.Milliseconds(), ProgressIntervalMs: progress.Milliseconds(), InstallRequest: order, CancelInstall: off, LeaveMachine: leave,
	}, nil
}

// commit makes durable what the heartbeat brings. Only the liveness of a repetition stays in
// memory, until the next flush.
func (s *Server) commit(ctx context.Context, a *agent, req *agentv1.HeartbeatRequest) error {
	progress := req.GetInstallProgress()
	if progress != nil {
		progress.WaitingFor = clean(progress.GetWaitingFor())
	}
	committed, err := s.commitSpoken(ctx, a, req.GetBootId())
	if err != nil {
		return err
	}
	if committed {
		s.agents.heardAndCommitted(a, progress) // whatever becomes of the rest: a silence ends only once
	}
	if text := req.GetLog(); text != "" && committed {
		s.options.Logger.InfoContext(ctx, "what an agent in memory logged until it was admitted",
			slog.String("machine", string(a.identity.Machine)), slog.Any("lines", logLines(text)))
	}
	if reports := req.GetHardwareReport() != nil || req.GetInstallReport() != nil; reports && !a.reports.Allow() {
		if !committed {
			s.agents.heard(a, progress) // it sends them again until they are taken
		}
		return errThrottled
	}
	if report := req.GetHardwareReport(); report != nil {
		if err := s.commitHardware(ctx, a, report); err != nil {
			return err
		}
	}
	if report := req.GetInstallReport(); report != nil {
		if err := s.commitInstallReport(ctx, a, report); err != nil {
			return err
		}
	}
	if !committed {
		s.agents.heard(a, progress)
	}
	return nil
}

// commitSpoken commits that the agent was heard where that is news: with its first heartbeat, its
// return from silence, or a changed boot ID. It returns whether it did. An agent whose boot ID
// changes more often than it may is only heard, until it may again.
func (s *Server) commitSpoken(ctx context.Context, a *agent, boot string) (committed bool, err error) {
	returned := s.agents.silence(a) > s.lately()
	if a.spoken && a.boot == boot && !returned {
		return false, nil
	}
	if a.spoken && !returned && !a.reports.Allow() {
		return false, nil
	}
	if err := s.db.RecordSpoken(ctx, a.identity, boot); err != nil {
		return false, s.failure(ctx, "record the heartbeat", a.identity.Machine, err)
	}
	s.observer.AgentReport("spoken")
	a.spoken, a.boot, a.checkInstall, a.checkLeave = true, boot, true, true
	return true, nil
}

func (s *Server) commitHardware(ctx context.Context, a *agent, report *agentv1.HardwareReport) error {
	if err := cleanHardware(report); err != nil {
		return s.failure(ctx, "read the hardware report", a.identity.Machine, err)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(report)
	if err == nil {
		err = s.db.RecordHardware(ctx, a.identity, encoded, alike(report))
	}
	if err != nil {
		return s.failure(ctx, "record the hardware report", a.identity.Machine, err)
	}
	s.observer.AgentReport("hardware")
	a.checkInstall = true
	return nil
}

// alike returns whether an encoded report is of the same hardware. Each agent sends one when it
// starts, and then other temperatures and hours alone are no news.
func alike(report *agentv1.HardwareReport) func(encoded []byte) bool {
	return func(encoded []byte) bool {
		var other agentv1.HardwareReport
		return proto.Unmarshal(encoded, &other) == nil && proto.Equal(hardware.Lasting(&other), hardware.Lasting(report))
	}
}

// commitInstallReport makes a report durable. A report of an attempt that a restored database does
// not know is acknowledged without effect: the agent would repeat it for ever, and be neither heard
// nor handed anything else.
func (s *Server) commitInstallReport(ctx context.Context, a *agent, report *agentv1.InstallReport) error {
	fact, err := parseInstallReport(report)
	if err != nil {
		return s.failure(ctx, "read the install report", a.identity.Machine, err)
	}
	err = s.db.RecordInstallReport(ctx, a.identity, fact, installWarnings(report)...)
	if fleet.KindOf(err) == fleet.KindConflict && s.neverHandedOut(ctx, a.identity.Machine, fact) {
		s.options.Logger.WarnContext(ctx, "an agent reports an install that the database does not know: it is forgotten",
			slog.String("machine", string(a.identity.Machine)), slog.Int64("install_generation", int64(fact.Generation)),
			slog.Int("attempt", fact.Attempt), slog.Bool("ok", fact.OK), slog.String("error", fact.Error))
		a.checkInstall, a.checkLeave, a.running = true, true, attempt{}
		return nil
	}
	if err != nil {
		return s.failure(ctx, "record the install report", a.identity.Machine, err)
	}
	s.observer.AgentReport("install")
	s.options.Logger.InfoContext(ctx, "install ended", slog.String("machine", string(a.identity.Machine)),
		slog.Int64("install_generation", int64(fact.Generation)), slog.Int("attempt", fact.Attempt), slog.Bool("ok", fact.OK))
	a.checkInstall, a.checkLeave, a.running = true, true, attempt{}
	return nil
}

// neverHandedOut says whether the BMDB knows no such attempt, nor a newer one. A conflict alone
// does not say it: a database that is being closed is one, too.
func (s *Server) neverHandedOut(ctx context.Context, id fleet.MachineID, r fleet.InstallReport) bool {
	record, err := s.db.Machine(ctx, id)
	if err != nil {
		return false
	}
	newest := attempt{}
	if a := record.InstallAttempt; a != nil {
		newest = attempt{generation: a.Generation, number: a.Attempt}
	}
	return newest.before(attempt{generation: r.Generation, number: r.Attempt})
}
