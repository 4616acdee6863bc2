package agentapi

import (
	"context"
	"log/slog"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// ReportUp implements agentv1.AgentCallbackServer. The secret is the credential, so a request that makes no sense is answered as
// one with a wrong secret.
func (s *Server) ReportUp(ctx context.Context, req *agentv1.ReportUpRequest) (*agentv1.ReportUpResponse, error) {
	if !connectionOf(ctx).limiter.Allow() {
		return nil, errThrottled
	}
	id, err := fleet.ParseMachineID(req.GetMachineId())
	if err != nil || len(req.GetSecret()) != secretBytes || !isName(req.GetBootId(), maxBootID) {
		return nil, errRefused
	}
	err = s.db.RecordInstalled(ctx, id, fleet.InstallGeneration(req.GetInstallGeneration()), int(req.GetAttempt()), req.GetSecret(), req.GetBootId())
	switch kind := fleet.KindOf(err); {
	case err == nil:
	case kind == fleet.KindForbidden || kind == fleet.KindNotFound || kind == fleet.KindInvalid:
		return nil, errRefused
	default:
		return nil, s.failure(ctx, "record that the system is up", id, err)
	}
	s.observer.AgentReport("up")
	return &agentv1.ReportUpResponse{}, nil
}

// installRequest is the order as the agent gets it.
func (s *Server) installRequest(machine fleet.MachineID, order *bmdb.InstallOrder) *agentv1.InstallRequest {
	r := order.Request
	return &agentv1.InstallRequest{
		InstallGeneration: int64(r.Generation), Attempt: int32(order.Attempt),
		Image: &agentv1.Image{
			Url: r.Image.URL, Digest: r.Image.Digest, Compression: compressions[r.Image.Compression], Size: r.Image.Size,
		},
		RootDisk: &agentv1.DiskSelector{
			Serial: r.RootDisk.Serial, Wwn: r.RootDisk.WWN, MinSize: r.RootDisk.MinSize, Pick: picks[r.RootDisk.Pick],
		},
		FirstBootData: r.FirstBootData,
		BootToken: &agentv1.BootToken{
			MachineId: string(machine), InstallGeneration: int64(r.Generation), Attempt: int32(order.Attempt),
			Secret: order.Secret, Endpoint: s.config.Endpoint, CaCertificate: s.options.Certificates.Authority(),
		},
		TimeoutMs: order.Timeout.Milliseconds(),
	}
}

var compressions = map[fleet.Compression]agentv1.Compression{
	"":                    agentv1.Compression_COMPRESSION_NONE,
	fleet.CompressionNone: agentv1.Compression_COMPRESSION_NONE,
	fleet.CompressionZstd: agentv1.Compression_COMPRESSION_ZSTD,
	fleet.CompressionGzip: agentv1.Compression_COMPRESSION_GZIP,
	fleet.CompressionXZ:   agentv1.Compression_COMPRESSION_XZ,
}

var picks = map[fleet.Pick]agentv1.DiskSelector_Pick{
	fleet.PickSmallest: agentv1.DiskSelector_PICK_SMALLEST,
	fleet.PickLargest:  agentv1.DiskSelector_PICK_LARGEST,
}

// install asks the BMDB for an install where one may be due. An agent that is busy with one is left alone.
func (s *Server) install(ctx context.Context, a *agent, req *agentv1.HeartbeatRequest) (*agentv1.InstallRequest, error) {
	wanted := s.roster.takeWanted(a)
	last := attempt{generation: fleet.InstallGeneration(req.GetLastInstallGeneration()), number: int(req.GetLastInstallAttempt())}
	busy := req.GetInstallProgress() != nil || last == a.handed && last.number > 0 && a.reportedEnd != last
	lost := last.before(a.handed) // its answer did not arrive
	overdue := time.Since(a.askedAt) >= s.config.Recheck
	if !overdue && (busy || !a.ask && !wanted && !lost) {
		return nil, nil
	}
	order, err := s.db.HandOutInstall(ctx, a.identity, last.generation, last.number)
	if err != nil {
		return nil, s.failure(ctx, "look for an install", a.identity.Machine, err)
	}
	a.ask, a.askedAt = false, time.Now()
	if order == nil {
		return nil, nil
	}
	s.observer.AgentReport("handed out")
	a.handed = attempt{generation: order.Request.Generation, number: order.Attempt}
	s.options.Logger.InfoContext(ctx, "install handed out", slog.String("machine", string(a.identity.Machine)),
		slog.Int64("install_generation", int64(order.Request.Generation)), slog.Int("attempt", order.Attempt))
	return s.installRequest(a.identity.Machine, order), nil
}
