package fleetapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/remote"
)

// GetMachine implements fleetv1connect.FleetServiceHandler.
func (s *Service) GetMachine(ctx context.Context, req *fleetv1.GetMachineRequest) (*fleetv1.GetMachineResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceGetMachineProcedure, func(ctx context.Context, _ string) (*fleetv1.GetMachineResponse, error) {
		j, err := s.judge(ctx, req.GetMachine())
		if err != nil {
			return nil, err
		}
		a := &fleetv1.GetMachineResponse{
			Machine: machineOf(j.row()), Facts: factsOf(j.record), Decisions: each(j.plan.Decisions, decisionOf),
			InstallProgress: s.progress(j.record), Operation: operationOf(j.record),
		}
		if q := j.record.InstallRequest; q != nil {
			a.Image = namedImageOf(q.Image)
		}
		if up := j.record.Installed; up != nil && up.ErasedAt == nil {
			a.InstalledGeneration = int64(up.Generation)
		}
		a.Hardware, err = s.hardware(ctx, j.record)
		return a, err
	})
}

// progress returns how far the install of a machine is, as its agent has told this process; nil
// when it has ended well, which the agent may have told another one.
func (s *Service) progress(r fleet.Record) *agentv1.InstallProgress {
	p := s.options.Progress(r.ID)
	generation, attempt := fleet.InstallGeneration(p.GetInstallGeneration()), int(p.GetAttempt())
	if w := r.InstallReport; w != nil && w.OK && (w.Generation > generation || w.Generation == generation && w.Attempt >= attempt) {
		return nil
	}
	if up := r.Installed; up != nil && up.Follows(generation, attempt) {
		return nil
	}
	return p
}

// ExplainMachine implements fleetv1connect.FleetServiceHandler.
func (s *Service) ExplainMachine(ctx context.Context, req *fleetv1.ExplainMachineRequest) (*fleetv1.ExplainMachineResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceExplainMachineProcedure, func(ctx context.Context, _ string) (*fleetv1.ExplainMachineResponse, error) {
		j, err := s.judge(ctx, req.GetMachine())
		if err != nil {
			return nil, err
		}
		next := s.nextStep(ctx, j)
		return &fleetv1.ExplainMachineResponse{
			Machine: machineOf(j.row()), Decisions: each(j.plan.Decisions, decisionOf), Summary: j.summary(next), Next: next,
		}, nil
	})
}

// nextStep says who acts next on the machine. While the database takes no changes, nobody can
// before a person has seen to that: what that person would ask for is refused, too.
func (s *Service) nextStep(ctx context.Context, j judged) *fleetv1.NextStep {
	next := j.nextStep()
	if next.GetWho() == whoNobody {
		return next
	}
	// What another error means may be over with the next change.
	if err := s.writable(ctx); err != nil && (next.GetWho() != whoOperator || errors.Is(err, bmdb.ErrUnavailable)) {
		return &fleetv1.NextStep{Who: whoOperator, What: fmt.Sprintf("%s; until it takes them, what changes something is not done", err)}
	}
	return next
}

// judged is a machine with what lifecycle decides about it at the instant of the call.
type judged struct {
	record fleet.Record
	env    fleet.Environment
	plan   lifecycle.Plan
	now    time.Time
	// since is when the state last changed; zero when time alone has changed it and nobody has written
	// since.
	since time.Time
	// hostKey is the fingerprint of the host key that was refused last; "": none was since one was
	// accepted.
	hostKey string
}

// judge reads the machine that ref names, and decides about it.
func (s *Service) judge(ctx context.Context, ref string) (judged, error) {
	id, err := s.resolve(ctx, ref)
	if err != nil {
		return judged{}, err
	}
	d, err := s.db.MachineDetails(ctx, id)
	if err != nil {
		return judged{}, err
	}
	env := d.Environment
	// While the database takes no changes, control planes can leave no sign of life in it.
	if len(env.Missing)+len(env.Unserved) > 0 && s.writable(ctx) != nil {
		env.Missing, env.Unserved, env.Abandoned = nil, nil, false
	}
	j := judged{record: d.Record, env: env, plan: lifecycle.Decide(d.Record, env, d.Now), now: d.Now, since: d.StateSince}
	if j.plan.State != d.State {
		j.since = time.Time{}
	}
	j.hostKey = remote.Fingerprint(d.RefusedHostKey)
	return j, nil
}

