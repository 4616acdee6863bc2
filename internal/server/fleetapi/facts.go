package fleetapi

import (
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// factsOf puts every fact of a machine into words, oldest first.
func factsOf(r fleet.Record) []*fleetv1.Fact {
	var facts []*fleetv1.Fact
	add := func(name string, at time.Time, format string, args ...any) {
		facts = append(facts, &fleetv1.Fact{Name: name, At: stamp(at), Detail: fmt.Sprintf(format, args...)})
	}
	if i := r.Intent; i != nil {
		add("intent", i.OpenedAt, "capacity %s; %d calls, %d rejected", i.Capacity, i.Calls, i.Rejected)
	}
	if p := r.Provided; p != nil {
		add("provided", p.At, "%s", provided(p))
	}
	if a := r.AgentStarted; a != nil {
		add("agent started", a.At, "takeover generation %d, agent %s, boot %s", a.TakeoverGeneration, a.AgentVersion, a.BootID)
	}
	if a := r.AgentSeen; a != nil {
		add("agent spoke", a.FirstAt, "takeover generation %d, boot %s", a.TakeoverGeneration, a.BootID)
		add("agent seen", a.LastAt, "takeover generation %d", a.TakeoverGeneration)
	}
	if h := r.Hardware; h != nil {
		add("hardware report", h.At, "digest %.12s", h.Digest)
	}
	installFacts(r, add)
	if q := r.Quarantine; q != nil {
		add("quarantine", q.At, "by %s: %s", q.Actor, q.Reason)
	}
	slices.SortStableFunc(facts, func(a, b *fleetv1.Fact) int { return a.GetAt().AsTime().Compare(b.GetAt().AsTime()) })
	return facts
}

func installFacts(r fleet.Record, add func(name string, at time.Time, format string, args ...any)) {
	if q := r.InstallRequest; q != nil {
		add("install request", q.At, "install generation %d by %s: %s (%.19s…)", q.Generation, q.Actor, q.Image.Location(), q.Image.Digest)
	}
	if a := r.InstallAttempt; a != nil {
		add("install attempt", a.At, "attempt %d of install generation %d", a.Attempt, a.Generation)
	}
	if p := r.InstallReport; p != nil {
		outcome := "failed: " + p.Error
		if p.OK {
			outcome = fmt.Sprintf("wrote %d bytes to %s in %s", p.Bytes, p.Disk, p.Duration.Round(time.Millisecond))
		}
		add("install report", p.At, "attempt %d of install generation %d %s", p.Attempt, p.Generation, outcome)
	}
	if i := r.Installed; i != nil {
		add("installed", i.At, "install generation %d came up (attempt %d), boot %s", i.Generation, i.Attempt, i.BootID)
	}
}

func provided(p *fleet.Provided) string {
	s := string(p.Status)
	if p.Detail != "" && p.Detail != s {
		s += " (" + p.Detail + ")"
	}
	if p.Hostname != "" {
		s += ", " + p.Hostname
	}
	if p.Address.IsValid() {
		s += ", " + p.Address.String()
	}
	if p.Location != "" {
		s += ", " + p.Location
	}
	if p.Capacity != "" {
		s += ", capacity " + string(p.Capacity)
	}
	return s
}
