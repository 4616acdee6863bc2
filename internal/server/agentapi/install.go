package agentapi

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/server"
)

// upCall is whose turns of ReportUp are counted together: the calls that name one machine and come
// from one source. Anybody can name a machine. So whoever does so again and again, from elsewhere,
// does not keep its own system waiting.
type upCall struct {
	machine fleet.MachineID
	source  netip.Prefix
}

// ReportUp implements agentv1.AgentCallbackServer. The secret is the credential: a malformed
// request gets the answer of one with a wrong secret.
func (s *Server) ReportUp(ctx context.Context, req *agentv1.ReportUpRequest) (*agentv1.ReportUpResponse, error) {
	conn := connectionOf(ctx)
	if conn.throttled() {
		return nil, errThrottled
	}
	id, err := fleet.ParseMachineID(req.GetMachineId())
	if err != nil || len(req.GetSecret()) != bmdb.InstallSecretBytes || !isName(req.GetBootId(), maxBootID) {
		return nil, s.turnAway(ctx)
	}
	keys, leftOut := remote.ParseHostKeys(req.GetHostKeys()) // nobody has looked at the secret yet
	call := upCall{machine: id, source: server.SourceOf(conn.remote)}
	leave, err := serve(ctx, conn.limited, func(ctx context.Context) (func(), error) { return s.ups.Enter(ctx, call) })
	if err != nil {
		return nil, s.failure(ctx, "record that the system is up", id, err)
	}
	defer leave()
	again, err := s.db.RecordInstalled(ctx, id, fleet.InstallGeneration(req.GetInstallGeneration()), int(req.GetAttempt()), req.GetSecret(), req.GetBootId(), keys...)
	switch kind := fleet.KindOf(err); {
	case err == nil:
	case kind == fleet.KindForbidden || kind == fleet.KindNotFound || kind == fleet.KindInvalid:
		return nil, s.turnAway(ctx)
	default:
		return nil, s.failure(ctx, "record that the system is up", id, err)
	}
	s.observer.AgentReport("up")
	if leftOut > 0 { // such as an empty file of a key that the loss of power has left
		s.oddHostKeys.Do(func() {
			s.options.Logger.WarnContext(ctx, "an installed system named host keys that are none, or too many: they are left out",
				slog.String("machine", string(id)), slog.Int("left_out", leftOut), slog.Int("keys", len(keys)))
		})
	}
	return &agentv1.ReportUpResponse{CallAgainMs: again.Milliseconds()}, nil
}

// installRequest returns the message that hands an attempt to the agent.
func (s *Server) installRequest(machine fleet.MachineID, order *bmdb.InstallOrder) (*agentv1.InstallRequest, error) {
	r := order.Request
	hostKey, err := hostKeyOf(order.HostKey)
	if err != nil {
		return nil, err
	}
	return &agentv1.InstallRequest{
		InstallGeneration: int64(r.Generation), Attempt: int32(order.Attempt),
		Image: &agentv1.Image{
			Url: r.Image.URL, Digest: r.Image.Digest, FileDigest: r.Image.FileDigest, Compression: compressions[r.Image.Compression], Size: r.Image.Size,
			Name: r.Image.Name, FirstBootForm: firstBootForms[r.Image.FirstBoot], Architecture: string(r.Image.Architecture),
		},
		RootDisk: &agentv1.DiskSelector{
			Serial: r.RootDisk.Serial, Wwn: r.RootDisk.WWN, MinSize: r.RootDisk.MinSize, Pick: picks[r.RootDisk.Pick],
			Model: r.RootDisk.Model, Erase: r.RootDisk.Erase, Grow: r.RootDisk.Grow,
		},
		FirstBootData: r.FirstBootData,
		BootToken: &agentv1.BootToken{
			MachineId: string(machine), InstallGeneration: int64(r.Generation), Attempt: int32(order.Attempt),
			Secret: order.Secret, Endpoint: s.config.Endpoint, CaCertificate: s.options.Certificates.Authority(),
			MadeAt: timestamppb.Now(),
		},
		TimeoutMs:  order.Timeout.Milliseconds(),
		SshHostKey: hostKey,
		Kexec:      r.Image.Kexec, MachineName: order.Hostname,
	}, nil
}

