package lifecycle

import (
	"maps"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// stepsBefore are the steps that count in a new trouble.
func (c judgement) stepsBefore(t trouble) map[fleet.Rung]int {
	if r := c.r.Repair; r != nil && t.at.Sub(r.At) < c.env.Policy.RecoveryMemory {
		return r.Steps
	}
	return nil
}

// nextRung is the first rung that the provider has the lever for and the policy a budget. A machine
// that is off cannot be rebooted: it is switched on by a power cycle, where there is one.
func (c judgement) nextRung(steps map[fleet.Rung]int) fleet.Rung {
	off := c.r.Provided != nil && c.r.Provided.Status.Down() &&
		slices.Contains(c.r.Levers, fleet.LeverPower) && c.env.Policy.RecoverySteps(fleet.RungPowerCycle) > 0
	for _, s := range []struct {
		rung  fleet.Rung
		lever fleet.Lever
	}{
		{fleet.RungReboot, fleet.LeverReboot}, {fleet.RungPowerCycle, fleet.LeverPower}, {fleet.RungReinstall, fleet.LeverReinstall},
	} {
		if off && s.rung == fleet.RungReboot {
			continue
		}
		if slices.Contains(c.r.Levers, s.lever) && steps[s.rung] < c.env.Policy.RecoverySteps(s.rung) {
			return s.rung
		}
	}
	return fleet.RungQuarantine
}

// NextRepair is the repair fact that a step of the ladder leaves behind, when it is taken now.
func NextRepair(r fleet.Record, env fleet.Environment, now time.Time, rung fleet.Rung) fleet.Repair {
	c := judgement{r: r, env: env, now: now}
	next := fleet.Repair{Since: now, Rung: rung, At: now, TakeoverGeneration: r.TakeoverGeneration, BootID: c.bootID()}
	if was := c.repairing(); was != nil {
		next.Since, next.Steps = was.Since, maps.Clone(was.Steps)
	} else if t, ok := c.trouble(); ok {
		next.Since, next.Steps = t.at, maps.Clone(c.stepsBefore(t))
	}
	if next.Steps == nil {
		next.Steps = make(map[fleet.Rung]int)
	}
	next.Steps[rung]++
	next.Refused = rung == fleet.RungAgentStart && r.Repair != nil && r.Repair.Refused
	return next
}

// HasStep reports whether recovery has a step for the machines of a provider with these levers that
// the policy allows. Where it has none, agents alone are started.
func HasStep(levers []fleet.Lever, policy fleet.Policy) bool {
	c := judgement{r: fleet.Record{Levers: levers}, env: fleet.Environment{Policy: policy}}
	return c.nextRung(nil) != fleet.RungQuarantine
}

// restarts counts the steps that restart a machine.
func restarts(r fleet.Repair) (n int) {
	for rung, taken := range r.Steps {
		if rung.Restarts() {
			n += taken
		}
	}
	return n
}
