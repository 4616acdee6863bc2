package fleetapi

import (
	"fmt"
	"slices"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
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
	careFacts(r, add)
	slices.SortStableFunc(facts, func(a, b *fleetv1.Fact) int { return a.GetAt().AsTime().Compare(b.GetAt().AsTime()) })
	return facts
}

func installFacts(r fleet.Record, add func(name string, at time.Time, format string, args ...any)) {
	if q := r.InstallRequest; q != nil {
		add("install request", q.At, "install generation %d by %s: %s (%s)%s%s", q.Generation, q.Actor, q.Image.Label(), q.Image.ShortIdentity(),
			seenBy(q.SeenUp), startedBy(q.Image))
	}
	if a := r.InstallAttempt; a != nil {
		add("install attempt", a.At, "attempt %d of install generation %d", a.Attempt, a.Generation)
	}
	if c := r.InstallCancel; c != nil {
		add("install called off", c.At, "install generation %d by %s: %s", c.Generation, c.Actor, c.Reason)
	}
	if p := r.InstallReport; p != nil {
		outcome := "failed: " + p.Error
		if p.OK {
			outcome = fmt.Sprintf("wrote %d bytes to %s in %s", p.Bytes, p.Disk, p.Duration.Round(time.Millisecond))
		}
		add("install report", p.At, "attempt %d of install generation %d %s", p.Attempt, p.Generation, outcome)
		if lifecycle.OnDisk(r) {
			add("on disk", p.At, "install generation %d, which has not come up yet", p.Generation)
		}
	}
	if i := r.Installed; i != nil {
		if i.Attempt == 0 {
			add("marked installed", i.At, "by an operator: history tells by whom, and why")
		} else {
			add("installed", i.At, "install generation %d came up (attempt %d)%s", i.Generation, i.Attempt, bootOf(i))
		}
		if i.ErasedAt != nil {
			add("erased", *i.ErasedAt, "%s reinstalls its own operating system in the place of install generation %d", r.Provider, i.Generation)
		}
	}
	if p := r.Probe; p != nil {
		add("probe", p.At, "install generation %d, attempt %d: %s", p.Generation, p.Attempt, probed(p))
	}
}

// careFacts are what people asked for, and what recovery did.
func careFacts(r fleet.Record, add func(name string, at time.Time, format string, args ...any)) {
	if m := r.Maintenance; m != nil {
		switch {
		case m.Over:
			add("maintenance", m.At, "by %s: %s; it is over", m.Actor, m.Reason)
		case m.Until != nil:
			add("maintenance", m.At, "by %s until %s: %s", m.Actor, fleet.Instant(*m.Until), m.Reason)
		default:
			add("maintenance", m.At, "by %s until somebody ends it: %s", m.Actor, m.Reason)
		}
	}
	if q := r.Operation; q != nil {
		add("operation", q.At, "%s (operation %d) by %s: %s", q.Operation, q.Number, q.Actor, q.Reason)
	}
	if a := r.OperationAttempt; a != nil {
		outcome := "the provider has not accepted it, as far as is known"
		if a.AcceptedAt != nil {
			outcome = "accepted at " + fleet.Instant(*a.AcceptedAt)
		}
		add("operation attempt", a.At, "attempt %d at operation %d: %s", a.Attempt, a.Number, outcome)
	}
	if e := r.OperationReport; e != nil {
		outcome := "failed"
		if e.OK {
			outcome = "done"
		}
		add("operation report", e.At, "operation %d %s: %s", e.Number, outcome, e.Detail)
	}
	if s := r.Repair; s != nil {
		refused := ""
		if s.Refused && s.Rung.Restarts() {
			refused = ", which the provider has refused"
		}
		add("recovery", s.At, "the newest step is %s%s, in trouble since %s; taken so far: %s", s.Rung, refused, fleet.Instant(s.Since),
			lifecycle.StepsTaken(s.Steps))
	}
}

func provided(p *fleet.Provided) string {
	s := p.Says()
	if p.Hostname != "" {
		s += ", " + p.Hostname
	}
	if p.Address.IsValid() {
		s += ", " + p.Address.String()
	}
	if p.Location != "" {
		s += ", " + p.Location
	}
	for _, label := range p.Labels {
		s += ", " + label
	}
	if p.Capacity != "" {
		s += ", capacity " + string(p.Capacity)
	}
	return s
}

// seenBy says how an installed system is to be seen; "" where its unit calls in.
func seenBy(s fleet.SeenUp) string {
	switch {
	case s.By == fleet.SeenByUnit:
		return ""
	case s.Watch:
		return ", seen up and watched by " + s.Asks()
	}
	return ", seen up by " + s.Asks()
}

// startedBy says how the installed system is to be started; "" where the firmware does it.
func startedBy(i fleet.Image) string {
	if i.Kexec {
		return ", started by kexec"
	}
	return ""
}

// bootOf says which boot of an installed system was seen, or by what it was.
func bootOf(i *fleet.Installed) string {
	if i.BootID == "" {
		return seenBy(i.SeenUp)
	}
	return ", boot " + i.BootID
}

func probed(p *fleet.Probe) string {
	if p.Answered() {
		return p.Detail
	}
	return fmt.Sprintf("not answered since %s: %s", fleet.Instant(p.UnansweredSince), p.Detail)
}