// hostKeyOf returns the host key that an attempt brings; nil where it brings none.
func hostKeyOf(private ed25519.PrivateKey) (*agentv1.SshHostKey, error) {
	if private == nil {
		return nil, nil
	}
	encoded, err := remote.EncodeHostKey(private)
	if err != nil {
		return nil, err
	}
	public, _ := private.Public().(ed25519.PublicKey)
	return &agentv1.SshHostKey{Public: remote.HostKeyOf(public), Private: encoded}, nil
}

var compressions = map[fleet.Compression]agentv1.Compression{
	"":                     agentv1.Compression_COMPRESSION_NONE,
	fleet.CompressionNone:  agentv1.Compression_COMPRESSION_NONE,
	fleet.CompressionZstd:  agentv1.Compression_COMPRESSION_ZSTD,
	fleet.CompressionGzip:  agentv1.Compression_COMPRESSION_GZIP,
	fleet.CompressionXZ:    agentv1.Compression_COMPRESSION_XZ,
	fleet.CompressionLayer: agentv1.Compression_COMPRESSION_LAYER,
}

var firstBootForms = map[fleet.FirstBootForm]agentv1.FirstBootForm{
	fleet.FirstBootNoCloud:         agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD,
	fleet.FirstBootNoCloudUserData: agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD_USER_DATA,
}

var picks = map[fleet.Pick]agentv1.DiskSelector_Pick{
	fleet.PickSmallest: agentv1.DiskSelector_PICK_SMALLEST,
	fleet.PickLargest:  agentv1.DiskSelector_PICK_LARGEST,
}

// cancelInstall returns the attempt that the agent works at, where nobody wants its install any
// more; nil where somebody does. The BMDB says so now: an agent that has just jumped into memory
// begins to write after its first answer. Every answer repeats it until the agent does not work at
// it any more. While the BMDB cannot be asked, what it has said of that attempt before counts.
func (s *Server) cancelInstall(ctx context.Context, a *agent, req *agentv1.HeartbeatRequest) (*agentv1.CancelInstall, error) {
	p := req.GetInstallProgress()
	if p == nil {
		return nil, nil
	}
	works := attempt{generation: fleet.InstallGeneration(p.GetInstallGeneration()), number: int(p.GetAttempt())}
	unwanted, err := s.db.InstallUnwanted(ctx, a.identity.Machine, works.generation)
	switch {
	case err != nil && a.needed == works:
		return nil, nil //nolint:nilerr // it goes on, and its next heartbeat asks again
	case err != nil:
		return nil, s.failure(ctx, "look whether an install is wanted", a.identity.Machine, err)
	case !unwanted:
		a.needed = works
		return nil, nil
	}
	a.needed = attempt{}
	return &agentv1.CancelInstall{InstallGeneration: p.GetInstallGeneration(), Attempt: p.GetAttempt()}, nil
}

// leaveMachine returns the order to restart into the system that the disk holds, where the agent is
// in memory and is to leave; nil where it is not. The BMDB says so now, of this very agent. An
// agent that is handed an install in the same answer is not asked to leave.
func (s *Server) leaveMachine(
	ctx context.Context, a *agent, req *agentv1.HeartbeatRequest, install *agentv1.InstallRequest,
) (*agentv1.LeaveMachine, error) {
	inMemory := req.GetMode() == agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
	a.checkLeave = s.agents.take(hintLeave, a) || a.checkLeave // until the BMDB has answered
	if !a.checkLeave || !inMemory || install != nil || req.GetInstallProgress() != nil {
		return nil, nil
	}
	why, err := s.db.LeaveOrder(ctx, a.identity)
	if err != nil {
		return nil, s.failure(ctx, "look for an order to leave", a.identity.Machine, err)
	}
	a.checkLeave = why != "" // it may not hear this answer
	if why == "" {
		return nil, nil
	}
	order := &agentv1.LeaveMachine{TakeoverGeneration: int64(a.identity.TakeoverGeneration), Reason: why}
	if a.told == why {
		return order, nil
	}
	a.told = why
	s.options.Logger.InfoContext(ctx, "the agent in memory is told to restart the machine into the system on its disk",
		slog.String("machine", string(a.identity.Machine)), slog.String("reason", why))
	return order, nil
}