// row is the machine as a list of machines would have it, but judged now.
func (j judged) row() bmdb.MachineRow {
	r := j.record
	row := bmdb.MachineRow{
		Machine: r.Machine, State: j.plan.State, Reason: j.plan.Reason, StateSince: j.since, TakeoverGeneration: r.TakeoverGeneration,
	}
	if p := r.Provided; p != nil {
		row.Hostname, row.Location, row.Labels = p.Hostname, p.Location, p.Labels
		if p.Address.IsValid() {
			row.Address = p.Address.String()
		}
	}
	if r.AgentStarted != nil {
		row.AgentVersion = r.AgentStarted.AgentVersion
	}
	if r.AgentSeen != nil {
		row.LastSeenAt = r.AgentSeen.LastAt
	}
	if r.InstallRequest != nil {
		row.InstallGeneration = r.InstallRequest.Generation
	}
	return row
}

// hardware returns the stored report; nil when there is none.
func (s *Service) hardware(ctx context.Context, r fleet.Record) (*agentv1.HardwareReport, error) {
	if r.Hardware == nil {
		return nil, nil
	}
	encoded, err := s.db.HardwareReport(ctx, r.ID)
	if err != nil {
		if fleet.KindOf(err) == fleet.KindNotFound { // or replaced or forgotten since the record was read
			return nil, nil
		}
		return nil, err
	}
	var report agentv1.HardwareReport
	if err := proto.Unmarshal(encoded, &report); err != nil {
		return nil, fmt.Errorf("read the stored hardware report of machine %s: %w", r.ID, err)
	}
	return &report, nil
}

// summarize says in one sentence what the machine waits for, or that nothing is wanted of it.
func summarize(plan lifecycle.Plan, now time.Time) string {
	d, wanted := plan.Next()
	switch {
	case !wanted:
		return fmt.Sprintf("Nothing is wanted of this machine: it is %s (%s).", plan.State.Words(), plan.Reason)
	case d.Verdict == lifecycle.Running:
		return fmt.Sprintf("%s is under way: %s, until %s unless extended.", d.Process, d.Reason, clock(d.DueAt, now))
	case d.Verdict == lifecycle.Due:
		return fmt.Sprintf("%s is due since %s (%s ago): %s.", d.Process, clock(d.DueAt, now), span(now.Sub(d.DueAt)), d.Reason)
	case d.Backoff != nil:
		return fmt.Sprintf("%s waits until %s (in %s): %s.", d.Process, clock(d.DueAt, now), span(d.DueAt.Sub(now)), d.Reason)
	case d.Verdict == lifecycle.Later && d.Deadline:
		return fmt.Sprintf("Nothing is to be done now: it is %s (%s); %s, at %s at the earliest.", plan.State.Words(), plan.Reason, d.Reason, clock(d.DueAt, now))
	case d.Verdict == lifecycle.Later:
		return fmt.Sprintf("%s comes at %s (in %s): %s.", d.Process, clock(d.DueAt, now), span(d.DueAt.Sub(now)), d.Reason)
	}
	return fmt.Sprintf("%s: %s.", d.Process, d.Reason)
}

// summary says what the machine waits for, what is wrong meanwhile, and who acts next.
func (j judged) summary(next *fleetv1.NextStep) string {
	if j.keptOff() && next.GetWho() == whoNobody {
		return fmt.Sprintf("Nothing is to be done now: it is off (%s), and %s.", j.plan.Reason, next.GetWhat())
	}
	return summarize(j.plan, j.now) + j.unasked() + tell(next, j.now)
}

// unasked says in a sentence since when an installed system that is to be asked cannot be, and why,
// unless the decision on its next probe has that; "" where it can.
func (j judged) unasked() string {
	b, d := j.record.Backoffs[fleet.ProcessProbe], j.plan.For(fleet.ProcessProbe)
	if up := j.record.Installed; up != nil && up.SeenUp.By == fleet.SeenByUnit { // it calls by itself
		return ""
	}
	if b.Since.IsZero() || !d.Verdict.Scheduled() && d.Verdict != lifecycle.Running {
		return ""
	}
	since := " The installed system cannot be asked whether it is up since " + clock(b.Since, j.now)
	if d.Backoff != nil {
		return since + "."
	}
	return fmt.Sprintf("%s: %s.", since, b.Cause)
}

// clock shows an instant, with its date where that is not today's.
func clock(t, now time.Time) string {
	t = t.UTC()
	if t.Format(time.DateOnly) != now.UTC().Format(time.DateOnly) {
		return fleet.Instant(t)
	}
	return t.Format("15:04:05 UTC")
}

func span(d time.Duration) string {
	if d >= 48*time.Hour {
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
	return max(d, 0).Round(time.Second).String()
}
