package fleetapi

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// The functions below are the only way from the BMDB's types to messages of the API. They decide
// nothing: what has to be decided is in the value that they get.

// stamp returns nil for the zero instant, so that the field is absent.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func stampPointer(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return stamp(*t)
}

func summaryOf(s bmdb.Summary) *fleetv1.GetSummaryResponse {
	a := &fleetv1.GetSummaryResponse{Machines: int64(s.Machines), Discrepancies: int64(s.Discrepancies), RecoveryHold: recoveryHoldOf(s.RecoveryHold)}
	for _, state := range fleet.States() {
		a.States = append(a.States, &fleetv1.StateCount{State: string(state), Machines: int64(s.States[state])})
	}
	for _, p := range s.Processes {
		a.Processes = append(a.Processes, &fleetv1.ProcessCount{
			Process: string(p.Process), Running: int64(p.Running), Due: int64(p.Due), NoRoom: int64(p.NoRoom), BackingOff: int64(p.BackingOff),
		})
	}
	return a
}

func phaseOf(p bmdb.Phase) *fleetv1.PhaseDuration {
	return &fleetv1.PhaseDuration{
		Phase: p.Name, Count: int64(p.Count), P50: durationpb.New(p.P50), P95: durationpb.New(p.P95), P99: durationpb.New(p.P99),
		Max: durationpb.New(p.Max),
	}
}

func machineOf(r bmdb.MachineRow) *fleetv1.Machine {
	return &fleetv1.Machine{
		Id: string(r.ID), Provider: string(r.Provider), ProviderId: string(r.ProviderID), Hostname: r.Hostname, Address: r.Address,
		Location: r.Location, State: string(r.State), Reason: r.Reason, CreatedAt: stamp(r.CreatedAt), LastSeenAt: stamp(r.LastSeenAt),
		AgentVersion: r.AgentVersion, TakeoverGeneration: int64(r.TakeoverGeneration), InstallGeneration: int64(r.InstallGeneration),
		StateSince: stamp(r.StateSince), Labels: r.Labels,
	}
}

func historyOf(h bmdb.HistoryRow) *fleetv1.HistoryEntry {
	return &fleetv1.HistoryEntry{
		At: stamp(h.At), Actor: h.Actor, Process: string(h.Process), Epoch: int64(h.Epoch), Event: string(h.Event), Detail: h.Detail,
		RetryAt: stamp(h.RetryAt), StartedAt: stamp(h.StartedAt), Why: h.Why,
	}
}

func decisionOf(d lifecycle.Decision) *fleetv1.Decision {
	a := &fleetv1.Decision{Process: string(d.Process), Verdict: d.Verdict.String(), Reason: d.Reason, DueAt: stamp(d.DueAt)}
	if d.Hold != nil {
		a.Session, a.Epoch = string(d.Hold.Session), int64(d.Hold.Epoch)
	}
	if d.Backoff != nil {
		a.BackoffCause = d.Backoff.Cause
	}
	return a
}

func providerOf(p bmdb.ProviderRow) *fleetv1.Provider {
	a := &fleetv1.Provider{
		Name: string(p.Name), Kind: p.Kind, Machines: int64(p.Machines), MaxMachines: int64(p.MaxMachines),
		OpenIntents: int64(p.OpenIntents), Discrepancies: int64(p.Discrepancies), LastPassAt: stamp(p.LastPassAt),
		LastUpdateAt: stamp(p.LastUpdateAt), Penalties: int64(p.Penalties), Unserved: each(p.Unserved, roleName),
	}
	if p.Paused != nil {
		a.PausedAt, a.PausedBy, a.PausedWhy = stamp(p.Paused.At), p.Paused.Actor, p.Paused.Reason
	}
	a.LastPass, _, _ = strings.Cut(p.PassResult, "\n")
	a.Unusable = p.Unusable()
	for _, d := range p.Decisions {
		switch d.Process {
		case fleet.ProcessUpdate:
			a.LastUpdate = sinceThen(p, d, d.Reason, p.LastUpdateAt)
		case fleet.ProcessProvision:
			a.LastPass = sinceThen(p, d, a.LastPass, p.LastPassAt)
		}
	}
	return a
}

// sinceThen returns what is told of a process of the provider beside when it has last finished:
// these words, or how it has failed since.
func sinceThen(p bmdb.ProviderRow, d lifecycle.Decision, words string, finished time.Time) string {
	b := p.Backoffs[d.Process]
	switch {
	case b.Failures == 0:
		return words
	case d.Backoff != nil:
		words = d.Reason
	default: // it is about to be tried again, or is tried, or waits for a person
		words = counted(b.Failures, "failure", "failures") + ": " + b.Cause
	}
	if finished.IsZero() {
		return words
	}
	return "since then: " + words
}

func uncomparedOf(u bmdb.Uncompared) *fleetv1.Uncompared {
	return &fleetv1.Uncompared{Provider: string(u.Provider), ComparedAt: stamp(u.At), Why: u.Why}
}

func roleName(r fleet.Role) string { return string(r) }

func holdOf(h bmdb.HeldLane) *fleetv1.Hold {
	return &fleetv1.Hold{Process: string(h.Process), Subject: h.Subject.String(), Epoch: int64(h.Epoch), Since: stamp(h.Since)}
}

func sessionOf(s bmdb.SessionRow) *fleetv1.Session {
	return &fleetv1.Session{
		Id: string(s.ID), Component: s.Component, Host: s.Host, Pid: int32(s.PID), StartedAt: stamp(s.StartedAt),
		Deadline: stamp(s.Deadline), EndedAt: stamp(s.EndedAt), EndCause: s.Cause, Holds: each(s.Held, holdOf),
		Providers: s.Providers, Role: roleName(fleet.RoleOf(s.Component)),
	}
}

func discrepancyOf(d bmdb.DiscrepancyRow) *fleetv1.Discrepancy {
	return &fleetv1.Discrepancy{
		Provider: string(d.Provider), Kind: string(d.Kind), ProviderId: string(d.ProviderID), MachineId: string(d.Machine),
		Since: stamp(d.Since), Evidence: d.Evidence, Remedy: d.Remedy,
	}
}

// pauseOf returns who paused the provider; nil when nobody did.
func pauseOf(p bmdb.ProviderRow) *fleetv1.ProviderPause {
	if p.Paused == nil {
		return nil
	}
	return &fleetv1.ProviderPause{Provider: string(p.Name), At: stamp(p.Paused.At), Actor: p.Paused.Actor, Reason: p.Paused.Reason}
}

func namedImageOf(i fleet.Image) *fleetv1.NamedImage {
	form := string(i.FirstBoot)
	if i.FirstBoot == fleet.FirstBootArea {
		form = "area"
	}
	return &fleetv1.NamedImage{
		Name: i.Name, Location: i.Location(), Digest: i.Digest, FileDigest: i.FileDigest, Compression: string(i.Compression), Size: i.Size, FirstBoot: form,
		Architecture: string(i.Architecture),
	}
}