// strands reports whether the address of the machine is elsewhere while the endpoint is one that
// only this host reaches: an installed system would call itself for ever. A configuration without
// the providers of the fleet, such as the package's, does not show that.
func (s *Server) strands(ctx context.Context, machine fleet.MachineID) (bool, error) {
	host, _, _ := net.SplitHostPort(s.config.Endpoint) // the configuration has been checked
	if !secret.StaysHere(host) {
		return false, nil
	}
	r, err := s.db.Machine(ctx, machine)
	if err != nil || r.Provided != nil && r.Provided.Address.IsLoopback() {
		return false, err
	}
	s.stranded.Do(func() {
		s.options.Logger.ErrorContext(ctx, "no install is handed out to machines elsewhere, because their systems would be told to call an address "+
			"where each finds itself: set agent_api.endpoint to one that they can reach, and start ironherd again",
			slog.String("endpoint", s.config.Endpoint), slog.String("machine", string(machine)))
	})
	return true, nil
}

// nextInstall asks the BMDB for an install where one may be due, and returns it; nil where none is.
// It does not ask while the agent is busy with one.
func (s *Server) nextInstall(ctx context.Context, a *agent, req *agentv1.HeartbeatRequest, arrived time.Time) (*agentv1.InstallRequest, error) {
	last := attempt{generation: fleet.InstallGeneration(req.GetLastInstallGeneration()), number: int(req.GetLastInstallAttempt())}
	if req.GetInstallProgress() != nil && a.running != last {
		// Another process handed the attempt out, or this one did before it was restarted.
		a.running, a.busyUntil = last, time.Now().Add(s.config.Recheck)
	}
	busy := a.running == last && last.number > 0 && time.Now().Before(a.busyUntil)
	// The agent does not know of the attempt that it was handed, so the answer did not arrive.
	lost := last.before(a.handedOut)
	// This heartbeat was sent before the answer to another one handed an attempt out, so the agent
	// cannot have known of it.
	stale := arrived.Before(a.handedOutAt)
	if busy || stale || !a.checkInstall && !lost && !s.agents.take(hintInstall, a) {
		return nil, nil
	}
	if lost && !a.reports.Allow() {
		return nil, nil // it says so all the time
	}
	a.checkInstall = true // until the BMDB has answered
	stranded, err := s.strands(ctx, a.identity.Machine)
	if err != nil {
		return nil, s.failure(ctx, "look where the machine is", a.identity.Machine, err)
	}
	if stranded {
		a.checkInstall = false
		return nil, nil
	}
	order, err := s.db.HandOutInstall(ctx, a.identity, last.generation, last.number)
	if err != nil {
		return nil, s.failure(ctx, "look for an install", a.identity.Machine, err)
	}
	a.checkInstall, a.handedOut, a.running = false, last, attempt{}
	if order == nil {
		return nil, nil
	}
	now := time.Now()
	a.handedOut, a.handedOutAt = attempt{generation: order.Request.Generation, number: order.Attempt}, now
	a.running, a.busyUntil = a.handedOut, now.Add(order.Timeout)
	s.observer.AgentReport("handed out")
	s.options.Logger.InfoContext(ctx, "install handed out", slog.String("machine", string(a.identity.Machine)),
		slog.Int64("install_generation", int64(order.Request.Generation)), slog.Int("attempt", order.Attempt))
	return s.installRequest(a.identity.Machine, order)
}
